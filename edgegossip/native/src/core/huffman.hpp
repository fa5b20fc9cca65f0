// Huffman codes over bytes: canonical (Schwartz and Kallick 1964), complete, no code longer than 12 bits, optimal under
// that limit (package-merge, Larmore and Hirschberg 1990), and what tells a receiver which code it is.
#pragma once

#include <cstdint>

#include "../kernels/entropy.hpp"
#include "../kernels/quantise.hpp"

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
Alphabet symbol_alphabet(const Quantiser& q);
Alphabet token_alphabet(const Quantiser& q);  // of the runs stage

struct CodeLengths {
    uint8_t bits[256];  // 0: no code
};

// Tables that need not be sent: `count` rows of 2^w weights, named by their row.
struct StaticTables {
    const uint8_t* weights = nullptr;
    int count = 0;
    int preferred = -1;  // the row an encoder considers, or -1
};

// The table of the last section of a body that sent or named one, for each of the two alphabets.
struct LastTable {
    uint8_t known;
    CodeLengths lengths;
};
struct TableState {
    LastTable symbols, tokens;
};
static_assert(sizeof(TableState) == 514, "callers keep it as bytes");

// Lengths of the optimal code for these weights, sum below 2^57; 0 has no code. Two symbols at least.
void code_lengths(const uint64_t* weights, CodeLengths* lengths);

// Every byte with a code is valid, and the code is complete: any string of bits decodes.
bool is_complete(const CodeLengths& lengths, const uint8_t* valid);

void make_encode_table(const CodeLengths& lengths, EncodeEntry* table);
void make_decode_table(const CodeLengths& lengths, DecodeEntry* table);

// The table of this code, which is made unless the thread's last one of the same purpose was of the same code. It is the
// thread's until its next call; a body's tensors mostly share a code, and making the table takes as long as 10 000 values.
enum class Purpose { SYMBOLS, TOKENS };
const DecodeEntry* decode_table(const CodeLengths& lengths, Purpose purpose);

enum TableKind : uint8_t { TABLE_SAME = 0, TABLE_STATIC = 1, TABLE_MARGINALS = 2, TABLE_LENGTHS = 3 };
constexpr int MAX_TABLE_BYTES = 1 + 128;

// The code that a sender uses for bytes that occur as `hist` says (a sample: `scale` times as many are to be sent), its
// transport, and the bits of both.
struct TableChoice {
    CodeLengths lengths;
    uint8_t transport[MAX_TABLE_BYTES];
    int transport_bytes;
    double bits;
};
TableChoice choose_table(const Alphabet& a, const uint32_t* hist, double scale, const LastTable& last, const StaticTables& tables);

// Reads a transport at p, nothing at or beyond `end`. The bytes it has, or 0 when it is none, or not of a complete code
// over the alphabet.
int read_table(const uint8_t* p, const uint8_t* end, const Alphabet& a, const LastTable& last, const StaticTables& tables,
               CodeLengths* lengths);

}  // namespace edgegossip::coding
