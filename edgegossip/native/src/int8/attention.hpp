// Scaled dot-product attention of int8 samples: both products and all four of the backward pass are
// sums of integers (docs/int8.md). Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "int8/conv.hpp"

namespace edgegossip {

struct AttentionShape {
    int64_t batch, queries, keys, heads, width;  // width: features of a head

    int64_t features() const { return heads * width; }
    int64_t query_size() const { return queries * features(); }  // of a sample
    int64_t key_size() const { return keys * features(); }
};

// Which keys a query sees: bytes [batches][heads][queries][keys], not 0 where it does. Each of the
// first three is that of the shape, or 1 for the same everywhere. Null: all.
struct KeyMask {
    const uint8_t* seen;
    int64_t batches, heads, queries;
};

// What is dropped of the probabilities, in the forward and the backward pass: a share of `below` /
// 2^32.
struct Dropout {
    uint32_t below;
    float rescale;  // 1 / (1 - share)
};

struct Attention {
    AttentionShape shape;
    Maps q, k, v;  // [batch][queries or keys][heads][width]
    KeyMask mask;
    Dropout dropout;
    uint64_t key;  // of stochastic rounding and of dropout
};

// out = softmax(q k^T / sqrt(width)) v by head, float32 [batch][queries][heads][width].
void attention_forward(const Int8& kernels, const Attention& of, float* out, int threads);

// From g, the gradient of `out`. The scores are computed again.
void attention_backward(const Int8& kernels, const Attention& of, const float* g, float* dq,
                        float* dk, float* dv, int threads);

}  // namespace edgegossip
