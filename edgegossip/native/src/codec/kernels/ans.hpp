// The inner loops of the ans coder: asymmetric numeral systems by table (tANS; Duda 2013), of 256 states in 64 lanes. A lane's state tells
// its code and how many bits it takes next, before any bit is read; so all lanes step at once, and eight share a string of bits.
// codec/ans.hpp says how a block lies in memory.
#pragma once

#include <cstdint>

#include "codec/kernels/entropy.hpp"

namespace edgegossip {

constexpr int ANS_STATES = 256;
constexpr int ANS_LANES = 64;
constexpr int ANS_STRINGS = ANS_LANES / 8;         // of bits: lanes 8 k .. 8 k + 7 take from string k, in order
constexpr int64_t ANS_ROW = 2 * ANS_LANES;         // values of two steps: the first gives the even ones, the second the odd ones
constexpr int64_t ANS_ROW_BYTES = ANS_ROW / 2;     // of symbols, two codes of four bits each
constexpr int64_t ANS_STEP_WORDS = ANS_STRINGS;    // of 64 bits at most, which a step takes

// What a state gives. The next one is base + the next bits.
struct AnsTable {
    alignas(64) uint8_t code[ANS_STATES];  // code << 4 | how many bits, 0 to 8
    alignas(64) uint8_t base[ANS_STATES];
};

// The inverse, of state s and a code: bits = most[code] - (s < limit[code]), which are s's low ones; the next state is
// next[(256 + s >> bits) + first[code] mod 256]. Codes without a share of the states have instead[code] in their place.
struct AnsCodes {
    alignas(16) uint8_t most[16], limit[16], first[16], instead[16];
    alignas(64) uint8_t next[ANS_STATES];
    uint8_t filling;  // in place of those, and after the last value
};

// Where lanes and strings stand. Of a string two words are at hand, of the first of which `used` bits are gone.
struct AnsPlace {
    alignas(64) uint8_t state[ANS_LANES];
    uint64_t word[ANS_STRINGS], after[ANS_STRINGS];
    uint64_t used[ANS_STRINGS];  // below 64
};

// A block that is read, some rows at a time. It must stay where it is meanwhile.
struct AnsStream {
    static constexpr int64_t ROW_MOST = 2 * 8 * ANS_STEP_WORDS;  // bytes of words that a row takes

    AnsPlace place;
    const AnsTable* table;
    const uint8_t *words, *stop;  // strings that used one up take one, after each step, string 0 first; zeros follow from `stop` on
    const uint8_t* end;           // of what may be read, `stop` at first
    uint8_t* out;                 // of symbols
    uint8_t last[8 + 12 * ROW_MOST];  // the last words and zeros, which are read from here
};

constexpr int ANS_AT_ONCE = 4;  // blocks at most

struct Ans {
    // Which of n codes have no share, and so another one's in their place: gap << 4 | code for each, with the values since the last
    // one, below ANS_MOST_GAP of them; and ANS_MOST_GAP << 4 for so many values without one. How many numbers these are, or -1 where there
    // are more than `most`. Of `out` most + 2 * ANS_ROW are touched.
    int64_t (*strays)(const uint8_t* symbols, int64_t n, const AnsCodes& codes, uint16_t* out, int64_t most);

    // From where a reader is to stand after rows of symbols to where it stands before them. The words that it takes between are written
    // before `end`, ANS_ROW bytes a row at most, and 8 bytes from there on are looked at; where they start. Up to 32 bytes below
    // that may be written over.
    uint8_t* (*write)(const uint8_t* symbols, int64_t rows, const AnsCodes& codes, uint8_t* end, AnsPlace* place);

    // Reads so many rows of each of at most ANS_AT_ONCE blocks, side by side. Nothing outside is read or written, whatever they hold.
    void (*read)(AnsStream* const* streams, int count, int64_t rows);

    // After the last row: whether all words were taken, all states are 0 and no string has used a part of a word.
    bool (*ends_well)(const AnsStream& stream);

    int at_once;    // blocks, of which `read` makes the most
    int64_t slice;  // rows that `read` is to be asked for at a time, at most: their symbols stay near until they are values
};

constexpr int64_t ANS_MOST_GAP = 4095;

}  // namespace edgegossip
