// Weight gradients of convolutions: sums over the pixels of a sample of integers, over samples of float32.
#pragma once

#include <cstdint>

#include "int8/conv.hpp"
#include "int8/work.hpp"

namespace edgegossip {

// sums[out][kernel_h][kernel_w * in / groups] += (= where `fresh`) those of samples first ... of a batch x, whose gradients lie in work.g8, or in
// work.g16 when `wide`, with their scales.
void add_weight_gradients(const Int8& kernels, const ConvShape& shape, const Maps& x, bool wide, int64_t first, int64_t samples,
                          const GradientScales* scales, ConvWork& work, float* sums, bool fresh);

// Weight gradients of products of bytes (kernels/quads.inc): the same integer sums as of products of 16 bits.
// Whether there are such products, and they pay: a group has at least some channels, a sample several pixels.
bool takes_quads(const Int8& kernels, const ConvShape& shape, bool wide);

// As add_weight_gradients(), with work.factor filled.
void add_quads(const Int8& kernels, const ConvShape& shape, const Maps& x, bool wide, int64_t first, int64_t samples, ConvWork& work,
               float* sums, bool fresh);

}  // namespace edgegossip
