#include "bind/bind.hpp"
#include "bind/gil.hpp"

namespace edgegossip {
namespace {

int64_t minmax8_encode(nb::handle x_object, nb::handle offsets_object, nb::handle out_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    const int64_t tensors = int64_t(offsets.size()) - 1;
    const Buffer<uint8_t> out(out_object, "out", true);
    out.expect_size(8 * tensors + x.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return kernels.minmax8.encode(x.data(), offsets.data(), tensors, out.data());
}

int64_t minmax8_decode(nb::handle body_object, nb::handle offsets_object, nb::handle out_object,
                       std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> out(out_object, "out", true);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, out.size());
    const int64_t tensors = int64_t(offsets.size()) - 1;
    const Buffer<uint8_t> body(body_object, "body", false);
    body.expect_size(8 * tensors + out.size());
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return kernels.minmax8.decode(body.data(), offsets.data(), tensors, out.data(), weight.has_value(), narrow);
}

}  // namespace

void bind_minmax8(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("minmax8_encode", &minmax8_encode, "x"_a.none(), "offsets"_a.none(), "out"_a.none(), "isa"_a.none() = nb::none());
    m.def("minmax8_decode", &minmax8_decode, "body"_a.none(), "offsets"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
