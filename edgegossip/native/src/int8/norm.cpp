#include "int8/norm.hpp"

#include <cmath>

#include "runtime/parallel.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

constexpr float EPSILON = 1e-5f;

// C / chunks, C = 0.175 (1 + sqrt(pi ln 4)) / sqrt(2 ln n), n the values in a chunk: R is the sum over chunks times this, less C.
double range_factor(const NormShape& s) {
    const double n = double(std::max<int64_t>(2, s.pixels / s.chunks * (s.channels / s.groups)));
    const double c = 0.175 * (1.0 + std::sqrt(M_PI * std::log(4.0))) / std::sqrt(2.0 * std::log(n));
    return c / double(s.chunks);
}

struct NormWork {
    coding::Scratch<float> values, sums, gradient;
    std::vector<int8_t> high, low, extremes;
    std::vector<int32_t> counts;  // ties by place in a row
    std::vector<float> slope, gain, shares, inverse, of_range;
    Repeated per;
};

NormWork& norm_work() {
    static thread_local NormWork work;
    return work;
}

struct EvoNorm {
    const Int8& kernels;
    const NormShape& s;
    const Maps& y;
    const NormParameters& with;
    float factor;  // of the sum of ranges

    int64_t chunk() const { return s.pixels / s.chunks; }
    int64_t each() const { return s.channels / s.groups; }
    const int8_t* sample(int64_t n) const { return y.q + n * s.size(); }

    // Extremes by (chunk, channel) become those by (chunk, group), in every channel of the group; inverse[group] = 1 / (C R + eps).
    void ranges(int64_t n, NormWork& w) const {
        w.high.resize(size_t(s.chunks * s.channels));
        w.low.resize(w.high.size());
        w.inverse.resize(size_t(s.groups));
        kernels.extremes(sample(n), s.pixels, s.channels, chunk(), w.high.data(), w.low.data());
        kernels.group_extremes(w.high.data(), w.low.data(), s.chunks * s.channels, each());
        for (int64_t group = 0; group < s.groups; group++) {
            int32_t spread = 0;
            for (int64_t k = group * each(); k < s.chunks * s.channels; k += s.channels) spread += w.high[size_t(k)] - w.low[size_t(k)];
            w.inverse[size_t(group)] = 1.0f / (y.scale[n] * float(spread) * factor + EPSILON);
        }
    }

    // gain = gamma / (C R + eps), slope = v / 6.
    void constants(NormWork& w) const {
        std::vector<float>& gain = w.gain;
        gain.resize(size_t(s.channels));
        for (int64_t group = 0, c = 0; group < s.groups; group++)
            for (const int64_t last = c + each(); c < last; c++) gain[size_t(c)] = with.gamma[c] * w.inverse[size_t(group)];
        w.per.resize(s.channels);
        w.per.set_scale(gain.data(), 1.0f);
        w.per.set_shift(with.beta);
        const int64_t times = w.per.view().times;
        w.slope.resize(size_t(s.channels * times));
        for (int64_t t = 0; t < times; t++)
            for (int64_t c = 0; c < s.channels; c++) w.slope[size_t(t * s.channels + c)] = with.v[c] * (1.0f / 6.0f);
    }

    void forward(int64_t n, int8_t* q, float* scale, int32_t* zero) const {
        NormWork& w = norm_work();
        ranges(n, w);
        constants(w);
        w.values.need(s.size());
        const Affine to = kernels.evonorm(sample(n), {y.scale[n], y.zero[n]}, s.pixels, w.per.view(), w.slope.data(), w.values.data(),
                                          q + n * s.size());
        scale[n] = to.scale;
        zero[n] = to.zero;
    }

    // rows: this sample's sums of v, gamma, beta, float[3][channels].
    void backward(int64_t n, const float* g, float* d, float* rows) const {
        NormWork& w = norm_work();
        ranges(n, w);
        constants(w);
        const PerChannel per = w.per.view();
        w.sums.need(3 * s.channels * per.times);
        kernels.evonorm_backward(sample(n), {y.scale[n], y.zero[n]}, g, s.pixels, per, w.slope.data(), d, w.sums.data());
        const auto folded = [&](int64_t which, int64_t c) {
            const float* const lanes = w.sums.data() + which * s.channels * per.times + c;
            float total = lanes[0];
            for (int64_t k = 1; k < per.times; k++) total += lanes[k * s.channels];
            return total;
        };
        std::vector<float> of_inverse(size_t(s.groups), 0.0f);
        for (int64_t c = 0; c < s.channels; c++) {
            const float value = folded(1, c);
            rows[c] = folded(2, c) * (1.0f / 6.0f);
            rows[s.channels + c] = value * w.inverse[size_t(c / each())];
            rows[2 * s.channels + c] = folded(0, c);
            of_inverse[size_t(c / each())] += value * with.gamma[c];
        }
        add_range(n, of_inverse, d, w);
    }

