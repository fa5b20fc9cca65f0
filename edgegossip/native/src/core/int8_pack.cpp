#include "int8_pack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace edgegossip {

namespace {

constexpr float SCALE_FLOOR = 1e-30f;

// Larger of the two, and NaN once there was one.
float larger_or_nan(float most, float v) {
    const float size = std::fabs(v);
    return !(size <= most) ? size : most;
}

float scale_of(float most) {
    if (!std::isfinite(most)) return std::numeric_limits<float>::quiet_NaN();
    return std::max(most * (1.0f / 127.0f), SCALE_FLOOR);
}

// Nearest even, within +-127. A channel that is not finite has zeros; its scale says so.
int16_t weight_code(float w, float inverse) {
    const float magic = 12582912.0f, t = w * inverse;
    if (!(std::fabs(t) < 1e6f)) return 0;
    return int16_t(std::clamp((t + magic) - magic, -127.0f, 127.0f));
}

float inverse_of(float scale) { return 1.0f / scale; }

// Where the value of row r, run index i and channel c lies.
size_t place(const Panels& p, int64_t channel, int64_t row, int64_t index) {
    const int64_t panel = channel / INT8_PANEL, lane = channel % INT8_PANEL;
    return size_t((((panel * p.rows + row) * p.pairs + index / 2) * INT8_PANEL + lane) * 2 + index % 2);
}

void clear(Panels& p, int64_t rows, int64_t run, int64_t channels) {
    p.rows = rows;
    p.pairs = (run + 1) / 2;
    p.panels = panels_of(channels);
    const int64_t size = p.panels * p.rows * p.pairs * INT8_PANEL * 2;
    p.values.need(size);
    std::fill_n(p.values.data(), size, int16_t(0));
}

}  // namespace

std::vector<Phase> phases_of(int64_t size, int64_t kernel, int64_t stride, int64_t pad) {
    std::vector<Phase> phases;
    for (int64_t first = 0; first < std::min(stride, size); first++) {
        const int64_t lowest = (first + pad) % stride;  // taps are lowest, lowest + stride, ...
        Phase phase{first, (size - first + stride - 1) / stride, 0, 0, 0};
        if (lowest < kernel) {
            phase.taps = (kernel - 1 - lowest) / stride + 1;
            phase.tap = lowest + (phase.taps - 1) * stride;
            phase.base = (first + pad - phase.tap) / stride;  // exact
        }
        phases.push_back(phase);
    }
    return phases;
}

void scales_by_output(const ConvShape& s, const float* weight, float* scale) {
    const int64_t each = s.group_in() * s.kernel_h * s.kernel_w;
    for (int64_t o = 0; o < s.out; o++) {
        float most = 0.0f;
        for (int64_t i = 0; i < each; i++) most = larger_or_nan(most, weight[o * each + i]);
        scale[o] = scale_of(most);
    }
}

void scales_by_input(const ConvShape& s, const float* weight, float* scale) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    std::fill_n(scale, s.in, 0.0f);
    for (int64_t o = 0; o < s.out; o++) {
        float* const most = scale + o / s.group_out() * inputs;
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t t = 0; t < taps; t++) most[i] = larger_or_nan(most[i], weight[(o * inputs + i) * taps + t]);
    }
    for (int64_t i = 0; i < s.in; i++) scale[i] = scale_of(scale[i]);
}

void pack_forward(const ConvShape& s, const float* weight, const float* scale, int64_t group, Panels& out) {
    const int64_t inputs = s.group_in(), first = group * s.group_out();
    clear(out, s.kernel_h, s.kernel_w * inputs, s.group_out());
    for (int64_t o = 0; o < s.group_out(); o++) {
        const float inverse = inverse_of(scale[first + o]);
        const float* w = weight + (first + o) * inputs * s.kernel_h * s.kernel_w;
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t kh = 0; kh < s.kernel_h; kh++)
                for (int64_t kw = 0; kw < s.kernel_w; kw++, w++)
                    out.values.data()[place(out, o, kh, kw * inputs + i)] = weight_code(*w, inverse);
    }
}

void pack_backward(const ConvShape& s, const float* weight, const float* scale, int64_t group, const Phase& down, const Phase& across,
                   Panels& out) {
    const int64_t inputs = s.group_in(), outputs = s.group_out(), first = group * outputs;
    clear(out, down.taps, across.taps * outputs, inputs);
    for (int64_t i = 0; i < inputs; i++) {
        const float inverse = inverse_of(scale[group * inputs + i]);
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t a = 0; a < down.taps; a++)
                for (int64_t b = 0; b < across.taps; b++) {
                    const int64_t kh = down.tap - a * s.stride_h, kw = across.tap - b * s.stride_w;
                    const float w = weight[(((first + o) * inputs + i) * s.kernel_h + kh) * s.kernel_w + kw];
                    out.values.data()[place(out, i, a, b * outputs + o)] = weight_code(w, inverse);
                }
    }
}

}  // namespace edgegossip
