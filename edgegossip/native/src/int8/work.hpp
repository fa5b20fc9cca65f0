// Memory and small helpers that forward and backward passes share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "int8/conv.hpp"
#include "int8/pack.hpp"
#include "int8/winograd.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip {

constexpr int64_t BLOCK_PIXELS = 64;  // samples with smaller maps are computed together

inline int64_t samples_together(int64_t pixels, int64_t most, int64_t block = BLOCK_PIXELS) {
    return std::clamp<int64_t>((block + pixels - 1) / pixels, 1, std::max<int64_t>(most, 1));
}

constexpr float GRADIENT_SCALE_FLOOR = 1e-30f;

// Scales of a gradient's 8-bit and 16-bit copies; NaN where it is not finite.
struct GradientScales {
    float narrow, wide;
    bool finite() const { return std::isfinite(narrow); }
};

inline GradientScales gradient_scales(float most) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (!std::isfinite(most)) return {nan, nan};
    return {std::max(most * (1.0f / 127.0f), GRADIENT_SCALE_FLOOR), std::max(most * (1.0f / 32512.0f), GRADIENT_SCALE_FLOOR)};
}

// Pixels that loops over channels run over at once; depends on the channels alone.
inline int64_t times_of(int64_t channels) { return channels >= 64 ? 1 : 64 / channels; }

// Constants a channel, repeated. Without offsets and shifts they are zeros.
class Repeated {
public:
    Repeated() = default;
    explicit Repeated(int64_t channels) { resize(channels); }

    void resize(int64_t channels) {
        channels_ = channels;
        times_ = times_of(channels);
        offset_.assign(size_t(channels_ * times_), 0);
        scale_.assign(offset_.size(), 0.0f);
        shift_.assign(offset_.size(), 0.0f);
    }
    // scale[c] = factor * scales[c]
    void set_scale(const float* scales, float factor) {
        float* to = scale_.data();
        for (int64_t t = 0; t < times_; t++, to += channels_)
            for (int64_t c = 0; c < channels_; c++) to[c] = factor * scales[c];
    }
    // offset[c] = factor * sums[c]
    void set_offset(const int32_t* sums, int32_t factor) {
        int32_t* to = offset_.data();
        for (int64_t t = 0; t < times_; t++, to += channels_)
            for (int64_t c = 0; c < channels_; c++) to[c] = factor * sums[c];
    }
    void set_shift(const float* shifts) {
        if (shifts == nullptr) {
            std::fill(shift_.begin(), shift_.end(), 0.0f);
            return;
        }
        for (int64_t t = 0; t < times_; t++) std::copy_n(shifts, channels_, shift_.data() + t * channels_);
    }
    PerChannel view() const { return {channels_, times_, offset_.data(), scale_.data(), shift_.data()}; }

private:
    int64_t channels_ = 0, times_ = 1;
    std::vector<int32_t> offset_;
    std::vector<float> scale_, shift_;
};

// Scratch memory of one thread; it stays for the thread's next call.
struct ConvWork {
    coding::Scratch<int16_t> wide, pairs, strips, together;  // wide and bytes: maps of a block, laid out for products
    coding::Scratch<int16_t> tiles;  // of inputs, for products by tiles
    coding::Scratch<int32_t> tile_sums;
    coding::Scratch<int8_t> bytes;
    coding::Scratch<int32_t> acc, group_acc;
    coding::Scratch<float> values, scaled_g;
    coding::Scratch<int8_t> g8;
    coding::Scratch<int16_t> g16;
    coding::Scratch<int8_t> halves, quads, turned;  // for weight gradients of bytes: g16 split, inputs and gradients laid out
    coding::Scratch<int32_t> columns;
    std::vector<int32_t> all_columns, offsets;
    std::vector<double> wide_offsets;
    std::vector<float> factor;
    Repeated per;
};

// Maps of `samples` samples, `step` values apart from `first` on, laid out as `panels` takes them, `size` values each.
template <class Zero>
void lay_out(const Int8& kernels, const Panels& panels, const int8_t* first, int64_t samples, int64_t step, const Placement& at,
             const Zero& zero_of, int64_t size, ConvWork& work) {
    if (panels.of_bytes())
        work.bytes.need(samples * size);
    else
        work.wide.need(samples * size);
    for (int64_t n = 0; n < samples; n++) {
        if (panels.of_bytes())
            kernels.spread(first + n * step, at, zero_of(n), work.bytes.data() + n * size);
        else
            kernels.widen(first + n * step, at, zero_of(n), work.wide.data() + n * size);
    }
}

// Int8::gemm or gemm_bytes of what lay_out() made, or the same by tiles: rows of `width` outputs, `pixels` in all; a row of acc has
// whole panels.
inline void multiply(const Int8& kernels, const Panels& p, ConvWork& work, const std::vector<int64_t>& places, int64_t pixels, int64_t width,
                     int64_t row, int32_t* acc) {
    const int64_t stride = p.panels * INT8_PANEL;
    if (p.tile != nullptr)
        multiply_tiles(kernels, p, work, places, pixels, width, row, acc);
    else if (p.of_bytes())
        kernels.gemm_bytes(work.bytes.data(), places.data(), pixels, p.rows, row, p.steps, p.taps, p.bytes.data(), p.panels, acc, stride);
    else
        kernels.gemm(work.wide.data(), places.data(), pixels, p.rows, row, p.steps, p.values.data(), p.panels, acc, stride);
}

inline ConvWork& conv_work() {
    static thread_local ConvWork work;
    return work;
}

}  // namespace edgegossip
