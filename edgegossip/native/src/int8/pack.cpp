#include "int8/pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "runtime/parallel.hpp"
#include "runtime/scratch.hpp"
#include "int8/winograd.hpp"

namespace edgegossip {

namespace {

constexpr float SCALE_FLOOR = 1e-30f;
constexpr int64_t PACKED_TOGETHER = 1 << 14;  // values of panels from which on threads share the work
constexpr int64_t WORD = sizeof(uint32_t);
constexpr int64_t COLUMNS = 256;              // weights of an output that one task reads, at least

// Of whole panels.
int64_t inputs_together(int64_t taps) { return panels_of((COLUMNS + taps - 1) / taps) * INT8_PANEL; }

float scale_of(float most) {
    if (!std::isfinite(most)) return std::numeric_limits<float>::quiet_NaN();
    return std::max(most * (1.0f / 127.0f), SCALE_FLOOR);
}

// Nearest even; at most 127, because the scale is the largest magnitude / 127.
int16_t weight_code(float w, float inverse) {
    const float magic = 12582912.0f;
    return int16_t(int32_t((w * inverse + magic) - magic));
}

// Room for `channels` channels. A row has `taps` taps of `each` values.
void make_room(const Int8& kernels, Panels& p, int64_t rows, int64_t taps, int64_t each, int64_t channels) {
    p.together = kernels.gemm_bytes == nullptr ? 2 : 4;
    p.rows = rows;
    p.steps = (taps * each + p.together - 1) / p.together;
    p.taps = each % p.together == 0 ? taps : 1;
    p.panels = panels_of(channels);
    p.sums.assign(size_t(p.of_bytes() ? p.panels * INT8_PANEL : 0), 0);
    if (p.of_bytes())
        p.bytes.need(p.size());
    else
        p.values.need(p.size());
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

// An output's codes [in][kernel_h][kernel_w] in the order of a panel, [kernel_h][kernel_w][in], rows of `row` values.
template <class T>
void in_panel_order(const ConvShape& s, const int8_t* codes, int64_t row, T* to) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    if (taps == 1) {
        std::copy_n(codes, inputs, to);
        return;
    }
    for (int64_t kh = 0; kh < s.kernel_h; kh++, to += row)
        for (int64_t kw = 0; kw < s.kernel_w; kw++) {
            const int8_t* const from = codes + kh * s.kernel_w + kw;
            for (int64_t i = 0; i < inputs; i++) to[kw * inputs + i] = T(from[i * taps]);
        }
}

// The same of bytes, four inputs at a time, which are their number's divisor: compilers make more of it than of single bytes.
void words_in_panel_order(const ConvShape& s, const int8_t* codes, uint8_t* to) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w;
    for (int64_t t = 0; t < taps; t++) {
        const auto* from = reinterpret_cast<const uint8_t*>(codes) + t;
        for (int64_t i = 0; i < inputs; i += 4, from += 4 * taps, to += WORD) {
            const uint32_t word = uint32_t(from[0]) | uint32_t(from[taps]) << 8 | uint32_t(from[2 * taps]) << 16 | uint32_t(from[3 * taps]) << 24;
            std::memcpy(to, &word, WORD);
        }
    }
}

typedef uint32_t FourWords __attribute__((vector_size(16)));

// to[k][o] = from[o][k], words, k < words, o < INT8_PANEL; rows of `from` are `pitch` words apart, and words up to a multiple of four may
// be read.
void turn(const uint8_t* from, int64_t pitch, int64_t words, void* to) {
    const auto four = [&](int64_t o, int64_t k) {
        FourWords made;
        std::memcpy(&made, from + (o * pitch + k) * WORD, sizeof made);
        return made;
    };
    for (int64_t k = 0; k < words; k += 4)
        for (int64_t o = 0; o < INT8_PANEL; o += 4) {
            const FourWords a = four(o, k), b = four(o + 1, k), c = four(o + 2, k), d = four(o + 3, k);
            const FourWords ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
            const FourWords more_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7), more_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
            const FourWords turned[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                                         __builtin_shufflevector(more_ab, more_cd, 0, 1, 4, 5), __builtin_shufflevector(more_ab, more_cd, 2, 3, 6, 7)};
            for (int64_t j = 0; j < std::min<int64_t>(4, words - k); j++) std::memcpy(static_cast<uint8_t*>(to) + ((k + j) * INT8_PANEL + o) * WORD, &turned[j], sizeof turned[j]);
        }
}

// Outputs of one panel: their scales, and their values at `to`. What a lane has for a step, two values of 16 bits or four of 8, goes
// to and fro as a word; the words of an output lie behind one another first.
template <class T>
void pack_panel(const Int8& kernels, const ConvShape& s, const float* weight, int64_t outputs, float* scale, Panels& p, int32_t* sums, T* to) {
    static thread_local coding::Scratch<int8_t> codes;
    static thread_local coding::Scratch<uint8_t> ordered;
    const int64_t each = s.group_in() * s.kernel_h * s.kernel_w, row = p.steps * p.together, words = p.rows * p.steps;
    // A line more than they take: at a power of two all outputs' words would share a few places of the cache.
    const int64_t pitch = words + 16;
    codes.need(each);
    ordered.need(INT8_PANEL * pitch * WORD);
    std::memset(ordered.data(), 0, size_t(INT8_PANEL * pitch * WORD));
    for (int64_t o = 0; o < outputs; o++, weight += each) {
        scale[o] = scale_of(kernels.magnitude(weight, each));
        if (!std::isfinite(scale[o])) continue;  // zeros; the scale says it
        for (int64_t j = 0; o + 1 < outputs && j < each; j += FLOATS_OF_A_LINE) __builtin_prefetch(weight + each + j);  // the next output's
        const int32_t sum = kernels.codes(weight, each, 1.0f / scale[o], codes.data());
        uint8_t* const of_output = ordered.data() + o * pitch * WORD;
        if (sums != nullptr) sums[o] = sum;
        if (p.of_bytes() && s.group_in() % 4 == 0 && each != s.group_in())
            words_in_panel_order(s, codes.data(), of_output);
        else
            in_panel_order(s, codes.data(), row, reinterpret_cast<T*>(of_output));
    }
    turn(ordered.data(), pitch, words, to);
}

}  // namespace

