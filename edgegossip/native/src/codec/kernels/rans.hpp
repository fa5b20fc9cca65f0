// The inner loops of the coder of integers: range asymmetric numeral systems (rANS; Duda 2013, with the interleaved lanes of Giesen 2014).
// A table has 4096 slots, of which each symbol has its share. codec/integers.hpp says how a string lies in memory.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int RANS_BITS = 12;
constexpr uint32_t RANS_SLOTS = 1u << RANS_BITS;
constexpr int RANS_LANES = 32;            // or one
constexpr uint32_t RANS_LOW = 1u << 16;   // a state below takes a word of 16 bits, where there is one
constexpr int RANS_BLOCK = 64;            // values that share a model
constexpr int RANS_ROW = 8;               // values one after the other, which have a table each
constexpr uint8_t RANS_ESCAPE = 255;      // the symbol of a value that is told elsewhere

// Of a slot: symbol | (share - 1) << 8 | (slot - the symbol's first slot) << 20.
using RansSlots = uint32_t[RANS_SLOTS];

// What encoding a symbol takes: floor(2^44 / share) + 1; the largest state that takes it before a word goes out, 2^20 share - 1; and
// share - 1 | its first slot << 12.
struct RansSymbol {
    uint64_t inverse;
    uint32_t most, slots;
};
using RansSymbols = RansSymbol[256];

// The model of a block: which table each place of a row has. Null: all its symbols are 0 and take no bits.
template <class Table>
struct RansModel {
    const Table* tables;     // those of all models
    int32_t at[RANS_ROW];
    bool empty;
};

struct RansStream {
    uint32_t state[RANS_LANES];
    const uint8_t *words, *end;  // of 16 bits
};

struct Rans {
    // Symbols of n values (a multiple of RANS_ROW) in blocks of the models `model[index[block]]`. Value p is of lane p mod `lanes`.
    void (*read)(RansStream* stream, int lanes, const RansModel<RansSlots>* models, const uint8_t* index, int64_t n, uint8_t* symbols);

    // The same back to front: words end at `end`; where they begin. All symbols have shares.
    uint8_t* (*write)(uint32_t* state, int lanes, const RansModel<RansSymbols>* models, const uint8_t* index, int64_t n,
                      const uint8_t* symbols, uint8_t* end);
};

}  // namespace edgegossip
