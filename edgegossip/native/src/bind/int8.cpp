// Layers on int8 maps, forward and backward, for edgegossip/native/int8.py. Each function reads its arguments into buffers
// whose sizes are checked against the shape (bind/int8_shapes.hpp), gives up the GIL, and calls the driver of the same layer
// in int8/. What a map is, is three arguments: q, scale and zero.
#include "bind/gil.hpp"
#include "bind/int8_shapes.hpp"
#include "int8/evonorm_s0.hpp"

namespace edgegossip {
namespace {

void quantise(nb::handle x_object, int64_t batch, nb::handle q_object, nb::handle scale_object, nb::handle zero_object,
              const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const Buffer<float> x(x_object, "x", false);
    if (batch < 1 || x.size() % batch != 0) throw nb::value_error("the batch must divide x");
    const int64_t size = x.size() / batch;
    const MapBuffers out(q_object, scale_object, zero_object, true, batch, size);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    quantise_maps(kernels, x.data(), batch, size, out.q.data(), out.scale.data(), out.zero.data(), threads);
}

void add(nb::handle a_q, nb::handle a_scale, nb::handle a_zero, nb::handle b_q, nb::handle b_scale, nb::handle b_zero,
         nb::handle q_object, nb::handle scale_object, nb::handle zero_object, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const int64_t total = Buffer<int8_t>(a_q, "q", false).size(), batch = Buffer<float>(a_scale, "scale", false).size();
    if (batch < 1 || total % batch != 0) throw nb::value_error("the batch must divide the maps");
    const int64_t size = total / batch;
    const MapBuffers a(a_q, a_scale, a_zero, false, batch, size), b(b_q, b_scale, b_zero, false, batch, size);
    const MapBuffers out(q_object, scale_object, zero_object, true, batch, size);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    add_maps(kernels, a.view(), b.view(), batch, size, out.q.data(), out.scale.data(), out.zero.data(), threads);
}

void conv(const Numbers& numbers, nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle weight_object, nb::handle bias_object,
          nb::handle q_object, nb::handle scale_object, nb::handle zero_object, nb::handle values_object, const Name& isa_name,
          std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const ConvShape s = conv_shape(numbers);
    const MapBuffers x(x_q, x_scale, x_zero, false, s.batch, s.in_size());
    const Buffer<float> weight(weight_object, "weight", false);
    weight.expect_size(s.weights());
    const MaybeFloats bias(bias_object, "bias", false, s.out), values(values_object, "values", true, s.batch * s.out_size());
    std::optional<MapBuffers> out;
    if (values.data() == nullptr) out.emplace(q_object, scale_object, zero_object, true, s.batch, s.out_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    conv_forward(kernels, s, x.view(), weight.data(), bias.data(), out ? out->q.data() : nullptr, out ? out->scale.data() : nullptr,
                 out ? out->zero.data() : nullptr, values.data(), threads);
}

void conv_back(const Numbers& numbers, nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle weight_object, nb::handle g_object,
               uint64_t key, bool wide, nb::handle dx_object, nb::handle dw_object, nb::handle db_object, const Name& isa_name,
               std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const ConvShape s = conv_shape(numbers);
    const MapBuffers x(x_q, x_scale, x_zero, false, s.batch, s.in_size());
    const Buffer<float> weight(weight_object, "weight", false), g(g_object, "g", false);
    weight.expect_size(s.weights());
    g.expect_size(s.batch * s.out_size());
    const MaybeFloats dx(dx_object, "dx", true, s.batch * s.in_size()), dw(dw_object, "dw", true, s.weights()), db(db_object, "db", true, s.out);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    conv_backward(kernels, s, x.view(), weight.data(), ArrayGradient(g.data(), s.out_size()), key, wide, {dx.data(), dw.data(), db.data()},
                  threads);
}

struct NormBuffers {
    Buffer<float> v, gamma, beta;
    NormBuffers(nb::handle v_object, nb::handle gamma_object, nb::handle beta_object, bool writable, int64_t channels)
        : v(v_object, "v", writable), gamma(gamma_object, "gamma", writable), beta(beta_object, "beta", writable) {
        for (const Buffer<float>* b : {&v, &gamma, &beta}) b->expect_size(channels);
    }
};

void evonorm(const Numbers& numbers, nb::handle y_q, nb::handle y_scale, nb::handle y_zero, nb::handle v, nb::handle gamma, nb::handle beta,
          nb::handle q_object, nb::handle scale_object, nb::handle zero_object, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const NormShape s = norm_shape(numbers);
    const MapBuffers y(y_q, y_scale, y_zero, false, s.batch, s.size()), out(q_object, scale_object, zero_object, true, s.batch, s.size());
    const NormBuffers with(v, gamma, beta, false, s.channels);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    evonorm_forward(kernels, s, y.view(), {with.v.data(), with.gamma.data(), with.beta.data()}, out.q.data(), out.scale.data(),
                    out.zero.data(), threads);
}

void evonorm_back(const Numbers& numbers, nb::handle y_q, nb::handle y_scale, nb::handle y_zero, nb::handle v, nb::handle gamma,
               nb::handle beta, nb::handle g_object, nb::handle dy_object, nb::handle dv, nb::handle dgamma, nb::handle dbeta,
               const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const NormShape s = norm_shape(numbers);
    const MapBuffers y(y_q, y_scale, y_zero, false, s.batch, s.size());
    const NormBuffers with(v, gamma, beta, false, s.channels), out(dv, dgamma, dbeta, true, s.channels);
    const Buffer<float> g(g_object, "g", false), dy(dy_object, "dy", true);
    for (const Buffer<float>* b : {&g, &dy}) b->expect_size(s.batch * s.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    evonorm_backward(kernels, s, y.view(), {with.v.data(), with.gamma.data(), with.beta.data()}, g.data(),
                     {dy.data(), out.v.data(), out.gamma.data(), out.beta.data()}, threads);
}

void evonorm_s0(const Numbers& numbers, nb::handle y_object, nb::handle v, nb::handle gamma, nb::handle beta, nb::handle z_object,
                nb::handle moments_object, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const NormShape s = norm_shape(numbers);
    const Buffer<float> y(y_object, "y", false), z(z_object, "z", true), moments(moments_object, "moments", true);
    for (const Buffer<float>* b : {&y, &z}) b->expect_size(s.batch * s.size());
    moments.expect_size(s.batch * 2 * s.groups);
    const NormBuffers with(v, gamma, beta, false, s.channels);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    evonorm_s0_forward(kernels, s, y.data(), {with.v.data(), with.gamma.data(), with.beta.data()}, z.data(), moments.data(), threads);
}

void evonorm_s0_back(const Numbers& numbers, nb::handle y_object, nb::handle v, nb::handle gamma, nb::handle beta,
                     nb::handle moments_object, nb::handle g_object, nb::handle dy_object, nb::handle dv, nb::handle dgamma,
                     nb::handle dbeta, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const NormShape s = norm_shape(numbers);
    const Buffer<float> y(y_object, "y", false), g(g_object, "g", false), dy(dy_object, "dy", true),
        moments(moments_object, "moments", false);
    for (const Buffer<float>* b : {&y, &g, &dy}) b->expect_size(s.batch * s.size());
    moments.expect_size(s.batch * 2 * s.groups);
    const NormBuffers with(v, gamma, beta, false, s.channels), out(dv, dgamma, dbeta, true, s.channels);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    evonorm_s0_backward(kernels, s, y.data(), {with.v.data(), with.gamma.data(), with.beta.data()}, moments.data(), g.data(),
                        {dy.data(), out.v.data(), out.gamma.data(), out.beta.data()}, threads);
}

NormShape norm_shape_of_output(const Numbers& numbers, const ConvShape& s) {
    const NormShape n = norm_shape(numbers);
    if (n.batch != s.batch || n.pixels != s.pixels() || n.channels != s.out)
        throw nb::value_error("the norm's shape is not that of the convolution's output");
    return n;
}

void conv_evonorm(const Numbers& conv_numbers, nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle weight_object,
               nb::handle bias_object, nb::handle y_q, nb::handle y_scale, nb::handle y_zero, const Numbers& norm_numbers, nb::handle v,
               nb::handle gamma, nb::handle beta, nb::handle q_object, nb::handle scale_object, nb::handle zero_object, const Name& isa_name,
               std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const ConvShape s = conv_shape(conv_numbers);
    const NormShape n = norm_shape_of_output(norm_numbers, s);
    const MapBuffers x(x_q, x_scale, x_zero, false, s.batch, s.in_size());
    const Buffer<float> weight(weight_object, "weight", false);
    weight.expect_size(s.weights());
    const MaybeFloats bias(bias_object, "bias", false, s.out);
    const NormBuffers with(v, gamma, beta, false, n.channels);
    const MapBuffers y(y_q, y_scale, y_zero, true, s.batch, s.out_size()), z(q_object, scale_object, zero_object, true, s.batch, s.out_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    conv_evonorm_forward(kernels, s, x.view(), weight.data(), bias.data(), y.writable(), n,
                         {with.v.data(), with.gamma.data(), with.beta.data()}, z.writable(), threads);
}

void conv_evonorm_back(const Numbers& conv_numbers, nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle weight_object,
                    const Numbers& norm_numbers, nb::handle y_q, nb::handle y_scale, nb::handle y_zero, nb::handle v, nb::handle gamma,
                    nb::handle beta, nb::handle g_object, uint64_t key, bool wide, nb::handle dx_object, nb::handle dw_object,
                    nb::handle db_object, nb::handle dv, nb::handle dgamma, nb::handle dbeta, const Name& isa_name,
                    std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const ConvShape s = conv_shape(conv_numbers);
    const NormShape n = norm_shape_of_output(norm_numbers, s);
    const MapBuffers x(x_q, x_scale, x_zero, false, s.batch, s.in_size()), y(y_q, y_scale, y_zero, false, s.batch, s.out_size());
    const Buffer<float> weight(weight_object, "weight", false), g(g_object, "g", false);
    weight.expect_size(s.weights());
    g.expect_size(s.batch * s.out_size());
    const NormBuffers with(v, gamma, beta, false, n.channels), out(dv, dgamma, dbeta, true, n.channels);
    const MaybeFloats dx(dx_object, "dx", true, s.batch * s.in_size()), dw(dw_object, "dw", true, s.weights()), db(db_object, "db", true, s.out);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    const EvoNormGradient gradient(kernels, n, y.view(), {with.v.data(), with.gamma.data(), with.beta.data()}, g.data());
    conv_backward(kernels, s, x.view(), weight.data(), gradient, key, wide, {dx.data(), dw.data(), db.data()}, threads);
    gradient.parameters(out.v.data(), out.gamma.data(), out.beta.data());
}

void max_pool_forward(const Numbers& numbers, nb::handle x_q, nb::handle q_object, nb::handle tap_object, const Name& isa_name,
                      std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const PoolShape s = pool_shape(numbers);
    if (s.kernel_h * s.kernel_w > 256) throw nb::value_error("a window has at most 256 places");
    const Buffer<int8_t> x(x_q, "x", false), q(q_object, "q", true);
    const Buffer<uint8_t> tap(tap_object, "tap", true);
    x.expect_size(s.batch * s.in_size());
    q.expect_size(s.batch * s.out_size());
    const int64_t outputs = s.batch * s.out_size();
    tap.expect_size(2 * outputs);
    WithoutGil unlocked;
    max_pool(kernels, s, Tie::LAST, x.data(), q.data(), tap.data() + outputs, threads);
    max_pool(kernels, s, Tie::FIRST, x.data(), q.data(), tap.data(), threads);
}

void max_pool_back(const Numbers& numbers, nb::handle tap_object, nb::handle g_object, nb::handle out_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const PoolShape s = pool_shape(numbers);
    const Buffer<uint8_t> tap(tap_object, "tap", false);
    const Buffer<float> g(g_object, "g", false), out(out_object, "out", true);
    const int64_t outputs = s.batch * s.out_size();
    tap.expect_size(2 * outputs);
    g.expect_size(outputs);
    out.expect_size(s.batch * s.in_size());
    const uint8_t *const first = tap.data(), *const last = first + outputs;
    WithoutGil unlocked;
    if (!taps_inside(s, first) || !taps_inside(s, last)) throw nb::value_error("a tap lies outside the map");
    max_pool_backward(s, first, last, g.data(), out.data(), threads);
}

void average_pool_forward(const Numbers& numbers, nb::handle x_q, nb::handle x_scale, nb::handle x_zero, bool count_padding, nb::handle out_object,
             std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const PoolShape s = pool_shape(numbers);
    const MapBuffers x(x_q, x_scale, x_zero, false, s.batch, s.in_size());
    const Buffer<float> out(out_object, "out", true);
    out.expect_size(s.batch * s.out_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    average_pool(s, x.view(), count_padding, out.data(), threads);
}

void average_pool_back(const Numbers& numbers, nb::handle g_object, bool count_padding, nb::handle out_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const PoolShape s = pool_shape(numbers);
    const Buffer<float> g(g_object, "g", false), out(out_object, "out", true);
    g.expect_size(s.batch * s.out_size());
    out.expect_size(s.batch * s.in_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    average_pool_backward(s, g.data(), count_padding, out.data(), threads);
}

// The ids of a batch are rows of the table.
void check_ids(const Buffer<int64_t>& ids, const EmbeddingShape& s) {
    ids.expect_size(s.batch * s.length);
    for (int64_t k = 0; k < s.batch * s.length; k++)
        if (ids.data()[k] < 0 || ids.data()[k] >= s.rows) throw nb::value_error("ids must lie in 0 .. rows - 1");
}

void embedding(const Numbers& numbers, nb::handle ids_object, nb::handle table_object, nb::handle q_object, nb::handle scale_object,
           nb::handle zero_object, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const EmbeddingShape s = embedding_shape(numbers);
    const Buffer<int64_t> ids(ids_object, "ids", false);
    check_ids(ids, s);
    const Buffer<float> table(table_object, "table", false);
    table.expect_size(s.rows * s.width);
    const MapBuffers out(q_object, scale_object, zero_object, true, s.batch, s.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    embedding_forward(kernels, s, ids.data(), table.data(), out.q.data(), out.scale.data(), out.zero.data(), threads);
}

void embedding_back(const Numbers& numbers, nb::handle ids_object, nb::handle g_object, uint64_t key, bool wide, int64_t padding,
                nb::handle dw_object, const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const EmbeddingShape s = embedding_shape(numbers);
    const Buffer<int64_t> ids(ids_object, "ids", false);
    check_ids(ids, s);
    const Buffer<float> g(g_object, "g", false), dw(dw_object, "dw", true);
    g.expect_size(s.batch * s.size());
    dw.expect_size(s.rows * s.width);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    embedding_backward(kernels, s, ids.data(), g.data(), key, wide, padding, dw.data(), threads);
}

}  // namespace

void bind_int8(nb::module_& m) {
    using nb::literals::operator""_a;
    const auto isa = "isa"_a.none() = nb::none();
    const auto threads = "threads"_a.none() = nb::none();
    m.def("int8_quantise", &quantise, "x"_a.none(), "batch"_a, "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_add", &add, "a_q"_a.none(), "a_scale"_a.none(), "a_zero"_a.none(), "b_q"_a.none(), "b_scale"_a.none(), "b_zero"_a.none(),
          "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_conv", &conv, "shape"_a, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "weight"_a.none(), "bias"_a.none(),
          "q"_a.none(), "scale"_a.none(), "zero"_a.none(), "values"_a.none(), isa, threads);
    m.def("int8_conv_backward", &conv_back, "shape"_a, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "weight"_a.none(),
          "g"_a.none(), "key"_a, "wide"_a, "dx"_a.none(), "dw"_a.none(), "db"_a.none(), isa, threads);
    m.def("int8_evonorm", &evonorm, "shape"_a, "y_q"_a.none(), "y_scale"_a.none(), "y_zero"_a.none(), "v"_a.none(), "gamma"_a.none(),
          "beta"_a.none(), "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_evonorm_backward", &evonorm_back, "shape"_a, "y_q"_a.none(), "y_scale"_a.none(), "y_zero"_a.none(), "v"_a.none(),
          "gamma"_a.none(), "beta"_a.none(), "g"_a.none(), "dy"_a.none(), "dv"_a.none(), "dgamma"_a.none(), "dbeta"_a.none(), isa, threads);
    m.def("evonorm_s0", &evonorm_s0, "shape"_a, "y"_a.none(), "v"_a.none(), "gamma"_a.none(), "beta"_a.none(), "z"_a.none(),
          "moments"_a.none(), isa, threads);
    m.def("evonorm_s0_backward", &evonorm_s0_back, "shape"_a, "y"_a.none(), "v"_a.none(), "gamma"_a.none(), "beta"_a.none(),
          "moments"_a.none(), "g"_a.none(), "dy"_a.none(), "dv"_a.none(), "dgamma"_a.none(), "dbeta"_a.none(), isa, threads);
    m.def("int8_conv_evonorm", &conv_evonorm, "shape"_a, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "weight"_a.none(),
          "bias"_a.none(), "y_q"_a.none(), "y_scale"_a.none(), "y_zero"_a.none(), "norm"_a, "v"_a.none(), "gamma"_a.none(), "beta"_a.none(),
          "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_conv_evonorm_backward", &conv_evonorm_back, "shape"_a, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "weight"_a.none(),
          "norm"_a, "y_q"_a.none(), "y_scale"_a.none(), "y_zero"_a.none(), "v"_a.none(), "gamma"_a.none(), "beta"_a.none(), "g"_a.none(),
          "key"_a, "wide"_a, "dx"_a.none(), "dw"_a.none(), "db"_a.none(), "dv"_a.none(), "dgamma"_a.none(), "dbeta"_a.none(), isa, threads);
    m.def("int8_max_pool", &max_pool_forward, "shape"_a, "x_q"_a.none(), "q"_a.none(), "tap"_a.none(), isa, threads);
    m.def("int8_max_pool_backward", &max_pool_back, "shape"_a, "tap"_a.none(), "g"_a.none(), "out"_a.none(), threads);
    m.def("int8_average_pool", &average_pool_forward, "shape"_a, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "count_padding"_a,
          "out"_a.none(), threads);
    m.def("int8_embedding", &embedding, "shape"_a, "ids"_a.none(), "table"_a.none(), "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_embedding_backward", &embedding_back, "shape"_a, "ids"_a.none(), "g"_a.none(), "key"_a, "wide"_a, "padding"_a, "dw"_a.none(), isa,
          threads);
    m.def("int8_average_pool_backward", &average_pool_back, "shape"_a, "g"_a.none(), "count_padding"_a, "out"_a.none(), threads);
}

}  // namespace edgegossip