void pack_forward(const Int8& kernels, const ConvShape& s, const float* weight, int64_t group, float* scale, Panels& out, int threads) {
    const int64_t first = group * s.group_out(), each = s.group_in() * s.kernel_h * s.kernel_w;
    make_room(kernels, out, s.kernel_h, s.kernel_w, s.group_in(), s.group_out());
    with_values(out, [&](auto* to) {
        parallel_for(out.panels, out.size() >= PACKED_TOGETHER ? threads : 1, [&](int64_t k) {
            const int64_t begin = k * INT8_PANEL, at = first + begin;
            pack_panel(kernels, s, weight + at * each, std::min(INT8_PANEL, s.group_out() - begin), scale + at, out,
                       out.of_bytes() ? out.sums.data() + begin : nullptr, to + out.channel(begin));
        });
    });
    if (s.stride_h == 1 && s.stride_w == 1) tile_weights(kernels, s.kernel_w, s.group_in(), s.out_height(), s.out_width(), out);
}

namespace {

bool all_finite(const float* values, int64_t n) {
    return std::all_of(values, values + n, [](float v) { return std::isfinite(v); });
}

// Every `step`th word, to where words lie side by side.
void every(const uint32_t* from, int64_t step, int64_t count, uint8_t* to) {
    if (step == 1 && count == INT8_PANEL)  // a copy whose size is known costs no call
        std::memcpy(to, from, size_t(INT8_PANEL * WORD));
    else
        for (int64_t k = 0; k < count; k++) std::memcpy(to + k * WORD, from + k * step, WORD);
}

// Inputs `first` .. `last` - 1, of whole panels, and as many outputs at a time as a word of a panel takes, two or four; the outputs'
// number is a multiple of that.
void pack_words(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, const Phase& down, const Phase& across,
                int64_t first, int64_t last, Panels& out) {
    const int64_t outputs = s.group_out(), taps = s.kernel_h * s.kernel_w, each = s.group_in() * taps, size = (last - first) * taps;
    std::vector<float> inverse(static_cast<size_t>(size));
    std::vector<uint32_t> words(static_cast<size_t>(size));
    std::vector<int32_t> sums(size_t(size), 0);
    for (int64_t j = 0; j < size; j++) inverse[size_t(j)] = 1.0f / scale[first + j / taps];
    uint8_t* const panels = out.of_bytes() ? reinterpret_cast<uint8_t*>(out.bytes.data()) : reinterpret_cast<uint8_t*>(out.values.data());
    const int64_t value = WORD / out.together;  // bytes
    for (int64_t o = 0; o < outputs; o += out.together) {
        const float* const of_outputs = weight + o * each + first * taps;
        if (out.of_bytes())
            kernels.words(of_outputs, each, inverse.data(), size, words.data(), sums.data());
        else
            kernels.pair_words(of_outputs, each, inverse.data(), size, words.data());
        for (int64_t a = 0; a < down.taps; a++)
            for (int64_t b = 0; b < across.taps; b++) {
                const uint32_t* from = words.data() + (down.tap - a * s.stride_h) * s.kernel_w + across.tap - b * s.stride_w;
                uint8_t* const to = panels + value * out.place(a, b * outputs + o);
                for (int64_t i = first; i < last; i += INT8_PANEL, from += INT8_PANEL * taps)
                    every(from, taps, std::min(INT8_PANEL, last - i), to + value * out.channel(i));
            }
    }
    if (!out.of_bytes()) return;
    for (int64_t a = 0; a < down.taps; a++)
        for (int64_t b = 0; b < across.taps; b++) {
            const int64_t tap = (down.tap - a * s.stride_h) * s.kernel_w + across.tap - b * s.stride_w;
            for (int64_t i = first; i < last; i++) out.sums[size_t(i)] += sums[size_t((i - first) * taps + tap)];
        }
}

void pack_phase(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, const Phase& down, const Phase& across,
                Panels& out, int threads) {
    const int64_t inputs = s.group_in(), outputs = s.group_out(), taps = s.kernel_h * s.kernel_w;
    make_room(kernels, out, down.taps, across.taps, outputs, inputs);
    with_values(out, [&](auto* to) { std::fill_n(to, out.size(), std::decay_t<decltype(*to)>(0)); });
    if (outputs % out.together == 0 && all_finite(scale + group * inputs, inputs)) {
        const int64_t some = inputs_together(taps), tasks = (inputs + some - 1) / some;
        parallel_for(tasks, out.size() >= PACKED_TOGETHER ? threads : 1, [&](int64_t k) {
            pack_words(kernels, s, weight + group * outputs * inputs * taps, scale + group * inputs, down, across, k * some,
                       std::min((k + 1) * some, inputs), out);
        });
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

}  // namespace

void pack_backward(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, int64_t group, const Phase& down, const Phase& across,
                   Panels& out, int threads) {
    pack_phase(kernels, s, weight, scale, group, down, across, out, threads);
    if (s.stride_h == 1 && s.stride_w == 1) tile_weights(kernels, across.taps, s.group_out(), down.count, across.count, out);
}

}  // namespace edgegossip
