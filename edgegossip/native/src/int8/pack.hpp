// Weights, quantised by output channel (forward) or by input channel (backward-data) and laid out as Int8::gemm reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "int8/conv.hpp"
#include "runtime/buffer_pool.hpp"

namespace edgegossip {

// The taps of one dimension that meet output positions first, first + stride, ... of a backward pass.
struct Phase {
    int64_t first, count;   // positions of the map: first + stride * t, t < count
    int64_t tap, taps;      // the largest tap, and how many there are: tap, tap - stride, ...
    int64_t base;           // the position of g that tap meets at t = 0; may be negative
};

// All phases of a dimension of `size` positions; those without taps have taps = 0.
std::vector<Phase> phases_of(int64_t size, int64_t kernel, int64_t stride, int64_t pad);

// Panels of one group, as the kernels multiply them: int16[panels][rows][pairs][16][2], or of bytes int8[panels][rows][quads][16][4]
// with the sum of every channel's weights.
struct Panels {
    int64_t rows = 0, steps = 0, panels = 0, together = 2;
    int64_t taps = 1;  // of a row, each a whole number of steps; 1 where they are not
    Pooled<int16_t> values;
    Pooled<int8_t> bytes;
    const Winograd* tile = nullptr;  // where products are made by tiles (winograd.hpp)
    Pooled<int16_t> tiled;           // and the weights of those: int16[places][panels][pairs][16][2]
    std::vector<int32_t> sums;

    bool of_bytes() const { return together == 4; }
    int64_t size() const { return panels * rows * steps * INT8_PANEL * together; }
    // Where the first value of a channel lies, and where that of a row and an index in the run does from there.
    int64_t channel(int64_t c) const { return (c / INT8_PANEL * rows * steps * INT8_PANEL + c % INT8_PANEL) * together; }
    int64_t place(int64_t row, int64_t index) const {
        return (row * steps + index / together) * INT8_PANEL * together + index % together;
    }
};

inline int64_t panels_of(int64_t channels) { return (channels + INT8_PANEL - 1) / INT8_PANEL; }

// Scales by input channel, float[in]: largest magnitude / 127. NaN for a channel that is not finite.
void scales_by_input(const Int8& kernels, const ConvShape& shape, const float* weight, float* scale);

// And those of the group's outputs, in scale[out].
void pack_forward(const Int8& kernels, const ConvShape& shape, const float* weight, int64_t group, float* scale, Panels& out, int threads);

void pack_backward(const Int8& kernels, const ConvShape& shape, const float* weight, const float* scale, int64_t group, const Phase& down,
                   const Phase& across, Panels& out, int threads);

}  // namespace edgegossip
