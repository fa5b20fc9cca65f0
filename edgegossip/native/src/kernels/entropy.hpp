// The inner loops of the Huffman stage, which gain from an instruction set's variable shifts. Streams are strings of bits,
// LSB first; a code stands with its first bit lowest. Everything else about the stages lies in core/.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int HUFFMAN_MAX_BITS = 14;
constexpr int HUFFMAN_WINDOW_BITS = 12;  // at most
constexpr int HUFFMAN_MOST_STREAMS = 8;  // decoded side by side
constexpr int HUFFMAN_MOST_SYMBOLS = 6;  // of an entry

// What the next `window` bits of a stream decode to: bits 0 .. 5 how many of them the codes take that end within, 8 .. 15 how
// many codes these are, 16 .. 63 their symbols, the first lowest. When not even the first ends within, bits 0 .. 15 are
// HUFFMAN_LONG, which takes no bit and gives no symbol, and the others the place of the 2^(14 - window) entries of which the
// next bits choose one.
using DecodeEntry = uint64_t;
constexpr DecodeEntry HUFFMAN_LONG = 0x80;

// The same in half of the room, so that a table stays in a first cache of 32 KiB: bits 0 .. 5 how many bits the codes take, 6 and 7
// how many codes these are, three at most, 8 .. 31 their symbols. When not even the first ends within, bits 0 .. 7 are 0 and the
// others the place.
using ShortEntry = uint32_t;
constexpr int HUFFMAN_SHORT_SYMBOLS = 3;
constexpr ShortEntry HUFFMAN_SHORT_COUNT = 0xc0;

struct DecodeTable {
    const DecodeEntry* entries;
    const uint8_t* bits;  // of each symbol's code
    int window;
    const ShortEntry* short_entries;  // or null, where many windows have more than three codes
};

// A stream and where its symbols go.
struct HuffmanStream {
    const uint8_t* in;
    int64_t size;    // bytes
    uint8_t* out;
    int64_t wanted;  // symbols
    bool good;       // found: used up to its last byte and padded with zeros
};

// Memory that is read or written once streams are decoded, part after part. It is fetched meanwhile where that gains: lookups
// leave it idle, and what comes after them would wait for it.
struct Soon {
    static constexpr int PARTS = 3;
    const uint8_t* p[PARTS];
    int64_t bytes[PARTS];
};

// A symbol's code: code << 8 | bits. 0 where the symbol has none.
using EncodeEntry = uint32_t;

struct Entropy {
    // hist[256] += how often each byte occurs.
    void (*histogram)(const uint8_t* symbols, int64_t m, uint32_t* hist);

    // Writes the codes of m symbols, padded with zero bits to a byte; returns the bytes. Up to 8 bytes beyond are touched.
    int64_t (*encode)(const uint8_t* symbols, int64_t m, const EncodeEntry* table, uint8_t* out);

    // Decodes streams, at most HUFFMAN_MOST_STREAMS, side by side and says of each whether it is good. `end`: the end of what may
    // be read, at or after all streams'. Nothing outside is read or written, whatever they hold. `soon` may be anywhere.
    void (*decode)(HuffmanStream* streams, int count, const uint8_t* end, const DecodeTable& table, Soon soon);
};

}  // namespace edgegossip
