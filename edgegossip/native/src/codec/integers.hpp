// A string of integers, most of them small: blocks of 64 values, each coded with one of a few models. A model has a table of shares, or four
// of them for the places of a row of 8. Where values are quiet or loud in turn, or most are of one sign, blocks of each kind have models that
// suit them; what tensor a value belongs to does not matter.
//
//   bits: 2 kind; of a coded one: 4 models - 1 | 2 tables | 1 32 lanes, not 1 | 1 escapes
//   models: 7 largest magnitude | 8 share of escapes, if there are any | 5 for each table and symbol: half octaves that its share is below 1
//   escapes: count, size; their string     models of blocks: size; their string     states, u32 each     words, u16 each
//
// The symbol of a value is 0, 1, 2, 3, 4 .. for 0, 1, -1, 2, -2 ..; by how much escapes are beyond their model's largest magnitude is
// a string of its own. docs/wire-format.md
// has every bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/kernels/rans.hpp"

namespace edgegossip::coding {

enum StringKind : uint32_t { ALL_ZERO = 0, PLAIN = 1, CODED = 2 };

constexpr int MOST_MODELS = 16;
constexpr int MOST_MAGNITUDE = 127;       // of a symbol
constexpr int MOST_DEPTH = 3;             // strings in strings
constexpr int64_t VALUES_A_TABLE = 1024;  // for each table beyond the first: what a receiver does for tables is bounded by the values

// Values as symbols; of those that have none (RANS_ESCAPE) the values, in order.
struct Integers {
    std::vector<uint8_t> symbols;
    std::vector<int32_t> wide;
};

void put_integers(const int32_t* values, int64_t n, Integers* out);

// What a sender knows of a string.
enum class StringShape {
    NUMBERS,   // nothing
    SIGNED,    // where blocks are of no sign, the sign of a value is as good as random
    DITHERED,  // which place of a row a value has says something about it
};

// What tables a model has, as it travels.
enum class Tables : uint8_t {
    ONE,         // with a level for each symbol
    PLACES,      // four of them: for places 0 and 1 of a row, 2 and 3, ...
    MAGNITUDES,  // one with a level for each magnitude, of both signs
    MIRRORED,    // four: for places 0 and 7, 1 and 6, ..., of symbols as `mirror` has them
};

constexpr int tables_of(Tables kind) { return kind == Tables::PLACES || kind == Tables::MIRRORED ? 4 : 1; }

// The table of a place, where there are four.
constexpr int table_of(Tables kind, int place) { return kind == Tables::MIRRORED ? (place < 4 ? place : 7 - place) : place / 2; }

// Of one model, as it travels.
struct Model {
    int largest = 0;  // magnitude; 0: all values are 0
    int escapes = 0;  // of 4096 slots
    std::vector<uint8_t> levels;  // of table 0, then 1 ..: of magnitudes 0 .. largest, or of symbols 0 .. 2 largest
};

constexpr uint8_t NO_LEVEL = 31;

struct Models {
    Tables kind;
    std::vector<Model> models;
    std::vector<uint8_t> index;  // of blocks
    uint64_t bits;               // that all symbols and tables take, about

    int tables() const { return tables_of(kind); }
    int levels(const Model& m) const { return m.largest == 0 ? 0 : tables() * (kind == Tables::MAGNITUDES ? m.largest + 1 : 2 * m.largest + 1); }
};

// Changes the signs of the symbols at places 4 to 7 of each row: dither pushes those up that it pushes down at the places across, and where
// steps are much larger than values nothing else says what is not zero.
void mirror(uint8_t* symbols, int64_t n);

// What models suit these symbols best.
Models choose_models(const uint8_t* symbols, int64_t n, StringShape shape);

// The shares of a model's table, of RANS_SLOTS slots. False when it has none.
bool shares_of(const Models& all, const Model& m, int table, uint32_t shares[256]);

// Appends the string.
void write_string(const Rans& kernels, const Integers& integers, StringShape shape, std::vector<uint8_t>* out);

// Reads the string of n values that fills p .. end. 0 or a SectionError.
int64_t read_string(const Rans& kernels, const uint8_t* p, const uint8_t* end, int64_t n, int depth, Integers* out);

// One integer after the other.
void get_integers(const Integers& integers, int64_t first, int64_t n, size_t* wide, int32_t* values);

}  // namespace edgegossip::coding
