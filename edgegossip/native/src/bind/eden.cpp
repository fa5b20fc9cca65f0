#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "codec/eden.hpp"

namespace edgegossip {
namespace {

// Bytes of all tensors.
int64_t bytes_of(const std::vector<int64_t>& offsets, int32_t bits) {
    if (bits < 1 || bits > 4) throw nb::value_error(("bits must be 1 to 4, not " + std::to_string(bits)).c_str());
    int64_t bytes = 0;
    for (size_t k = 1; k < offsets.size(); k++) bytes += eden_bytes(offsets[k] - offsets[k - 1], bits);
    return bytes;
}

void check_keys(const std::vector<uint64_t>& keys, const std::vector<int64_t>& offsets) {
    if (keys.size() + 1 != offsets.size()) throw nb::value_error("keys must be as many as there are tensors");
}

int64_t eden_size(nb::handle offsets_object, int64_t n, int32_t bits) { return bytes_of(read_offsets(offsets_object, n), bits); }

int64_t encode(nb::handle x_object, nb::handle offsets_object, const std::vector<uint64_t>& keys, int32_t bits, nb::handle out_object,
               const Name& isa_name, std::optional<int> threads_argument) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    check_keys(keys, offsets);
    const Buffer<uint8_t> out(out_object, "out", true);
    out.expect_size(bytes_of(offsets, bits));
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return eden_encode(kernels, x.data(), offsets, keys, bits, out.data(), threads);
}

int64_t fault(nb::handle body_object, nb::handle offsets_object, int64_t n, int32_t bits) {
    const std::vector<int64_t> offsets = read_offsets(offsets_object, n);
    const Buffer<uint8_t> body(body_object, "body", false);
    body.expect_size(bytes_of(offsets, bits));
    WithoutGil unlocked;
    return eden_fault(body.data(), offsets, bits);
}

int64_t decode(nb::handle body_object, nb::handle offsets_object, const std::vector<uint64_t>& keys, int32_t bits, nb::handle out_object,
               std::optional<double> weight, const Name& isa_name, std::optional<int> threads_argument) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    const Buffer<float> out(out_object, "out", true);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, out.size());
    check_keys(keys, offsets);
    const Buffer<uint8_t> body(body_object, "body", false);
    body.expect_size(bytes_of(offsets, bits));
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    WithoutGil unlocked;
    DefaultFloatEnv env;
    if (const int64_t bad = eden_fault(body.data(), offsets, bits); bad >= 0) return bad;
    eden_decode(kernels, body.data(), offsets, keys, bits, out.data(), weight.has_value(), narrow, threads);
    return -1;
}

}  // namespace

void bind_eden(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("eden_bytes", &eden_size, "offsets"_a.none(), "n"_a, "bits"_a);
    m.def("eden_encode", &encode, "x"_a.none(), "offsets"_a.none(), "keys"_a, "bits"_a, "out"_a.none(), "isa"_a.none() = nb::none(),
          "threads"_a.none() = nb::none());
    m.def("eden_fault", &fault, "body"_a.none(), "offsets"_a.none(), "n"_a, "bits"_a);
    m.def("eden_decode", &decode, "body"_a.none(), "offsets"_a.none(), "keys"_a, "bits"_a, "out"_a.none(),
          "weight"_a.none() = nb::none(), "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
}

}  // namespace edgegossip
