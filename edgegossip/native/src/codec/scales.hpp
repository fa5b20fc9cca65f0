// Scales as they travel: of a bucket in 16 bits, the upper half of a float32 without its sign (8 bits of exponent, 8 of
// mantissa); the one of a tensor as the float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "codec/codes.hpp"

namespace edgegossip::coding {

constexpr uint16_t SHORT_INFINITY = 0xff00;  // and above: not finite

inline int64_t scale_bytes(int64_t n, int64_t bucket) { return (bucket == 0 ? 4 : 2) * scale_count(n, bucket); }

// Whether nothing of it would be lost: it ends after 8 bits of mantissa, is finite and has no sign.
inline bool is_short(float scale) {
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    return (bits & 0x80007fff) == 0 && bits >> 15 < SHORT_INFINITY;
}

// Scales of buckets, which are short.
inline void put_short(const float* scales, int64_t count, uint8_t* out) {
    for (int64_t k = 0; k < count; k++) {
        uint32_t bits;
        std::memcpy(&bits, scales + k, sizeof bits);
        const uint16_t half = uint16_t(bits >> 15);
        std::memcpy(out + 2 * k, &half, sizeof half);
    }
}

inline void get_short(const uint8_t* in, int64_t count, float* scales) {
    for (int64_t k = 0; k < count; k++) {
        uint16_t half;
        std::memcpy(&half, in + 2 * k, sizeof half);
        const uint32_t bits = uint32_t(half) << 15;
        std::memcpy(scales + k, &bits, sizeof bits);
    }
}

}  // namespace edgegossip::coding
