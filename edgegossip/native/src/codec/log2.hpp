// Logarithms for estimates, in integers, so that every machine makes the same choice.
#pragma once

#include <array>
#include <cstdint>

#include "codec/bits.hpp"

namespace edgegossip::coding {

constexpr int LOG2_FRACTION = 16;  // bits behind the point

// log2(1 + i / 256): squaring x, 1 <= x < 2, doubles its logarithm, whose next bit says whether x reached 2.
constexpr std::array<uint32_t, 257> make_log2_table() {
    std::array<uint32_t, 257> table{};
    for (uint64_t i = 0; i < 256; i++) {
        uint64_t x = (256 + i) << 23, log = 0;  // 1 is 2^31
        for (int bit = 0; bit < LOG2_FRACTION + 1; bit++) {
            x = x * x >> 31;
            log = log << 1 | x >> 32;
            x >>= x >> 32;
        }
        table[i] = uint32_t((log + 1) >> 1);
    }
    table[256] = 1u << LOG2_FRACTION;
    return table;
}

// log2(v) 2^16 of v >= 1, within 2^-16 or so.
inline uint64_t log2_fixed(uint64_t v) {
    static constexpr std::array<uint32_t, 257> TABLE = make_log2_table();
    const int whole = bit_width(v) - 1;
    const uint64_t mantissa = v << (63 - whole);  // its leading 1 is bit 63
    const uint64_t at = mantissa >> 55 & 255, rest = mantissa >> 39 & 0xffff;
    return (uint64_t(whole) << LOG2_FRACTION) + TABLE[at] + ((TABLE[at + 1] - TABLE[at]) * rest >> 16);
}

// Bits that an ideal code takes for what occurs counts[0 .. size) times.
template <class Count>
double entropy_bits(const Count* counts, int size) {
    uint64_t total = 0, sum = 0;
    for (int s = 0; s < size; s++) {
        if (counts[s] == 0) continue;
        total += counts[s];
        sum += counts[s] * log2_fixed(counts[s]);
    }
    return total == 0 ? 0.0 : double(total * log2_fixed(total) - sum) / double(1 << LOG2_FRACTION);
}

}  // namespace edgegossip::coding
