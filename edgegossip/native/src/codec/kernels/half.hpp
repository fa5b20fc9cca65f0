#pragma once

#include <cstdint>

namespace edgegossip {

// One way to write float32 numbers: as they are, as binary16 or as bfloat16, little-endian, at any alignment of bytes.
struct FloatForm {
    int32_t bytes;  // a number

    // Rounds to nearest even, magnitudes beyond the largest finite one to that. False when x holds a NaN or an infinity.
    bool (*encode)(const float* x, int64_t n, uint8_t* body);

    // False when a number is NaN or infinite.
    bool (*finite)(const uint8_t* body, int64_t n);

    // out = value, or out += weight * value. False at a number that is not finite; the values before its block are written.
    bool (*decode)(const uint8_t* body, int64_t n, float* out, bool accumulate, float weight);
};

struct Half {
    FloatForm fp32, fp16, bf16;
};

}  // namespace edgegossip
