#include "int8_pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

namespace edgegossip {

namespace {

constexpr float SCALE_FLOOR = 1e-30f;

float scale_of(float most) {
    if (!std::isfinite(most)) return std::numeric_limits<float>::quiet_NaN();
    return std::max(most * (1.0f / 127.0f), SCALE_FLOOR);
}

// Nearest even; at most 127, because the scale is the largest magnitude / 127.
int16_t weight_code(float w, float inverse) {
    const float magic = 12582912.0f;
    return int16_t(int32_t((w * inverse + magic) - magic));
}

uint32_t size_bits(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits & 0x7fffffffu;
}

// Room for `channels` channels, all zeros.
void clear(const Int8& kernels, Panels& p, int64_t rows, int64_t run, int64_t channels) {
    p.together = kernels.gemm_bytes == nullptr ? 2 : 4;
    p.rows = rows;
    p.steps = (run + p.together - 1) / p.together;
    p.panels = panels_of(channels);
    const int64_t size = p.panels * p.rows * p.steps * INT8_PANEL * p.together;
    p.sums.assign(size_t(p.of_bytes() ? p.panels * INT8_PANEL : 0), 0);
    if (p.of_bytes()) {
        p.bytes.need(size);
        std::fill_n(p.bytes.data(), size, int8_t(0));
    } else {
        p.values.need(size);
        std::fill_n(p.values.data(), size, int16_t(0));
    }
}

// task(the panels' values), int16 or int8.
template <class Task>
void with_values(const Panels& p, const Task& task) {
    if (p.of_bytes())
        task(p.bytes.data());
    else
        task(p.values.data());
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

void scales_by_output(const Int8& kernels, const ConvShape& s, const float* weight, float* scale) {
    const int64_t each = s.group_in() * s.kernel_h * s.kernel_w;
    for (int64_t o = 0; o < s.out; o++) scale[o] = scale_of(kernels.magnitude(weight + o * each, each));
}

void scales_by_input(const ConvShape& s, const float* weight, float* scale) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    std::vector<uint32_t> most(size_t(s.in), 0);
    for (int64_t o = 0; o < s.out; o++) {
        uint32_t* const of_group = most.data() + o / s.group_out() * inputs;
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t t = 0; t < taps; t++, weight++) of_group[i] = std::max(of_group[i], size_bits(*weight));
    }
    for (int64_t i = 0; i < s.in; i++) {
        float largest;
        std::memcpy(&largest, &most[size_t(i)], sizeof largest);
        scale[i] = scale_of(largest);
    }
}

void pack_forward(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, Panels& out) {
    const int64_t inputs = s.group_in(), first = group * s.group_out(), each = inputs * s.kernel_h * s.kernel_w;
    clear(kernels, out, s.kernel_h, s.kernel_w * inputs, s.group_out());
    std::vector<int64_t> places;  // in lane 0 of a panel, by (in, kernel_h, kernel_w)
    for (int64_t i = 0; i < inputs; i++)
        for (int64_t kh = 0; kh < s.kernel_h; kh++)
            for (int64_t kw = 0; kw < s.kernel_w; kw++) places.push_back(out.place(kh, kw * inputs + i));
    std::vector<int16_t> codes(static_cast<size_t>(each));
    for (int64_t o = 0; o < s.group_out(); o++) {
        if (!std::isfinite(scale[first + o])) continue;  // zeros; the scale says it
        kernels.round16(weight + (first + o) * each, each, 1.0f / scale[first + o], codes.data());
        with_values(out, [&](auto* to) {
            to += out.channel(o);
            for (size_t j = 0; j < codes.size(); j++) to[places[j]] = std::decay_t<decltype(*to)>(codes[j]);
        });
        if (out.of_bytes()) out.sums[size_t(o)] = std::accumulate(codes.begin(), codes.end(), int32_t(0));
    }
}

void pack_backward(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, const Phase& down, const Phase& across,
                   Panels& out) {
    const int64_t inputs = s.group_in(), outputs = s.group_out(), taps = s.kernel_h * s.kernel_w;
    clear(kernels, out, down.taps, across.taps * outputs, inputs);
    std::vector<float> inverse;
    std::vector<int64_t> lanes;
    for (int64_t i = 0; i < inputs; i++) {
        const float of_input = scale[group * inputs + i];
        inverse.push_back(std::isfinite(of_input) ? 1.0f / of_input : 0.0f);
        lanes.push_back(out.channel(i));
    }
    with_values(out, [&](auto* to) {
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t a = 0; a < down.taps; a++)
                for (int64_t b = 0; b < across.taps; b++) {
                    const int64_t kh = down.tap - a * s.stride_h, kw = across.tap - b * s.stride_w;
                    const float* const w = weight + (group * outputs + o) * inputs * taps + kh * s.kernel_w + kw;
                    const int64_t place = out.place(a, b * outputs + o);
                    for (int64_t i = 0; i < inputs; i++) {
                        const int16_t code = inverse[size_t(i)] == 0.0f ? int16_t(0) : weight_code(w[i * taps], inverse[size_t(i)]);
                        to[lanes[size_t(i)] + place] = std::decay_t<decltype(*to)>(code);
                        if (out.of_bytes()) out.sums[size_t(i)] += code;
                    }
                }
    });
}

}  // namespace edgegossip
