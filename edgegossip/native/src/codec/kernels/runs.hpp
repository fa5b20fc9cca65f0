// The inner loops of the runs coder. A stream of it is a row of items: a code that is not zero with the zeros before it, or a
// longer run of zeros alone. codec/runs.hpp says what an item's bits are.
#pragma once

#include <cstdint>

#include "codec/kernels/entropy.hpp"
#include "codec/kernels/quantise.hpp"

namespace edgegossip {

constexpr int RUN_SKIP = 0xf0;      // the token of zeros alone
constexpr int MAX_RUN_BITS = 13;
constexpr int64_t FOUR_RUN_STREAMS_FROM = 2048;  // values

// The values of each of the first three of four streams.
static inline int64_t run_quarter(int64_t n) { return n / 256 * 64; }

// Where the signs of codes are: a bit beside each token, or nowhere, as all are the same.
enum RunSigns : int32_t { SIGNS_BESIDE = 0, ALL_PLUS = 1, ALL_MINUS = 2 };

struct RunShape {
    int32_t bits;       // of a code
    int32_t max_level;
    int32_t run_bits;   // k: low bits of a run of zeros that stand beside the token
    RunSigns signs;
};

// How a token has a level, of which there are so many: as it is, or its class, after which so many of its low bits follow. Two classes
// halve an octave (1, 2, 3, 4-5, 6-7, 8-11, 12-15 ..), or one is one (1, 2-3, 4-7 ..), so that there are 15 at most. (Always inlined:
// of functions that are not, the linker would keep those of one instruction set.)
#define EDGEGOSSIP_INLINED __attribute__((always_inline)) constexpr
struct LevelClasses {
    int32_t halves;  // of an octave that are classes: 0 where levels are as they are

    EDGEGOSSIP_INLINED explicit LevelClasses(int32_t max_level) : halves(max_level <= 7 ? 0 : max_level <= 255 ? 2 : 1) {}

    // The first level of which low bits follow.
    EDGEGOSSIP_INLINED uint32_t first_wide() const { return halves == 0 ? UINT32_MAX / 2 : halves == 2 ? 4 : 2; }

    // Low bits of levels of a class.
    EDGEGOSSIP_INLINED uint32_t low_bits(uint32_t c) const { return halves == 0 || c < first_wide() ? 0 : halves == 2 ? c / 2 - 1 : c - 1; }

    // The least level of a class.
    EDGEGOSSIP_INLINED uint32_t base(uint32_t c) const {
        if (halves == 0 || c < first_wide()) return c;
        return halves == 2 ? (2 | (c & 1)) << (c / 2 - 1) : 1u << (c - 1);
    }

    EDGEGOSSIP_INLINED uint32_t of(uint32_t level) const {
        if (halves == 0 || level < first_wide()) return level;
        const uint32_t octave = 31 - uint32_t(__builtin_clz(level));
        return halves == 2 ? 2 * octave + (level >> (octave - 1) & 1) : octave + 1;
    }
};

#undef EDGEGOSSIP_INLINED

// An item: a token, and in bits 8 .. 30 what stands beside it; or with bit 31 the low bits of its level, and from bit 16 on how many.
constexpr uint32_t RUN_LOW_BITS = uint32_t(1) << 31;

// A token's code word and the bits of an item: code << 16 | bits of the whole item << 8 | bits of the code.
using RunEntry = uint32_t;

// What the next 11 bits of a stream decode to: bits 0 .. 3 how many of them the code word and the sign take, 4 .. 7 how many low bits of
// the level follow, 8 .. 23 the code without those (0 for zeros alone), 24 .. 27 the high bits of the run. Bit 31: there are
// low bits of the level; bits 31 and 30: the start of a longer word, bits 0 .. 15 the place of the entries of which the next four bits choose one.
using TokenEntry = uint32_t;
constexpr int RUN_WINDOW_BITS = 11;
constexpr int64_t RUN_WINDOWS = int64_t(1) << RUN_WINDOW_BITS;
constexpr int64_t RUN_AFTER = int64_t(1) << (HUFFMAN_MAX_BITS + 1 - RUN_WINDOW_BITS);
constexpr int64_t RUN_ENTRIES = RUN_WINDOWS + 256 * RUN_AFTER;

// Whole items that the next ITEMS_WINDOW_BITS bits hold: byte 0 how many of the bits they take, 1 how many values they stand for, 2 how
// many of these are zeros before the first code, and bits 32 .. 63 the codes of it and the seven values after it, four bits each (of
// codes of more bits the lowest three and the sign). Where not even the first item ends within, ITEMS_LONG, which takes nothing
// and gives none.
using ItemsEntry = uint64_t;
constexpr int ITEMS_WINDOW_BITS = 11;
constexpr int64_t ITEMS_WINDOWS = int64_t(1) << ITEMS_WINDOW_BITS;
constexpr ItemsEntry ITEMS_LONG = 0x80;
constexpr int ITEMS_CODES = 8, ITEMS_CODES_AT = 32;
constexpr int MOST_ITEMS_VALUES = 64, MOST_ITEMS_RUN_BITS = 2;  // a run and its code are 16 << k values at most
static_assert(16 << MOST_ITEMS_RUN_BITS <= MOST_ITEMS_VALUES);

// Bytes in which a block of n values is read: codes of a byte, and so many between those of two streams and beyond.
constexpr int64_t RUN_ROOM_BESIDE = 64;
static inline int64_t run_room(int64_t n) { return n + 4 * RUN_ROOM_BESIDE; }

struct TokenTable {
    const TokenEntry* entries;
    const ItemsEntry* several;  // or null
};

struct Runs {
    // The items of a stream of n values, at most 65536: how many, at most 2 n + 1; 2 n + 17 are touched. hist[256] += their tokens.
    int64_t (*items)(const uint8_t* symbols, int64_t n, const RunShape* shape, uint32_t* items, uint32_t* hist);

    // Their bits, padded with zero bits to a byte; returns the bytes. Up to 8 bytes beyond are touched.
    int64_t (*write)(const uint32_t* items, int64_t count, const RunEntry* table, uint8_t* out);

    // Values of a block of n from 1 or 4 streams, which lie one after the other at `in` and have these sizes in bytes; `end`: the end
    // of what may be read; `room`: run_room(n) bytes, and as many as n symbols take; to.out null: nowhere. False, and nothing is written to
    // `to`, unless each stream has its values exactly and is used up to its last byte and padded with zeros. Nothing outside is
    // read or written, whatever the streams hold.
    bool (*read)(const uint8_t* in, const int64_t* sizes, int streams, const uint8_t* end, const TokenTable& table, const RunShape* shape,
                 uint8_t* room, int64_t n, const Values& to);
};

}  // namespace edgegossip
