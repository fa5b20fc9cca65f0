// Weight gradients of products of bytes (int8_quads.inc): the same integer sums as of products of 16 bits.
#pragma once

#include "int8_conv.hpp"
#include "int8_work.hpp"

namespace edgegossip {

// Whether there are such products, and they pay: a group has at least some channels, a sample several pixels.
bool takes_quads(const Int8& kernels, const ConvShape& shape);

// As add_weight_gradients(), with work.factor filled.
void add_quads(const Int8& kernels, const ConvShape& shape, const Maps& x, bool wide, int64_t first, int64_t samples, ConvWork& work,
               float* sums, bool fresh);

}  // namespace edgegossip
