#include "bind/gil.hpp"
#include "bind/int8_shapes.hpp"

namespace edgegossip {
namespace {

// q, k and v of a call of attention, its mask and what is dropped.
struct AttentionBuffers {
    AttentionShape shape;
    MapBuffers q, k, v;
    std::optional<Buffer<uint8_t>> seen;
    Attention of;

    AttentionBuffers(const Numbers& numbers, const std::vector<nb::object>& maps,
                     nb::handle seen_object, const Numbers& mask, double dropped, uint64_t key)
        : shape(attention_shape(numbers)),
          q(part(maps, 0), part(maps, 1), part(maps, 2), false, shape.batch, shape.query_size()),
          k(part(maps, 3), part(maps, 4), part(maps, 5), false, shape.batch, shape.key_size()),
          v(part(maps, 6), part(maps, 7), part(maps, 8), false, shape.batch, shape.key_size()) {
        KeyMask which{nullptr, 1, 1, 1};
        if (!seen_object.is_none()) {
            const Numbers whole = {shape.batch, shape.heads, shape.queries};
            if (mask.size() != 3) throw nb::value_error("a mask has three sizes");
            for (size_t d = 0; d < 3; d++)
                if (mask[d] != 1 && mask[d] != whole[d])
                    throw nb::value_error("a size of a mask is 1 or that of the attention");
            seen.emplace(seen_object, "seen", false);
            seen->expect_size(mask[0] * mask[1] * mask[2] * shape.keys);
            which = {seen->data(), mask[0], mask[1], mask[2]};
        }
        if (!(dropped >= 0.0 && dropped < 1.0))
            throw nb::value_error("the share that is dropped must lie in 0 .. 1, without 1");
        of = {shape,    q.view(), k.view(),
              v.view(), which,    {uint32_t(dropped * 4294967296.0), float(1.0 / (1.0 - dropped))},
              key};
    }

private:
    static nb::handle part(const std::vector<nb::object>& maps, size_t which) {
        if (maps.size() != 9) throw nb::value_error("q, k and v have three parts each");
        return maps[which];
    }
};

void attention(const Numbers& numbers, const std::vector<nb::object>& maps, nb::handle seen,
               const Numbers& mask, double dropped, uint64_t key, nb::handle out_object,
               const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const AttentionBuffers given(numbers, maps, seen, mask, dropped, key);
    const Buffer<float> out(out_object, "out", true);
    out.expect_size(given.shape.batch * given.shape.query_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    attention_forward(kernels, given.of, out.data(), threads);
}

void attention_back(const Numbers& numbers, const std::vector<nb::object>& maps, nb::handle seen,
                    const Numbers& mask, double dropped, uint64_t key, nb::handle g_object,
                    nb::handle dq_object, nb::handle dk_object, nb::handle dv_object,
                    const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const AttentionBuffers given(numbers, maps, seen, mask, dropped, key);
    const Buffer<float> g(g_object, "g", false), dq(dq_object, "dq", true),
        dk(dk_object, "dk", true), dv(dv_object, "dv", true);
    for (const Buffer<float>* b : {&g, &dq})
        b->expect_size(given.shape.batch * given.shape.query_size());
    for (const Buffer<float>* b : {&dk, &dv})
        b->expect_size(given.shape.batch * given.shape.key_size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    attention_backward(kernels, given.of, g.data(), dq.data(), dk.data(), dv.data(), threads);
}

void layernorm(const Numbers& numbers, nb::handle y_q, nb::handle y_scale, nb::handle y_zero,
               nb::handle gamma_object, nb::handle beta_object, double factor, double epsilon,
               nb::handle q_object, nb::handle scale_object, nb::handle zero_object,
               const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const LayerNormShape s = layernorm_shape(numbers);
    const MapBuffers y(y_q, y_scale, y_zero, false, s.batch, s.size()),
        out(q_object, scale_object, zero_object, true, s.batch, s.size());
    const Buffer<float> gamma(gamma_object, "gamma", false), beta(beta_object, "beta", false);
    for (const Buffer<float>* b : {&gamma, &beta}) b->expect_size(s.features);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    layernorm_forward(kernels, s, y.view(), gamma.data(), beta.data(),
                      {float(factor), float(epsilon)}, out.writable(), threads);
}

void layernorm_back(const Numbers& numbers, nb::handle y_q, nb::handle y_scale, nb::handle y_zero,
                    nb::handle gamma_object, double factor, double epsilon, nb::handle g_object,
                    nb::handle dy_object, nb::handle dgamma_object, nb::handle dbeta_object,
                    const Name& isa_name, std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const LayerNormShape s = layernorm_shape(numbers);
    const MapBuffers y(y_q, y_scale, y_zero, false, s.batch, s.size());
    const Buffer<float> gamma(gamma_object, "gamma", false), g(g_object, "g", false),
        dy(dy_object, "dy", true), dgamma(dgamma_object, "dgamma", true),
        dbeta(dbeta_object, "dbeta", true);
    for (const Buffer<float>* b : {&gamma, &dgamma, &dbeta}) b->expect_size(s.features);
    for (const Buffer<float>* b : {&g, &dy}) b->expect_size(s.batch * s.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    layernorm_backward(kernels, s, y.view(), gamma.data(), {float(factor), float(epsilon)},
                       g.data(), {dy.data(), dgamma.data(), dbeta.data()}, threads);
}

int64_t sample_size(int64_t total, int64_t batch) {
    if (batch < 1 || total < 1 || total % batch != 0)
        throw nb::value_error("the batch must divide the maps");
    return total / batch;
}

void gelu(nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle q_object,
          nb::handle scale_object, nb::handle zero_object, const Name& isa_name,
          std::optional<int> threads_argument) {
    const Int8& kernels = kernels_of(isa_name);
    const int threads = choose_threads(threads_argument);
    const int64_t batch = Buffer<float>(x_scale, "scale", false).size(),
                  size = sample_size(Buffer<int8_t>(x_q, "q", false).size(), batch);
    const MapBuffers x(x_q, x_scale, x_zero, false, batch, size),
        out(q_object, scale_object, zero_object, true, batch, size);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    gelu_forward(kernels, x.view(), batch, size, out.writable(), threads);
}

void gelu_back(nb::handle x_q, nb::handle x_scale, nb::handle x_zero, nb::handle g_object,
               nb::handle dx_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const int64_t batch = Buffer<float>(x_scale, "scale", false).size(),
                  size = sample_size(Buffer<int8_t>(x_q, "q", false).size(), batch);
    const MapBuffers x(x_q, x_scale, x_zero, false, batch, size);
    const Buffer<float> g(g_object, "g", false), dx(dx_object, "dx", true);
    for (const Buffer<float>* b : {&g, &dx}) b->expect_size(batch * size);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    gelu_backward(x.view(), batch, size, g.data(), dx.data(), threads);
}

}  // namespace

void bind_int8_sequences(nb::module_& m) {
    using nb::literals::operator""_a;
    const auto isa = "isa"_a.none() = nb::none();
    const auto threads = "threads"_a.none() = nb::none();
    m.def("int8_attention", &attention, "shape"_a, "maps"_a, "seen"_a.none(), "mask"_a, "dropped"_a,
          "key"_a, "out"_a.none(), isa, threads);
    m.def("int8_attention_backward", &attention_back, "shape"_a, "maps"_a, "seen"_a.none(),
          "mask"_a, "dropped"_a, "key"_a, "g"_a.none(), "dq"_a.none(), "dk"_a.none(), "dv"_a.none(),
          isa, threads);
    m.def("int8_layernorm", &layernorm, "shape"_a, "y_q"_a.none(), "y_scale"_a.none(),
          "y_zero"_a.none(), "gamma"_a.none(), "beta"_a.none(), "factor"_a, "epsilon"_a,
          "q"_a.none(), "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_layernorm_backward", &layernorm_back, "shape"_a, "y_q"_a.none(), "y_scale"_a.none(),
          "y_zero"_a.none(), "gamma"_a.none(), "factor"_a, "epsilon"_a, "g"_a.none(), "dy"_a.none(),
          "dgamma"_a.none(), "dbeta"_a.none(), isa, threads);
    m.def("int8_gelu", &gelu, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(), "q"_a.none(),
          "scale"_a.none(), "zero"_a.none(), isa, threads);
    m.def("int8_gelu_backward", &gelu_back, "x_q"_a.none(), "x_scale"_a.none(), "x_zero"_a.none(),
          "g"_a.none(), "dx"_a.none(), threads);
}

}  // namespace edgegossip
