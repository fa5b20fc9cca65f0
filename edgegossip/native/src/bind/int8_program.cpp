#include "int8/program.hpp"

#include "bind/gil.hpp"
#include "bind/int8_shapes.hpp"

namespace edgegossip {
namespace {

void check_floats(const Buffer<float>& buffer, int64_t size) { buffer.expect_size(size); }

Program::Value conv(Program& self, int64_t x, const Numbers& numbers, nb::handle weight_object, nb::handle bias_object, bool as_floats) {
    const ConvShape s = conv_shape(numbers);
    const Buffer<float> weight(weight_object, "weight", false);
    check_floats(weight, s.weights());
    DefaultFloatEnv env;
    if (bias_object.is_none()) return self.conv(x, s, weight.data(), nullptr, as_floats);
    const Buffer<float> bias(bias_object, "bias", false);
    check_floats(bias, s.out);
    return self.conv(x, s, weight.data(), bias.data(), as_floats);
}

Program::Value evonorm(Program& self, int64_t y, const Numbers& numbers, nb::handle v_object, nb::handle gamma_object, nb::handle beta_object) {
    const NormShape s = norm_shape(numbers);
    const Buffer<float> v(v_object, "v", false), gamma(gamma_object, "gamma", false), beta(beta_object, "beta", false);
    for (const Buffer<float>* b : {&v, &gamma, &beta}) check_floats(*b, s.channels);
    return self.evonorm(y, s, {v.data(), gamma.data(), beta.data()});
}

void run(const Program& self, nb::handle x_object, int64_t batch, nb::handle out_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    if (!self.has_ended()) throw nb::value_error("the program has no end");
    if (batch < 1) throw nb::value_error("the batch must be positive");
    const Buffer<float> x(x_object, "x", false), out(out_object, "out", true);
    check_floats(x, bounded({batch, self.in_size()}));
    check_floats(out, bounded({batch, self.out_size()}));
    WithoutGil unlocked;
    DefaultFloatEnv env;
    self.run(x.data(), batch, out.data(), threads);
}

}  // namespace

void bind_int8_program(nb::module_& m) {
    nb::class_<Program>(m, "Int8Program")
        .def("__init__",
             [](Program* self, int64_t size, const Name& isa) {
                 bounded({size < 1 ? LARGEST + 1 : size});
                 new (self) Program(*choose(isa).int8, size);
             },
             nb::arg("size"), nb::arg("isa").none() = nb::none())
        .def("quantise", &Program::quantise, nb::arg("x"))
        .def("conv", &conv, nb::arg("x"), nb::arg("shape"), nb::arg("weight").none(), nb::arg("bias").none(), nb::arg("as_floats"))
        .def("evonorm", &evonorm, nb::arg("y"), nb::arg("shape"), nb::arg("v").none(), nb::arg("gamma").none(), nb::arg("beta").none())
        .def("add", &Program::add, nb::arg("a"), nb::arg("b"))
        .def("relu", &Program::relu, nb::arg("x"))
        .def("max_pool",
             [](Program& self, int64_t x, const Numbers& numbers) {
                 const PoolShape s = pool_shape(numbers);
                 if (s.kernel_h * s.kernel_w > 256) throw nb::value_error("a window has at most 256 places");
                 return self.max_pool(x, s);
             },
             nb::arg("x"), nb::arg("shape"))
        .def("average_pool", [](Program& self, int64_t x, const Numbers& numbers, bool count_padding) {
                 return self.average_pool(x, pool_shape(numbers), count_padding);
             },
             nb::arg("x"), nb::arg("shape"), nb::arg("count_padding"))
        .def("pad", [](Program& self, int64_t x, const Numbers& numbers) { return self.pad(x, pad_shape(numbers)); }, nb::arg("x"), nb::arg("shape"))
        .def("slice", [](Program& self, int64_t x, const Numbers& numbers) { return self.slice(x, slice_shape(numbers)); }, nb::arg("x"),
             nb::arg("shape"))
        .def("flatten", &Program::flatten, nb::arg("x"), nb::arg("channels"))
        .def("end", &Program::end, nb::arg("x"))
        .def("run", &run, nb::arg("x").none(), nb::arg("batch"), nb::arg("out").none(), nb::arg("threads").none() = nb::none());
}

}  // namespace edgegossip