    // The gradient of the ranges, in equal parts to the values that tie.
    void add_range(int64_t n, const std::vector<float>& of_inverse, float* d, NormWork& w) const {
        const int64_t times = chunk() % w.per.view().times == 0 ? w.per.view().times : 1, room = 2 * times * s.channels;
        w.extremes.resize(size_t(room));
        w.counts.resize(size_t(room));
        w.shares.resize(size_t(room));
        w.of_range.resize(size_t(s.channels));
        for (int64_t group = 0; group < s.groups; group++) {
            const float r = w.inverse[size_t(group)];
            std::fill_n(w.of_range.data() + group * each(), each(), -factor * r * r * of_inverse[size_t(group)]);
        }
        kernels.range_gradient({sample(n), s.chunks, chunk(), s.channels, each(), times, w.high.data(), w.low.data(), w.of_range.data(),
                                w.extremes.data(), w.counts.data(), w.shares.data()}, d);
    }
};

}  // namespace

void add_rows(const NormShape& s, const std::vector<float>& rows, const NormGradients& out) {
    float* const to[] = {out.v, out.gamma, out.beta};
    for (int64_t which = 0; which < 3; which++)
        for (int64_t c = 0; c < s.channels; c++) {
            float total = 0.0f;
            for (int64_t n = 0; n < s.batch; n++) total += rows[size_t((n * 3 + which) * s.channels + c)];
            to[which][c] = total;
        }
}

void evonorm_forward(const Int8& kernels, const NormShape& s, const Maps& y, const NormParameters& with, int8_t* q, float* scale,
                     int32_t* zero, int threads) {
    const EvoNorm norm{kernels, s, y, with, float(range_factor(s))};
    parallel_for(s.batch, threads, [&](int64_t n) { norm.forward(n, q, scale, zero); });
}

void evonorm_backward(const Int8& kernels, const NormShape& s, const Maps& y, const NormParameters& with, const float* g,
                      const NormGradients& out, int threads) {
    const EvoNorm norm{kernels, s, y, with, float(range_factor(s))};
    std::vector<float> rows(size_t(s.batch * 3 * s.channels));
    parallel_for(s.batch, threads, [&](int64_t n) {
        norm.backward(n, g + n * s.size(), out.y + n * s.size(), rows.data() + n * 3 * s.channels);
    });
    add_rows(s, rows, out);
}

struct EvoNormGradient::Parts {
    NormShape shape;
    Maps y;
    NormParameters with;
    const float* g;
    EvoNorm norm;
    std::vector<float> rows;

    Parts(const Int8& kernels, const NormShape& s, const Maps& maps, const NormParameters& parameters, const float* gradient)
        : shape(s), y(maps), with(parameters), g(gradient), norm{kernels, shape, y, with, float(range_factor(s))},
          rows(size_t(s.batch * 3 * s.channels)) {}
};

EvoNormGradient::EvoNormGradient(const Int8& kernels, const NormShape& s, const Maps& y, const NormParameters& with, const float* g)
    : parts_(new Parts(kernels, s, y, with, g)) {}

EvoNormGradient::~EvoNormGradient() = default;

const float* EvoNormGradient::sample(int64_t n) const {
    const NormShape& s = parts_->shape;
    coding::Scratch<float>& to = norm_work().gradient;
    to.need(s.size());
    parts_->norm.backward(n, parts_->g + n * s.size(), to.data(), parts_->rows.data() + n * 3 * s.channels);
    return to.data();
}

void EvoNormGradient::parameters(float* v, float* gamma, float* beta) const {
    add_rows(parts_->shape, parts_->rows, {nullptr, v, gamma, beta});
}

}  // namespace edgegossip
