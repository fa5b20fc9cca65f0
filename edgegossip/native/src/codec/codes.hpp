// What the drivers know of a quantiser's codes: their widths, which of them exist, and how they are packed.
#pragma once

#include <cstdint>

#include "codec/kernels/quantise.hpp"

namespace edgegossip::coding {

constexpr int64_t BLOCK_VALUES = 65536;                     // what is quantised and coded while it is hot in the cache
constexpr int64_t BLOCK_BYTES = 2 * BLOCK_VALUES;           // its symbols at most
constexpr int64_t BLOCK_SCALES = BLOCK_VALUES / 8;          // its scales at most

// Bits that a code takes in a row of symbols: 1, 2, 4, 8 or 16.
int symbol_width(int bits);

inline int64_t symbol_bytes(int64_t n, int bits) { return (n * symbol_width(bits) + 7) / 8; }
inline int64_t dense_bytes(int64_t n, int bits) { return (n * bits + 7) / 8; }
inline int64_t scale_count(int64_t n, int64_t bucket) { return n == 0 ? 0 : bucket == 0 ? 1 : (n + bucket - 1) / bucket; }
inline bool is_dense(int bits) { return symbol_width(bits) == bits; }

// Largest level of a code; codes are sign << (bits - 1) | level, and level 0 has no sign (SIGN: no level, both signs).
int32_t max_level(const Quantiser& q);
inline bool is_code(const Quantiser& q, uint32_t code) {
    if (q.kind == SIGN) return code <= 1;
    const uint32_t level = code & ((1u << (q.bits - 1)) - 1);
    return level <= uint32_t(max_level(q)) && code >> q.bits == 0 && (level > 0 || code == 0);
}

// Which byte symbols (bits <= 8) are made of codes only: uint8[256], 1 or 0.
void mark_symbols(const Quantiser& q, uint8_t* valid);

// Every code of n in `symbols` is one of the quantiser's, and the unused bits are 0.
bool are_codes(const Quantiser& q, const uint8_t* symbols, int64_t n);

// Symbols <-> dense bits (LSB first, unused bits of the last byte 0), for widths that are not dense by themselves.
// unpack does not look at unused bits; has_padding tells whether one of them is set.
void pack_dense(const uint8_t* symbols, int64_t n, int bits, uint8_t* dense);
void unpack_dense(const uint8_t* dense, int64_t n, int bits, uint8_t* symbols);
bool has_padding(const uint8_t* dense, int64_t n, int bits);

}  // namespace edgegossip::coding
