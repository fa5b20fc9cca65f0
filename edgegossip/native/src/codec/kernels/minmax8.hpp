#pragma once

#include <cstdint>

namespace edgegossip {

struct MinMax8 {
    // Body: `tensors` pairs (min, max) of float32, then one byte a value. -1, or the first tensor that is not finite.
    int64_t (*encode)(const float* x, const int64_t* offsets, int64_t tensors, uint8_t* body);

    // out = value, or out += weight * value. -1, or the first tensor with a bad header; `out` is then untouched.
    int64_t (*decode)(const uint8_t* body, const int64_t* offsets, int64_t tensors, float* out, bool accumulate,
                      float weight);
};

}  // namespace edgegossip
