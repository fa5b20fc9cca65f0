// Max and average pooling of int8 maps [batch][height][width][channels]. Maxima and sums are integers, so exact.
#pragma once

#include <cstdint>

#include "int8/conv.hpp"

namespace edgegossip {

struct PoolShape {
    int64_t batch, height, width, channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_height, out_width;

    int64_t in_size() const { return height * width * channels; }
    int64_t out_size() const { return out_height * out_width * channels; }
};

// Which of several equal values of a window is named.
enum class Tie { FIRST, LAST };

// q = the largest value of a window, `tap` its place there, kh * kernel_w + kw. Padding is never the largest.
void max_pool(const Int8& kernels, const PoolShape& shape, Tie tie, const int8_t* x, int8_t* q, uint8_t* tap, int threads);

// Whether every tap is a place inside its window and the map.
bool taps_inside(const PoolShape& shape, const uint8_t* tap);

// Half of the gradient of each output goes to its window's first tap and half to the last one, which are inside the map.
void max_pool_backward(const PoolShape& shape, const uint8_t* first, const uint8_t* last, const float* g, float* out, int threads);

// out = scale * sum over the window of (x - zero) / divisor; the divisor counts padding when `count_padding`.
void average_pool(const PoolShape& shape, const Maps& x, bool count_padding, float* out, int threads);

void average_pool_backward(const PoolShape& shape, const float* g, bool count_padding, float* out, int threads);

}  // namespace edgegossip
