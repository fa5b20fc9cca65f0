// The inner loops of the Huffman coder, which gain from an instruction set's variable shifts. Streams are strings of bits,
// LSB first; a code stands with its first bit lowest. Everything else about the coders lies in codec/.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int HUFFMAN_MAX_BITS = 14;
constexpr int HUFFMAN_WINDOW_BITS = 12;  // at most
constexpr int HUFFMAN_MOST_STREAMS = 8;  // decoded side by side

// What the next `window` bits of a stream decode to, in one of two forms. From bit 0 on how many of these bits the codes take that end
// within, from COUNT_AT how many codes these are, MOST_SYMBOLS at most, from SYMBOLS_AT their symbols, the first lowest. When not even
// the first ends within, what is below SYMBOLS_AT is LONG, which takes no bit and gives no symbol, and the rest the place of
// the 2^(14 - window) entries of which the next bits choose one.
using WholeEntry = uint64_t;
using ShortEntry = uint32_t;  // half the room, so that a table stays in a first cache of 32 KiB

template <class Entry>
struct EntryForm;

template <>
struct EntryForm<WholeEntry> {
    static constexpr int COUNT_AT = 8, SYMBOLS_AT = 16, MOST_SYMBOLS = 6;
    static constexpr WholeEntry LONG = 0x80;
};

template <>
struct EntryForm<ShortEntry> {
    static constexpr int COUNT_AT = 6, SYMBOLS_AT = 8, MOST_SYMBOLS = 3;
    static constexpr ShortEntry LONG = 0;
};

template <class Entry>
constexpr Entry ENTRY_COUNT = (Entry(1) << (EntryForm<Entry>::SYMBOLS_AT - EntryForm<Entry>::COUNT_AT)) - 1;  // above COUNT_AT

template <class Entry>
static inline int count_of(Entry e) {
    return int(e >> EntryForm<Entry>::COUNT_AT & ENTRY_COUNT<Entry>);
}

// The symbols, or the place.
template <class Entry>
static inline Entry rest_of(Entry e) {
    return e >> EntryForm<Entry>::SYMBOLS_AT;
}

struct DecodeTable {
    const ShortEntry* short_entries;
    const WholeEntry* entries;  // where the others are null: many windows have more than three codes
    const uint8_t* bits;        // of each symbol's code
    int window;
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
    static constexpr int PARTS = 4;
    struct Part {
        const uint8_t* p;
        int64_t bytes;
    } parts[PARTS];
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
