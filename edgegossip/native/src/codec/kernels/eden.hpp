// EDEN (Vargaftik et al. 2022): a block of values, rotated at random and rounded to the Lloyd-Max levels of a normal law.
//
// A block has d values, d a power of two from 32 to 4096. It is rotated k times (2 from d = 1024 on; 3, 4, 4, 6 and 8 for 512, 256,
// 128, 64 and 32, which take more turns to look like noise): signs are drawn
// (rotation r: bit i mod 32 of word r d / 32 + i / 32 negates value i), and the Walsh-Hadamard transform is taken, without its
// factor, by butterflies (a + b, a - b) at distances d / 2, d / 4, .., 1. Word w of a block is the random number (isa/random.inc)
// of element 2 (position / 4 + w).
//
// On the wire: a float32 scale g, then `bits` planes of d / 8 bytes, value i in bit i mod 8 of byte i / 8: signs, then the level from
// its highest bit on. The decoded block is g 2^-m times the levels, rotated back without the factor; m = (k log2(d) + 1) / 2 - 2.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int64_t EDEN_LARGEST = 4096, EDEN_LEAST = 32;  // values of a block

struct EdenBlock {
    int64_t size;       // d
    int64_t count;      // how many of them the tensor has, 1 .. d; zeros stand for the rest
    int64_t position;   // of the first one in the tensor
    int32_t bits;       // 1 .. 4
    uint64_t key;       // of the tensor
};

struct Eden {
    // A block of the wire, 4 + bits d / 8 bytes, of x[0 .. count). False when one of these is not finite.
    bool (*encode)(const float* x, const EdenBlock& block, uint8_t* body);

    // out[0 .. count) = values, or out += weight * value, of a block whose scale is finite and not negative. Finite for any such block.
    void (*decode)(const uint8_t* body, const EdenBlock& block, float* out, bool accumulate, float weight);
};

}  // namespace edgegossip
