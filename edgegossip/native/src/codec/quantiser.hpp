// What a quantiser may be, and the sizes that follow from it.
#pragma once

#include "codec/kernels/quantise.hpp"

namespace edgegossip {

// Why the kernels cannot take this quantiser, or nullptr when they can.
const char* quantiser_error(const Quantiser& q);

// Bits of a symbol: those of a code rounded up to 1, 2, 4, 8 or 16.
inline int bits_of_symbol(const Quantiser& q) { return q.bits <= 1 ? 1 : q.bits <= 2 ? 2 : q.bits <= 4 ? 4 : q.bits <= 8 ? 8 : 16; }

inline int64_t bytes_of_symbols(const Quantiser& q, int64_t n) { return (n * bits_of_symbol(q) + 7) / 8; }

// Scales of n values: one a bucket, or one in all, of no values none.
inline int64_t count_of_scales(int64_t bucket, int64_t n) { return n == 0 ? 0 : bucket == 0 ? 1 : (n + bucket - 1) / bucket; }

}  // namespace edgegossip
