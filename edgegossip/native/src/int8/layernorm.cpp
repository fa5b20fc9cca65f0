#include "int8/layernorm.hpp"

#include <cmath>

#include "runtime/parallel.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

// e^x for x <= 0, in doubles: the same operations on every machine, where a C library's may differ
// in the last bit.
double decay(double x) {
    if (!(x > -700.0)) return x <= -700.0 ? 0.0 : x;  // a NaN stays
    const double whole = std::floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - whole * 0.693147180369123816490) - whole * 1.90821492927058770002e-10;
    double sum = 1.0;
    for (int k = 13; k > 0; k--) sum = 1.0 + r / double(k) * sum;
    return std::ldexp(sum, int(whole));
}

struct Gelu {
    float value, slope;
};

// x Phi(x) and Phi(x) + x phi(x); Phi to 1e-7 (Abramowitz and Stegun 7.1.26).
Gelu gelu_of(float value) {
    const double x = double(value), size = std::fabs(x) * 0.70710678118654752440;
    const double bell = decay(-size * size), t = 1.0 / (1.0 + 0.3275911 * size);
    const double tail =
        ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t +
         0.254829592) *
        t * bell;
    const double below = x < 0.0 ? 0.5 * tail : 1.0 - 0.5 * tail;
    return {float(x * below), float(below + x * bell * 0.39894228040143267794)};
}

struct CodeRange {
    int low, high;
};

CodeRange codes_of(const int8_t* q, int64_t size) {
    int8_t low = q[0], high = q[0];
    for (int64_t i = 1; i < size; i++) {
        low = std::min(low, q[i]);
        high = std::max(high, q[i]);
    }
    return {low, high};
}

}  // namespace

void layernorm_forward(const Int8& kernels, const LayerNormShape& s, const Maps& y,
                       const float* gamma, const float* beta, LayerRange range,
                       const WritableMaps& out, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        coding::Scratch<float>& values = conv_work().values;
        values.need(s.size());
        const TokenNorm by{s.features,    s.chunks, y.scale[n], range.factor,
                           range.epsilon, gamma,    beta};
        for (int64_t k = 0; k < s.size(); k += s.features)
            kernels.layernorm(y.q + n * s.size() + k, by, values.data() + k);
        const Affine to = kernels.quantise(values.data(), s.size(), out.q + n * s.size());
        out.scale[n] = to.scale;
        out.zero[n] = to.zero;
    });
}

void layernorm_backward(const Int8& kernels, const LayerNormShape& s, const Maps& y,
                        const float* gamma, LayerRange range, const float* g,
                        const LayerNormGradients& out, int threads) {
    std::vector<float> rows(size_t(s.batch * 2 * s.features));
    parallel_for(s.batch, threads, [&](int64_t n) {
        float *const of_gamma = rows.data() + 2 * n * s.features, *const of_beta =
                                                                      of_gamma + s.features;
        const TokenNorm by{s.features,    s.chunks, y.scale[n], range.factor,
                           range.epsilon, gamma,    nullptr};
        for (int64_t k = n * s.size(); k < (n + 1) * s.size(); k += s.features)
            kernels.layernorm_backward(y.q + k, by, g + k, out.y + k, of_gamma, of_beta);
    });
    for (int64_t j = 0; j < s.features; j++) {
        float of_gamma = 0.0f, of_beta = 0.0f;
        for (int64_t n = 0; n < s.batch; n++) {
            of_gamma += rows[size_t(2 * n * s.features + j)];
            of_beta += rows[size_t((2 * n + 1) * s.features + j)];
        }
        out.gamma[j] = of_gamma;
        out.beta[j] = of_beta;
    }
}

void gelu_forward(const Int8& kernels, const Maps& x, int64_t batch, int64_t size,
                  const WritableMaps& out, int threads) {
    parallel_for(batch, threads, [&](int64_t n) {
        const int8_t* const from = x.q + n * size;
        const CodeRange seen = codes_of(from, size);
        float values[256] = {};  // 0 for codes that do not occur, which moves no extreme
        for (int code = seen.low; code <= seen.high; code++)
            values[code + 128] = gelu_of(float(code - x.zero[n]) * x.scale[n]).value;
        int8_t codes[256];
        const Affine to = kernels.quantise(values, 256, codes);
        out.scale[n] = to.scale;
        out.zero[n] = to.zero;
        int8_t* const made = out.q + n * size;
        for (int64_t i = 0; i < size; i++) made[i] = codes[from[i] + 128];
    });
}

void gelu_backward(const Maps& x, int64_t batch, int64_t size, const float* g, float* dx,
                   int threads) {
    parallel_for(batch, threads, [&](int64_t n) {
        const int8_t* const from = x.q + n * size;
        float slopes[256];
        for (int code = 0; code < 256; code++)
            slopes[code] = gelu_of(float(code - 128 - x.zero[n]) * x.scale[n]).slope;
        for (int64_t i = n * size; i < (n + 1) * size; i++)
            dx[i] = g[i] * slopes[from[i - n * size] + 128];
    });
}

}  // namespace edgegossip
