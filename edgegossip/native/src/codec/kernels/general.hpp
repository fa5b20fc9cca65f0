#pragma once

#include <cstdint>

namespace edgegossip {

struct General {
    // Index of the first tensor that holds a NaN or an infinity, or -1.
    int64_t (*first_nonfinite)(const float* x, const int64_t* offsets, int64_t tensors);
};

}  // namespace edgegossip
