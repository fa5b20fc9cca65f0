// A block of the Huffman coder: up to 65536 values as 1 or 4 streams, or as they are.
//
//   u16 bytes of each stream, the streams; or u16 0xffff and the dense codes where that is smaller
//
// A block of fewer than 1024 bytes of symbols is one stream, a larger one four.
#pragma once

#include <cstdint>

#include "codec/huffman.hpp"
#include "codec/kernels/entropy.hpp"
#include "codec/kernels/quantise.hpp"

namespace edgegossip::coding {

constexpr int64_t FOUR_STREAMS_FROM = 1024;  // bytes of symbols
constexpr uint16_t RAW_BLOCK = 0xffff;

inline int streams_of(int64_t symbols) { return symbols < FOUR_STREAMS_FROM ? 1 : 4; }
inline int64_t coded_block_bound(int64_t symbols) { return 8 + symbols * HUFFMAN_MAX_BITS / 8 + 64; }

// The bytes written for n values.
int64_t encode_block(const Entropy& kernels, const uint8_t* symbols, int64_t n, int bits, const EncodeEntry* table, uint8_t* out);

// The bytes of the block of n values at p, or 0 when it reaches beyond `end`.
int64_t block_size(const uint8_t* p, const uint8_t* end, int64_t n, int bits);

constexpr int GROUP_BLOCKS = HUFFMAN_MOST_STREAMS / 4;  // full ones that are decoded side by side

// A block whose size is known to be good, of n values, and where its symbols go.
struct CodedBlock {
    const uint8_t* p;
    int64_t n;
    uint8_t* symbols;
    bool checked;   // found: the symbols are codes; else they are those of a raw block, and were not looked at
    int64_t error;  // found: 0 or a SectionError
};

// Symbols of blocks that have HUFFMAN_MOST_STREAMS streams at most. `end`: of what may be read.
void decode_blocks(const Entropy& kernels, CodedBlock* blocks, int count, const uint8_t* end, const Quantiser& q, const DecodeTable& table,
                   const Soon& soon);

}  // namespace edgegossip::coding
