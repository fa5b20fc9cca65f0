#include <cfloat>

#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "codec/stepped.hpp"

namespace edgegossip {
namespace {

using namespace coding;

// int64[tensors]: what divides a tensor's size, or 0.
std::vector<int64_t> read_columns(nb::handle object, const std::vector<int64_t>& offsets) {
    const Buffer<int64_t> columns(object, "columns", false);
    columns.expect_size(int64_t(offsets.size()) - 1);
    for (size_t k = 0; k + 1 < offsets.size(); k++) {
        const int64_t count = columns.data()[k];
        if (count < 0 || (count > 0 && (offsets[k + 1] - offsets[k]) % count != 0))
            throw nb::value_error("columns must divide the sizes of their tensors, or be 0");
    }
    return {columns.data(), columns.data() + columns.size()};
}

// What functions that look at values take alike.
struct Given {
    const Kernels& kernels;
    const Buffer<float> x;
    const std::vector<int64_t> offsets;
    const std::vector<int64_t> columns;
    const Buffer<uint8_t> eighths;  // int8
    const Stepped stepped;

    Given(nb::handle x_object, nb::handle offsets_object, nb::handle columns_object, std::optional<uint64_t> key, double step, nb::handle eighths_object,
          const Name& isa_name)
        : kernels(*choose(isa_name).kernels),
          x(x_object, "x", false),
          offsets(read_offsets(offsets_object, x.size())),
          columns(read_columns(columns_object, offsets)),
          eighths(eighths_object, "eighths", false),
          stepped{offsets.data(), columns.data(), int64_t(offsets.size()) - 1, key.has_value(), key.value_or(0), float(step),
                  eighths.size() == 0 ? nullptr : reinterpret_cast<const int8_t*>(eighths.data())} {
        if (!(step >= 0 && step <= double(FLT_MAX))) throw nb::value_error("step must be a finite float32, not below 0");
        if (stepped.eighths != nullptr) eighths.expect_size(stepped.tensors);
    }
};

template <double (*FUNCTION)(const Kernels&, const float*, const Stepped&)>
double steps_look(nb::handle x, nb::handle offsets, nb::handle columns, std::optional<uint64_t> key, double step, nb::handle eighths, const Name& isa_name) {
    const Given given(x, offsets, columns, key, step, eighths, isa_name);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return FUNCTION(given.kernels, given.x.data(), given.stepped);
}

nb::bytes steps_encode(nb::handle x, nb::handle offsets, nb::handle columns, std::optional<uint64_t> key, double step, nb::handle eighths, const Name& isa_name) {
    const Given given(x, offsets, columns, key, step, eighths, isa_name);
    std::vector<uint8_t> body;
    {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        body = encode_steps(given.kernels, given.x.data(), given.stepped);
    }
    return nb::bytes(body.data(), body.size());
}

int64_t steps_decode(nb::handle body_object, nb::handle offsets_object, nb::handle columns_object, bool dithered, int64_t n, nb::handle out_object,
                     std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const std::vector<int64_t> offsets = read_offsets(offsets_object, n);
    const std::vector<int64_t> columns = read_columns(columns_object, offsets);
    const Buffer<uint8_t> body(body_object, "body", false);
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    const auto decode = [&](float* out) {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        return decode_steps(kernels, body.data(), body.size(), offsets.data(), columns.data(), int64_t(offsets.size()) - 1, dithered, weight.has_value(), narrow,
                            out);
    };
    if (out_object.is_none()) return decode(nullptr);
    const Buffer<float> out(out_object, "out", true);
    out.expect_size(n);
    return decode(out.data());
}

int64_t steps_integers(nb::handle body_object, nb::handle offsets_object, nb::handle columns_object, int64_t most, nb::handle out_object,
                       const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<uint8_t> out(out_object, "out", true);  // int8
    const std::vector<int64_t> offsets = read_offsets(offsets_object, out.size());
    const std::vector<int64_t> columns = read_columns(columns_object, offsets);
    const Buffer<uint8_t> body(body_object, "body", false);
    if (most < 0 || most > 127) throw nb::value_error("most must be from 0 to 127");
    WithoutGil unlocked;
    return decode_integers(kernels, body.data(), body.size(), offsets.data(), columns.data(), int64_t(offsets.size()) - 1, int32_t(most),
                           reinterpret_cast<int8_t*>(out.data()));
}

}  // namespace

void bind_stepped(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("steps_bits", &steps_look<bits_of_steps>, "x"_a.none(), "offsets"_a.none(), "columns"_a.none(), "key"_a.none(), "step"_a, "eighths"_a.none(),
          "isa"_a.none() = nb::none());
    m.def("steps_error", &steps_look<error_of_steps>, "x"_a.none(), "offsets"_a.none(), "columns"_a.none(), "key"_a.none(), "step"_a, "eighths"_a.none(),
          "isa"_a.none() = nb::none());
    m.def("steps_encode", &steps_encode, "x"_a.none(), "offsets"_a.none(), "columns"_a.none(), "key"_a.none(), "step"_a, "eighths"_a.none(),
          "isa"_a.none() = nb::none());
    m.def("steps_decode", &steps_decode, "body"_a.none(), "offsets"_a.none(), "columns"_a.none(), "dithered"_a, "n"_a, "out"_a.none() = nb::none(),
          "weight"_a.none() = nb::none(), "isa"_a.none() = nb::none());
    m.def("steps_integers", &steps_integers, "body"_a.none(), "offsets"_a.none(), "columns"_a.none(), "most"_a, "out"_a.none(),
          "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
