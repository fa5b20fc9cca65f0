// Quantisers: a float32 tensor <-> a row of w-bit codes, sign << (w - 1) | level; w = 1: 1 means negative. Zero is always
// code 0. Symbols: w <= 8 in the next power of two W of {1, 2, 4, 8} bits, 8 / W codes a byte, first code in the low bits;
// w = 9 .. 16 in a little-endian uint16 (at any alignment). Unused bits of the last byte are 0.
#pragma once

#include <cstdint>

namespace edgegossip {

enum QuantiserKind : int32_t { UNIFORM = 0, LOG2 = 1, LEVELS = 2, FP4 = 3, SIGN = 4 };

struct Quantiser {
    int32_t kind;
    int32_t bits;        // w: UNIFORM 2 .. 16, LOG2 and LEVELS 2 .. 8, FP4 4, SIGN 1
    int32_t levels;      // s: UNIFORM levels 0 .. s; LOG2 levels 0, 2^-s, .., 1/2, 1 (codes 0 .. s + 1); others: unused
    int64_t bucket;      // values a scale: a power of two, 8 .. 65536; 0: one scale for the tensor
    const float* list;   // LEVELS: list[0] = 0 < list[1] < .. < list[list_count - 1] = 1
    int32_t list_count;  // 2 .. 2^(bits - 1)
};

// Where values go, and by what their codes become values: out = value, or out += weight * value.
struct Values {
    const Quantiser* q;
    const float* scales;  // from that of the first value on
    float* out;
    bool accumulate;
    float weight;
};

// What norms work on at once; also where a sum of many values is cut (threads may sum blocks apart and add in order).
constexpr int64_t QUANTISE_BLOCK = 65536;

struct Quantise {
    // Bucket norms (norm 0: L2, 1: L-infinity) of x[0 .. n): ceil(n / bucket) of them, rounded up to what travels (codec/scales.hpp),
    // or one float32 when bucket is 0 and n > 0. False when x holds NaN or infinity.
    bool (*norms)(const float* x, int64_t n, int64_t bucket, int32_t norm, float* scales);

    // sum, sum |x|, sum x^2, max |x| in double: blocks of 65536 in fixed lanes, added in order, so that a caller may do
    // the blocks apart. max |x| is not finite exactly when x holds NaN or infinity.
    void (*moments)(const float* x, int64_t n, double out[4]);

    // Symbols of elements first .. first + n of a tensor; first is a multiple of the bucket and of 512; x, scales and
    // symbols point at element `first`, its bucket and its byte. key is the tensor's. x and scales are finite, scales >= 0.
    void (*quantise)(const float* x, int64_t n, const Quantiser* q, uint64_t key, int64_t first, const float* scales,
                     uint8_t* symbols);

    // norms and quantise in one pass, for a bucket other than 0: writes the scales too. False when x holds NaN or
    // infinity; what was written is then of no use.
    bool (*quantise_with_norms)(const float* x, int64_t n, const Quantiser* q, int32_t norm, uint64_t key, int64_t first,
                                float* scales, uint8_t* symbols);

    // Values of n symbols from the start of a bucket and byte. False when a code is none of the quantiser's (`out` is then unspecified),
    // which is not looked at where they are `checked`. Nor are unused bits of the last byte.
    bool (*dequantise)(const uint8_t* symbols, int64_t n, const Values& to, bool checked);

    // The random uint32 of elements first .. first + n of a tensor with this key.
    void (*uniform32)(uint64_t key, int64_t first, int64_t n, uint32_t* out);
};

}  // namespace edgegossip
