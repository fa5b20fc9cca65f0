// Weight gradients of convolutions: sums over the pixels of a sample of integers, over samples of float32.
#pragma once

#include <cstdint>

#include "int8_conv.hpp"
#include "int8_work.hpp"

namespace edgegossip {

// sums[out][kernel_h][kernel_w * in / groups] += (= where `fresh`) those of samples first ... of a batch x, whose gradients lie in work.g8, or in
// work.g16 when `wide`, with their scales.
void add_weight_gradients(const Int8& kernels, const ConvShape& shape, const Maps& x, bool wide, int64_t first, int64_t samples,
                          const GradientScales* scales, ConvWork& work, float* sums, bool fresh);

}  // namespace edgegossip
