#include <nanobind/stl/tuple.h>

#include <cstring>
#include <tuple>

#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "codec/quantiser.hpp"
#include "bind/quantiser_spec.hpp"

namespace edgegossip {
namespace {

bool quantise_norms(nb::handle x_object, int64_t bucket, bool linf, nb::handle scales_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Quantiser q{UNIFORM, 2, 1, bucket, nullptr, 0};
    if (const char* error = quantiser_error(q)) throw nb::value_error(error);
    const Buffer<float> x(x_object, "x", false), scales(scales_object, "scales", true);
    scales.expect_size(count_of_scales(bucket, x.size()));
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return kernels.quantise.norms(x.data(), x.size(), bucket, linf, scales.data());
}

std::vector<std::tuple<double, double, double, double>> quantise_moments(nb::handle x_object, nb::handle offsets_object,
                                                                         const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    std::vector<std::tuple<double, double, double, double>> found(offsets.size() - 1);
    {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        for (size_t k = 0; k < found.size(); k++) {
            double m[4] = {};
            kernels.quantise.moments(x.data() + offsets[k], offsets[k + 1] - offsets[k], m);
            found[k] = {m[0], m[1], m[2], m[3]};
        }
    }
    return found;
}

// Where a tensor may be cut: at a bucket, and at 512 values.
void check_first(int64_t first, int64_t bucket) {
    const int64_t step = bucket > 512 ? bucket : 512;
    if (first < 0 || first % step != 0)
        throw nb::value_error(("first must be a multiple of " + std::to_string(step) + ", not below 0").c_str());
}

// Without `norm` the scales are read; with it they are written. False when norms found NaN or infinity.
bool quantise(nb::handle spec_object, nb::handle x_object, uint64_t key, int64_t first, nb::handle scales_object,
              nb::handle symbols_object, std::optional<bool> linf, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const QuantiserSpec spec(spec_object);
    const Buffer<float> x(x_object, "x", false), scales(scales_object, "scales", linf.has_value());
    const Buffer<uint8_t> symbols(symbols_object, "symbols", true);
    scales.expect_size(count_of_scales(spec.q.bucket, x.size()));
    symbols.expect_size(bytes_of_symbols(spec.q, x.size()));
    check_first(first, spec.q.bucket);
    if (linf && spec.q.bucket == 0) throw nb::value_error("norms of buckets need a bucket");
    WithoutGil unlocked;
    DefaultFloatEnv env;
    if (linf)
        return kernels.quantise.quantise_with_norms(x.data(), x.size(), &spec.q, *linf, key, first, scales.data(), symbols.data());
    kernels.quantise.quantise(x.data(), x.size(), &spec.q, key, first, scales.data(), symbols.data());
    return true;
}

bool dequantise(nb::handle spec_object, nb::handle symbols_object, nb::handle scales_object, nb::handle out_object,
                std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const QuantiserSpec spec(spec_object);
    const Buffer<uint8_t> symbols(symbols_object, "symbols", false);
    const Buffer<float> scales(scales_object, "scales", false), out(out_object, "out", true);
    scales.expect_size(count_of_scales(spec.q.bucket, out.size()));
    symbols.expect_size(bytes_of_symbols(spec.q, out.size()));
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return kernels.quantise.dequantise(symbols.data(), out.size(), {&spec.q, scales.data(), out.data(), weight.has_value(), narrow}, false);
}

// Into the bytes of an array of uint32.
void uniform32(uint64_t key, int64_t first, nb::handle out_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<uint8_t> out(out_object, "out", true);
    if (first < 0) throw nb::value_error("first must not be below 0");
    std::vector<uint32_t> numbers(size_t(out.size() / 4));
    kernels.quantise.uniform32(key, first, int64_t(numbers.size()), numbers.data());
    std::memcpy(out.data(), numbers.data(), 4 * numbers.size());
}

}  // namespace

void bind_quantise(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("quantise_norms", &quantise_norms, "x"_a.none(), "bucket"_a, "linf"_a, "scales"_a.none(), "isa"_a.none() = nb::none());
    m.def("quantise_moments", &quantise_moments, "x"_a.none(), "offsets"_a.none(), "isa"_a.none() = nb::none());
    m.def("quantise", &quantise, "spec"_a, "x"_a.none(), "key"_a, "first"_a, "scales"_a.none(), "symbols"_a.none(),
          "linf"_a.none() = nb::none(), "isa"_a.none() = nb::none());
    m.def("dequantise", &dequantise, "spec"_a, "symbols"_a.none(), "scales"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
    m.def("uniform32", &uniform32, "key"_a, "first"_a, "out"_a.none(), "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
