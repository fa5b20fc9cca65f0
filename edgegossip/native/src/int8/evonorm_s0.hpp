// EvoNorm-S0 of float32 maps [batch][pixels][channels], a sample at a time (Liu et al. 2020, "Evolving normalization-activation
// layers", table 1): forward and backward in one piece each, where torch makes a dozen passes. Results do not depend on the number of
// threads.
#pragma once

#include <cstdint>

#include "int8/norm.hpp"

namespace edgegossip {

// z = gamma y sigmoid(v y) / sqrt(var + 1e-5) + beta, var the biased variance of a (sample, group); moments: float[batch][2][groups],
// the mean of each and 1 / sqrt(var + 1e-5), for the backward pass. Of the shape, `chunks` does not matter.
void evonorm_s0_forward(const Int8& kernels, const NormShape& shape, const float* y, const NormParameters& with, float* z,
                        float* moments, int threads);

void evonorm_s0_backward(const Int8& kernels, const NormShape& shape, const float* y, const NormParameters& with,
                         const float* moments, const float* g, const NormGradients& out, int threads);

}  // namespace edgegossip
