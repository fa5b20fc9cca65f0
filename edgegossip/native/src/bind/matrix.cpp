#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "lowrank/lowrank.hpp"
#include "lowrank/spectral.hpp"

namespace edgegossip {
namespace {

constexpr int64_t MAX_RANK = 4096;

FactorShape checked_shape(int64_t rows, int64_t cols, int64_t rank, const std::string& form) {
    if (rows < 0 || cols < 0 || rows > INT32_MAX || cols > INT32_MAX || rank < 0 || rank > MAX_RANK)
        throw nb::value_error("rows, cols and rank must not be negative, rank at most 4096");
    if (form != "fp32" && form != "fp16") throw nb::value_error(("form must be fp32 or fp16, not " + form).c_str());
    return {rows, cols, rank, form == "fp16"};
}

bool sound(nb::handle factors_object, int64_t rows, int64_t cols, int64_t rank, const std::string& form, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const FactorShape shape = checked_shape(rows, cols, rank, form);
    const Buffer<uint8_t> factors(factors_object, "factors", false);
    factors.expect_size(shape.bytes());
    WithoutGil unlocked;
    return factors_sound(kernels, shape, factors.data());
}

void product(nb::handle factors_object, int64_t rows, int64_t cols, int64_t rank, const std::string& form, nb::handle out_object,
             std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const FactorShape shape = checked_shape(rows, cols, rank, form);
    const Buffer<uint8_t> factors(factors_object, "factors", false);
    factors.expect_size(shape.bytes());
    const Buffer<float> out(out_object, "out", true);
    out.expect_size(rows * cols);
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    WithoutGil unlocked;
    DefaultFloatEnv env;
    factors_product(kernels, shape, factors.data(), out.data(), weight ? Into::ADD : Into::WRITE, narrow);
}

void step(nb::handle x_object, nb::handle error_object, double decay, int64_t rows, int64_t cols, int64_t rank,
          const std::string& form, nb::handle start_object, nb::handle factors_object, nb::handle next_object,
          nb::handle residual_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const FactorShape shape = checked_shape(rows, cols, rank, form);
    const Buffer<float> x(x_object, "x", false), error(error_object, "error", false), start(start_object, "start", false);
    const Buffer<float> next(next_object, "next", true), residual(residual_object, "residual", true);
    const Buffer<uint8_t> factors(factors_object, "factors", true);
    for (const Buffer<float>* buffer : {&x, &error, &residual}) buffer->expect_size(rows * cols);
    for (const Buffer<float>* buffer : {&start, &next}) buffer->expect_size(rank * cols);
    factors.expect_size(shape.bytes());
    const float narrow = checked_weight(decay);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    power_step(kernels, shape, x.data(), error.data(), narrow, start.data(), factors.data(), next.data(), residual.data());
}

void corrected(nb::handle x_object, nb::handle error_object, double decay, nb::handle out_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false), error(error_object, "error", false), out(out_object, "out", true);
    error.expect_size(x.size());
    out.expect_size(x.size());
    const float narrow = checked_weight(decay);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    kernels.matrix.corrected(x.data(), error.data(), x.size(), narrow, out.data());
}

void basis(nb::handle x_object, int64_t rows, int64_t cols, nb::handle basis_object, nb::handle norms_object,
           const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    checked_shape(rows, cols, 0, "fp32");
    const int64_t side = rows < cols ? rows : cols;
    const Buffer<float> x(x_object, "x", false);
    const Buffer<double> made(basis_object, "basis", true), norms(norms_object, "norms", true);
    x.expect_size(rows * cols);
    made.expect_size(side * side);
    norms.expect_size(side);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    spectral_basis(kernels, x.data(), rows, cols, made.data(), norms.data());
}

void atom(nb::handle x_object, int64_t rows, int64_t cols, nb::handle unit_object, double divisor, nb::handle out_object,
          const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    checked_shape(rows, cols, 0, "fp32");
    const Buffer<float> x(x_object, "x", false), out(out_object, "out", true);
    const Buffer<double> unit(unit_object, "unit", false);
    x.expect_size(rows * cols);
    unit.expect_size(rows < cols ? rows : cols);
    out.expect_size(rows < cols ? cols : rows);
    if (!(divisor > 0.0 && divisor <= 1.0)) throw nb::value_error("divisor must be above 0 and at most 1");
    WithoutGil unlocked;
    DefaultFloatEnv env;
    spectral_atom(kernels, x.data(), rows, cols, unit.data(), divisor, out.data());
}

}  // namespace

void bind_matrix(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("factors_sound", &sound, "factors"_a.none(), "rows"_a, "cols"_a, "rank"_a, "form"_a, "isa"_a.none() = nb::none());
    m.def("factors_product", &product, "factors"_a.none(), "rows"_a, "cols"_a, "rank"_a, "form"_a, "out"_a.none(),
          "weight"_a.none() = nb::none(), "isa"_a.none() = nb::none());
    m.def("power_step", &step, "x"_a.none(), "error"_a.none(), "decay"_a, "rows"_a, "cols"_a, "rank"_a, "form"_a,
          "start"_a.none(), "factors"_a.none(), "next"_a.none(), "residual"_a.none(), "isa"_a.none() = nb::none());
    m.def("corrected", &corrected, "x"_a.none(), "error"_a.none(), "decay"_a, "out"_a.none(), "isa"_a.none() = nb::none());
    m.def("spectral_basis", &basis, "x"_a.none(), "rows"_a, "cols"_a, "basis"_a.none(), "norms"_a.none(),
          "isa"_a.none() = nb::none());
    m.def("spectral_atom", &atom, "x"_a.none(), "rows"_a, "cols"_a, "unit"_a.none(), "divisor"_a, "out"_a.none(),
          "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
