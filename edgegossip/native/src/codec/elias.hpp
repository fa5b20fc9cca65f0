// Elias's recursive (omega) code (Elias 1975), as QSGD and ElastiQuant send sparse vectors: "0"; while k > 1, bin(k) in front
// and k = len(bin(k)) - 1. 1 is `0`, 2 `100`, 3 `110`, 4 `101000`. Written LSB first, the first bit of a word lowest.
#pragma once

#include <cstdint>

#include "codec/kernels/quantise.hpp"
#include "codec/bits.hpp"

namespace edgegossip::coding {

struct OmegaWord {
    uint64_t bits;
    uint32_t count;
};

// The word of k >= 1; at most 56 bits for k < 2^41.
OmegaWord omega(uint64_t k);

// Reads a word of at most 56 bits; 0 when it is longer.
uint64_t read_omega(BitReader* in);

// The payload of the Elias coder after its count: for each nonzero code omega(gap), sign, omega(level); gaps from the
// previous nonzero of the tensor, the first from -1. Called for blocks in order.
struct EliasWriter {
    BitWriter out;
    uint64_t gap = 0;     // zeros since the last nonzero
    uint32_t nonzeros = 0;

    // False when the payload would reach `limit`, which lies 16 bytes before the end of what may be touched.
    bool put(const uint8_t* symbols, int64_t n, int bits, const uint8_t* limit);
};

// Bits that the block would take, and its nonzeros, for an estimate.
int64_t elias_bits(const uint8_t* symbols, int64_t n, int bits, int64_t* nonzeros);

// Decodes blocks in order.
struct EliasReader {
    BitReader in;
    uint32_t left;           // nonzeros not yet read
    int64_t values;          // of the tensor not yet passed by `ahead`
    uint64_t ahead = 0;      // gap of the next nonzero that was read but lies beyond the last block; 0: none was read
    
    // Symbols of the next n values (null: only checks). False when a word, a gap or a level is impossible.
    bool get(uint8_t* symbols, int64_t n, const Quantiser& q);
    bool finished() const { return left == 0 && ahead == 0 && in.at_end(); }
};

}  // namespace edgegossip::coding
