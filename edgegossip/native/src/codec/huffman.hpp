// Huffman codes over bytes: canonical (Schwartz and Kallick 1964), complete, no code longer than 14 bits; and what tells a
// receiver which code it is.
#pragma once

#include <cstdint>

#include "codec/kernels/entropy.hpp"
#include "codec/kernels/quantise.hpp"

namespace edgegossip::coding {

constexpr int MAX_MARGINALS = 32;

// The bytes that may occur, and how their weights come from few: a byte is a row of fields, field k with value v has
// weight marginals[first[k] + v], and the byte's is the product.
struct Alphabet {
    uint8_t valid[256];
    int width;                        // bits of a field; 8: no product form
    int first[8];                     // of each field, from the lowest, in the list of marginals
    int marginals;                    // in the list
    uint8_t listed[MAX_MARGINALS];    // those that are sent; the others are 0
};
const Alphabet& symbol_alphabet(const Quantiser& q);  // the thread's until its next call with other codes
const Alphabet& token_alphabet(const Quantiser& q);   // of the runs coder; likewise

struct CodeLengths {
    uint8_t bits[256];  // 0: no code
};

// Tables that need not be sent: `count` rows of 2^w weights, named by their row.
struct StaticTables {
    const uint8_t* weights = nullptr;
    int count = 0;
    int preferred = -1;  // the row an encoder considers, or -1
};

// counts[v] += how often bits at .. at + width of a byte are v, of bytes that occur as `hist` says.
void count_field(const uint32_t* hist, int at, int width, uint64_t* counts);

// The table of the last section of a body that sent or named one, for each of the two alphabets.
struct LastTable {
    uint8_t known;
    CodeLengths lengths;
};
struct TableState {
    LastTable symbols, tokens;
};
static_assert(sizeof(TableState) == 514, "callers keep it as bytes");

// Lengths of Huffman's code for these weights, sum below 2^57, of which the 9 highest bits count; 0 has no code. Two symbols at
// least. Where a length exceeds the limit, others grow to make room.
void code_lengths(const uint64_t* weights, CodeLengths* lengths);

// Every byte with a code is valid, and the code is complete: any string of bits decodes.
bool is_complete(const CodeLengths& lengths, const uint8_t* valid);

void make_encode_table(const CodeLengths& lengths, EncodeEntry* table);

// The same, 256 entries; the thread's until its next call, and made only when the last one was of another code.
const EncodeEntry* encode_table(const CodeLengths& lengths);

inline uint32_t reversed(uint32_t v) {
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}

// Calls visit(byte, bits of its code word, the word with its first bit lowest) in the order of the words.
template <class Visit>
void each_code(const CodeLengths& lengths, const Visit& visit);

// The table of this code, for n values or more. It is the thread's until its next call, and is made only when the last one was of
// another code (or too small): a body's tensors mostly share one. What it takes is bounded by n: see table_work.
DecodeTable symbol_table(const CodeLengths& lengths, int64_t n);

// A section's own code needs so many values, or those that build its tables could cost a receiver much more than the values do.
constexpr int64_t MIN_TABLE_VALUES = 512;

// Table entries that this thread has filled, and bytes whose code lengths it has computed, for decoding.
int64_t& table_work();

enum TableKind : uint8_t { TABLE_SAME = 0, TABLE_STATIC = 1, TABLE_MARGINALS = 2, TABLE_LENGTHS = 3 };
constexpr int MAX_TABLE_BYTES = 1 + 128;

// The code that a sender uses for bytes that occur as `hist` says (a sample: `scale` times as many are to be sent), its
// transport, and the bits of both; infinitely many when there is none for a tensor of n values.
struct TableChoice {
    CodeLengths lengths;
    uint8_t transport[MAX_TABLE_BYTES];
    int transport_bytes;
    double bits;
};
TableChoice choose_table(const Alphabet& a, const uint32_t* hist, double scale, const LastTable& last, const StaticTables& tables,
                         int64_t n);

// Reads a transport at p of a section of n values, nothing at or beyond `end`. The bytes it has, or 0 when it is none, or not of a
// complete code over the alphabet.
int read_table(const uint8_t* p, const uint8_t* end, const Alphabet& a, const LastTable& last, const StaticTables& tables,
               int64_t n, CodeLengths* lengths);

// Canonical codes in order of (length, symbol).
template <class Visit>
void each_code(const CodeLengths& lengths, const Visit& visit) {
    constexpr int PARTS = 4;  // sorted apart: equal neighbours would wait for each other
    int place[PARTS][HUFFMAN_MAX_BITS + 1] = {};
    uint8_t order[256];
    for (int s = 0; s < 256 / PARTS; s++)
        for (int part = 0; part < PARTS; part++) place[part][lengths.bits[256 / PARTS * part + s]]++;
    int before = 0, none = 0;
    for (int bits = 0; bits <= HUFFMAN_MAX_BITS; bits++) {
        for (int part = 0; part < PARTS; part++) {
            const int count = place[part][bits];
            place[part][bits] = before;
            before += count;
        }
        if (bits == 0) none = before;
    }
    for (int s = 0; s < 256 / PARTS; s++)
        for (int part = 0; part < PARTS; part++) {
            const int symbol = 256 / PARTS * part + s;
            order[place[part][lengths.bits[symbol]]++] = uint8_t(symbol);
        }
    uint32_t code = 0;  // its first bit is bit 31
    for (int i = none; i < 256; i++) {
        const int bits = lengths.bits[order[i]];
        visit(order[i], bits, reversed(code));
        code += uint32_t(1) << (32 - bits);
    }
}

}  // namespace edgegossip::coding
