// Range layer norm and GELU of int8 samples, and their gradients (docs/int8.md). Results do not
// depend on the number of threads.
#pragma once

#include <cstdint>

#include "int8/norm.hpp"

namespace edgegossip {

struct LayerNormShape {
    int64_t batch, tokens, features, chunks;

    int64_t size() const { return tokens * features; }  // of a sample
};

// The deviation of a token is the sum of its chunks' ranges times `factor`, plus epsilon.
struct LayerRange {
    float factor, epsilon;
};

// z = gamma (y - mean) / deviation + beta by token, quantised anew by sample.
void layernorm_forward(const Int8& kernels, const LayerNormShape& shape, const Maps& y,
                       const float* gamma, const float* beta, LayerRange range,
                       const WritableMaps& out, int threads);

struct LayerNormGradients {
    float *y, *gamma, *beta;
};

void layernorm_backward(const Int8& kernels, const LayerNormShape& shape, const Maps& y,
                        const float* gamma, LayerRange range, const float* g,
                        const LayerNormGradients& out, int threads);

// x Phi(x), a table of 256 entries a sample: what the sample's codes become.
void gelu_forward(const Int8& kernels, const Maps& x, int64_t batch, int64_t size,
                  const WritableMaps& out, int threads);

// dx = g times the slope at x, of such a table.
void gelu_backward(const Maps& x, int64_t batch, int64_t size, const float* g, float* dx,
                   int threads);

}  // namespace edgegossip
