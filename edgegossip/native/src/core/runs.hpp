// The stage for sparse tensors: a token a nonzero code, run length and code in one Huffman symbol.
//
//   token = min(run >> k, 15) << 4 | sign << 3 | min(level, 7), then the k low bits of the run, then, where level >= 7,
//   omega(level - 6); 0xf0 stands for 15 << k zeros and no code, and is sent as often as run >> k >= 15.
//
// A unit of 2^14 or 2^18 values is a string of bits of its own; the zeros at its end are skips that reach or pass it.
#pragma once

#include <cstdint>

#include "../kernels/entropy.hpp"
#include "../kernels/quantise.hpp"
#include "bits.hpp"

namespace edgegossip::coding {

constexpr uint8_t SKIP_TOKEN = 0xf0;
constexpr int MAX_RUN_BITS = 14;
constexpr int SHORT_UNIT_LOG2 = 14, LONG_UNIT_LOG2 = 18;

// k for a share nonzeros / values.
int run_bits_for(int64_t nonzeros, int64_t values);

// hist[256] += the tokens of n values as a unit; returns the bits that stand beside the tokens.
int64_t count_tokens(const uint8_t* symbols, int64_t n, int bits, int k, uint32_t* hist);

// Writes a unit, called for its blocks in order.
struct RunsWriter {
    BitWriter out;
    int64_t run = 0;  // zeros since the last nonzero

    // False when it would reach `limit`, which lies 16 bytes before the end of what may be touched.
    bool put(const uint8_t* symbols, int64_t n, int bits, int k, const EncodeEntry* table, const uint8_t* limit);
    bool finish(int k, const EncodeEntry* table, const uint8_t* limit);  // the zeros at the end
};

// Reads a unit in blocks, in order.
struct RunsReader {
    BitReader in;
    int64_t run = 0;         // zeros that come before `pending`, or after which the next token is read
    uint32_t pending = 0;    // a code that was read but lies beyond the last block

    // Symbols of the next n values (null: only checks). False when the bits end or a level is impossible.
    bool get(uint8_t* symbols, int64_t n, const Quantiser& q, int k, const DecodeEntry* table);
    bool finished() const { return pending == 0 && in.at_end(); }
};

}  // namespace edgegossip::coding
