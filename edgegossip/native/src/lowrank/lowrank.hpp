// Factors of a matrix on the wire, their product, and one step of PowerSGD. docs/wire-format.md has the bytes.
#pragma once

#include <cstdint>

#include "runtime/kernels.hpp"

namespace edgegossip {

// left: `rank` columns of `rows` numbers, then (fp16 only) `rank` scales of float32, then right: `rank` rows of `cols`.
struct FactorShape {
    int64_t rows, cols, rank;
    bool half;  // fp16, else fp32

    int64_t left_bytes() const { return rank * rows * number(); }
    int64_t scale_bytes() const { return half ? rank * 4 : 0; }
    int64_t bytes() const { return left_bytes() + scale_bytes() + rank * cols * number(); }
    int64_t number() const { return half ? 2 : 4; }
};

// Whether all numbers are finite, and no scale is negative.
bool factors_sound(const Kernels& kernels, const FactorShape& shape, const uint8_t* factors);

// The sum of the outer products, held within float32's finite range, into out: float32[rows * cols].
void factors_product(const Kernels& kernels, const FactorShape& shape, const uint8_t* factors, float* out, Into into,
                     float weight);

// m = x + decay * error; left = orthonormalised m * start; right = m^T left; residual = m - product of what was written.
// start, next: float32[rank][cols]; next is right, or start's row where right's is all zeros. residual may not be error.
void power_step(const Kernels& kernels, const FactorShape& shape, const float* x, const float* error, float decay,
                const float* start, uint8_t* factors, float* next, float* residual);

}  // namespace edgegossip
