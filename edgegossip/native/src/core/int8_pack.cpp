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


// Room for `channels` channels, all zeros. A row has `taps` taps of `each` values.
void clear(const Int8& kernels, Panels& p, int64_t rows, int64_t taps, int64_t each, int64_t channels) {
    p.together = kernels.gemm_bytes == nullptr ? 2 : 4;
    p.rows = rows;
    p.steps = (taps * each + p.together - 1) / p.together;
    p.taps = each % p.together == 0 ? taps : 1;
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

void scales_by_input(const Int8& kernels, const ConvShape& s, const float* weight, float* scale) {
    const int64_t taps = s.kernel_h * s.kernel_w, each = s.group_in() * taps;
    std::vector<uint32_t> most(static_cast<size_t>(each));
    for (int64_t group = 0; group < s.groups; group++, scale += s.group_in()) {
        std::fill(most.begin(), most.end(), 0u);
        for (int64_t o = 0; o < s.group_out(); o++, weight += each) kernels.magnitudes(weight, each, most.data());
        for (int64_t i = 0; i < s.group_in(); i++) {
            const uint32_t of_input = *std::max_element(most.data() + i * taps, most.data() + (i + 1) * taps);
            float largest;
            std::memcpy(&largest, &of_input, sizeof largest);
            scale[i] = scale_of(largest);
        }
    }
}

namespace {

// The rows of an output, value(kh, kw, i) in the order of a panel, behind one another; their zeros at the end stay.
template <class T>
void in_panel_order(const ConvShape& s, const int16_t* codes, int64_t row, T* to) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    for (int64_t kh = 0; kh < s.kernel_h; kh++, to += row)
        for (int64_t kw = 0; kw < s.kernel_w; kw++) {
            const int16_t* const from = codes + kh * s.kernel_w + kw;
            for (int64_t i = 0; i < inputs; i++) to[kw * inputs + i] = T(from[i * taps]);
        }
}

// Four inputs of a tap are a step of a lane: for panels of bytes whose taps are whole steps.
void words_in_panel_order(const ConvShape& s, const int16_t* codes, int8_t* lane) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    for (int64_t t = 0; t < taps; t++) {
        const int16_t* from = codes + t;
        for (int64_t i = 0; i < inputs; i += 4, from += 4 * taps, lane += 4 * INT8_PANEL) {
            const uint32_t word = uint32_t(uint8_t(from[0])) | uint32_t(uint8_t(from[taps])) << 8 | uint32_t(uint8_t(from[2 * taps])) << 16 |
                                  uint32_t(uint8_t(from[3 * taps])) << 24;
            std::memcpy(lane, &word, sizeof word);
        }
    }
}

// What one lane of a panel has for a step, two values of 16 bits or four of 8, goes to and fro as a word.
template <class T>
void pack_outputs(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, Panels& out, T* to) {
    const int64_t each = s.group_in() * s.kernel_h * s.kernel_w, row = out.steps * out.together;
    std::vector<int16_t> codes(static_cast<size_t>(each));
    std::vector<T> ordered(size_t(out.rows * row), T(0));
    for (int64_t o = 0; o < s.group_out(); o++) {
        if (!std::isfinite(scale[o])) continue;  // zeros; the scale says it
        kernels.round16(weight + o * each, each, 1.0f / scale[o], codes.data());
        T* const lane = to + out.channel(o);
        if (out.of_bytes()) out.sums[size_t(o)] = std::accumulate(codes.begin(), codes.end(), int32_t(0));
        if (out.of_bytes() && s.group_in() % 4 == 0) {
            words_in_panel_order(s, codes.data(), out.bytes.data() + out.channel(o));
            continue;
        }
        in_panel_order(s, codes.data(), row, ordered.data());
        for (int64_t k = 0; k < out.rows * out.steps; k++)
            std::memcpy(lane + k * INT8_PANEL * out.together, ordered.data() + k * out.together, sizeof(uint32_t));
    }
}

}  // namespace

void pack_forward(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, Panels& out) {
    const int64_t first = group * s.group_out(), each = s.group_in() * s.kernel_h * s.kernel_w;
    clear(kernels, out, s.kernel_h, s.kernel_w, s.group_in(), s.group_out());
    with_values(out, [&](auto* to) { pack_outputs(kernels, s, weight + first * each, scale + first, out, to); });
}

namespace {

bool all_finite(const float* values, int64_t n) {
    return std::all_of(values, values + n, [](float v) { return std::isfinite(v); });
}

// Four outputs at a time, which a word of a panel of bytes takes; their number is a multiple of four.
void pack_words(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, const Phase& down, const Phase& across,
                Panels& out) {
    const int64_t inputs = s.group_in(), outputs = s.group_out(), taps = s.kernel_h * s.kernel_w, each = inputs * taps;
    std::vector<float> inverse(static_cast<size_t>(each));
    std::vector<uint32_t> words(static_cast<size_t>(each));
    std::vector<int32_t> sums(size_t(each), 0);
    for (int64_t j = 0; j < each; j++) inverse[size_t(j)] = 1.0f / scale[j / taps];
    for (int64_t o = 0; o < outputs; o += 4) {
        kernels.words(weight + o * each, each, inverse.data(), each, words.data(), sums.data());
        for (int64_t a = 0; a < down.taps; a++)
            for (int64_t b = 0; b < across.taps; b++) {
                const uint32_t* from = words.data() + (down.tap - a * s.stride_h) * s.kernel_w + across.tap - b * s.stride_w;
                int8_t* const to = out.bytes.data() + out.place(a, b * outputs + o);
                for (int64_t i = 0; i < inputs; i++, from += taps) std::memcpy(to + out.channel(i), from, sizeof *from);
            }
    }
    for (int64_t a = 0; a < down.taps; a++)
        for (int64_t b = 0; b < across.taps; b++) {
            const int64_t tap = (down.tap - a * s.stride_h) * s.kernel_w + across.tap - b * s.stride_w;
            for (int64_t i = 0; i < inputs; i++) out.sums[size_t(i)] += sums[size_t(i * taps + tap)];
        }
}

}  // namespace

void pack_backward(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, const Phase& down, const Phase& across,
                   Panels& out) {
    const int64_t inputs = s.group_in(), outputs = s.group_out(), taps = s.kernel_h * s.kernel_w;
    clear(kernels, out, down.taps, across.taps, outputs, inputs);
    if (out.of_bytes() && outputs % 4 == 0 && all_finite(scale + group * inputs, inputs)) {
        pack_words(kernels, s, weight + group * outputs * inputs * taps, scale + group * inputs, down, across, out);
        return;
    }
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
