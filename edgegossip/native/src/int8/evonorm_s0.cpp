#include "int8/evonorm_s0.hpp"

#include <cmath>

#include "int8/work.hpp"
#include "runtime/parallel.hpp"

namespace edgegossip {

namespace {

constexpr double EPSILON = 1e-5;

struct S0Work {
    coding::Scratch<float> sums;
    std::vector<float> slope, gain, shift;
    Repeated per;
};

S0Work& s0_work() {
    static thread_local S0Work work;
    return work;
}

struct EvoNormS0 {
    const Int8& kernels;
    const NormShape& s;
    const NormParameters& with;

    int64_t each() const { return s.channels / s.groups; }

    // The sum of a channel's lanes.
    double folded(const S0Work& w, int64_t which, int64_t c) const {
        const int64_t times = w.per.view().times;
        const float* const lanes = w.sums.data() + which * s.channels * times + c;
        double total = 0.0;
        for (int64_t k = 0; k < times; k++) total += double(lanes[k * s.channels]);
        return total;
    }

    void by_group(std::vector<float>& to, const float* values) const {
        to.resize(size_t(s.channels));
        for (int64_t c = 0; c < s.channels; c++) to[size_t(c)] = values[c / each()];
    }

    // gain = gamma / sqrt(var + 1e-5), and v in every lane.
    void constants(const float* inverse, S0Work& w) const {
        w.gain.resize(size_t(s.channels));
        for (int64_t c = 0; c < s.channels; c++) w.gain[size_t(c)] = with.gamma[c] * inverse[c / each()];
        w.per.set_scale(w.gain.data(), 1.0f);
        w.per.set_shift(with.beta);
        const int64_t times = w.per.view().times;
        w.slope.resize(size_t(s.channels * times));
        for (int64_t t = 0; t < times; t++) std::copy_n(with.v, s.channels, w.slope.data() + t * s.channels);
    }

    void forward(const float* y, float* z, float* moments) const {
        S0Work& w = s0_work();
        w.per.resize(s.channels);
        w.sums.need(3 * s.channels * w.per.view().times);
        float *const mean = moments, *const inverse = moments + s.groups;
        const double values = double(s.pixels * each());
        const auto average = [&](int64_t group) {
            double total = 0.0;
            for (int64_t c = group * each(); c < (group + 1) * each(); c++) total += folded(w, 0, c);
            return total / values;
        };
        kernels.map_sums(y, s.pixels, w.per.view(), w.sums.data());
        for (int64_t group = 0; group < s.groups; group++) mean[group] = float(average(group));
        by_group(w.shift, mean);
        w.per.set_shift(w.shift.data());
        kernels.map_squares(y, s.pixels, w.per.view(), w.sums.data());
        for (int64_t group = 0; group < s.groups; group++) inverse[group] = float(1.0 / std::sqrt(average(group) + EPSILON));
        constants(inverse, w);
        kernels.evonorm_s0(y, s.pixels, w.per.view(), w.slope.data(), z);
    }

    // rows: this sample's sums of v, gamma, beta, float[3][channels].
    void backward(const float* y, const float* moments, const float* g, float* d, float* rows) const {
        S0Work& w = s0_work();
        w.per.resize(s.channels);
        w.sums.need(3 * s.channels * w.per.view().times);
        const float* const inverse = moments + s.groups;
        constants(inverse, w);
        kernels.evonorm_s0_backward(y, g, s.pixels, w.per.view(), w.slope.data(), d, w.sums.data());
        w.gain.assign(size_t(s.channels), 0.0f);
        for (int64_t group = 0; group < s.groups; group++) {
            const double r = double(inverse[group]);
            double of_inverse = 0.0;
            for (int64_t c = group * each(); c < (group + 1) * each(); c++) {
                const double value = folded(w, 1, c);
                of_inverse += value * double(with.gamma[c]);
                rows[c] = float(folded(w, 2, c));
                rows[s.channels + c] = float(value * r);
                rows[2 * s.channels + c] = float(folded(w, 0, c));
            }
            // d (1 / sqrt(var + eps)) / dy = -(y - mean) / (sqrt(var + eps)^3 values)
            const float through = float(of_inverse * r * r * r / double(s.pixels * each()));
            for (int64_t c = group * each(); c < (group + 1) * each(); c++) w.gain[size_t(c)] = through;
        }
        by_group(w.shift, moments);
        w.per.set_scale(w.gain.data(), 1.0f);
        w.per.set_shift(w.shift.data());
        kernels.subtract_centred(y, s.pixels, w.per.view(), d);
    }
};

}  // namespace

void evonorm_s0_forward(const Int8& kernels, const NormShape& s, const float* y, const NormParameters& with, float* z, float* moments,
                        int threads) {
    const EvoNormS0 norm{kernels, s, with};
    parallel_for(s.batch, threads,
                 [&](int64_t n) { norm.forward(y + n * s.size(), z + n * s.size(), moments + n * 2 * s.groups); });
}

void evonorm_s0_backward(const Int8& kernels, const NormShape& s, const float* y, const NormParameters& with, const float* moments,
                         const float* g, const NormGradients& out, int threads) {
    const EvoNormS0 norm{kernels, s, with};
    std::vector<float> rows(size_t(s.batch * 3 * s.channels));
    parallel_for(s.batch, threads, [&](int64_t n) {
        norm.backward(y + n * s.size(), moments + n * 2 * s.groups, g + n * s.size(), out.y + n * s.size(),
                      rows.data() + n * 3 * s.channels);
    });
    add_rows(s, rows, out);
}

}  // namespace edgegossip
