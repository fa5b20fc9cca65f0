// The inner loops of the Huffman stage, which gain from an instruction set's variable shifts. Streams are strings of bits,
// LSB first; a code stands with its first bit lowest. Everything else about the stages lies in core/.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int HUFFMAN_MAX_BITS = 14;
constexpr int HUFFMAN_WINDOW_BITS = 12;  // at most

// What the next `window` bits of a stream decode to: bits 0 .. 15 two symbols, 16 .. 23 the bits of what it holds, 24 .. 27
// the bits of the first symbol alone, 28 .. 31 how many symbols it holds, 1 or 2. An entry below 2^28 is the start of a longer
// code: the place of the 2^(14 - window) entries of which the next bits choose one.
using DecodeEntry = uint32_t;

static inline DecodeEntry decode_entry(const DecodeEntry* table, int window, uint64_t bits) {
    const DecodeEntry e = table[bits & ((uint64_t(1) << window) - 1)];
    return __builtin_expect(e >> 28 != 0, 1) ? e : table[e + (bits >> window & ((uint64_t(1) << (HUFFMAN_MAX_BITS - window)) - 1))];
}

// A symbol's code: code << 8 | bits. 0 where the symbol has none.
using EncodeEntry = uint32_t;

struct Entropy {
    // hist[256] += how often each byte occurs.
    void (*histogram)(const uint8_t* symbols, int64_t m, uint32_t* hist);

    // Writes the codes of m symbols, padded with zero bits to a byte; returns the bytes. Up to 8 bytes beyond are touched.
    int64_t (*encode)(const uint8_t* symbols, int64_t m, const EncodeEntry* table, uint8_t* out);

    // Decodes `streams` (1 or 4) streams, which lie one after the other at `in` and have these sizes in bytes. The first
    // three of four hold m / 4 symbols each, the last the others. `end`: the end of what may be read, at or after the last
    // stream's. `out`, uint8[m], may be null: nothing is then stored. False unless every stream is used up to its last
    // byte and padded with zeros. Nothing outside is read or written, whatever the streams hold.
    // `soon`: what the symbols' values will be written to next, four bytes each or less (or null); it is called into the cache.
    bool (*decode)(const uint8_t* in, const int64_t* sizes, int streams, const uint8_t* end, const DecodeEntry* table,
                   int window, uint8_t* out, int64_t m, const void* soon);
};

}  // namespace edgegossip
