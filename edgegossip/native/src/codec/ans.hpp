// The entropy coder that AVX-512 VBMI decodes fastest: asymmetric numeral systems by table (tANS; Duda 2013), codes of 3 or 4 bits, for
// tensors that are not small. Opt-in: elsewhere Huffman codes are decoded faster.
//
//   shares, u8 for each existing code; blocks of up to 65536 values:
//   u16 words; u16 strays; u8 state[64]; u8 used[8]; u16 stray[strays]; of each string its first word without the used / 8 bytes that
//   are gone; u64 word[words]
//
// A code's share is how many of the 256 states give it. Codes too rare for one are strays: the most frequent code stands in their
// place, and they are listed apart. Words beyond the last are 0.
#pragma once

#include <cstdint>

#include "runtime/kernels.hpp"
#include "codec/block.hpp"

namespace edgegossip::coding {

constexpr int64_t ANS_FROM = 8192;  // values; a smaller tensor would not pay for its states, at either end

bool has_ans(const Quantiser& q, int64_t n);

struct AnsShape {
    uint8_t share[16];  // their sum is 256; 0 of bytes that are no codes
};

// The shares that a sender uses for codes that occur so often (a sample: `scale` times as many are sent, of n values), and the bits of all.
struct AnsChoice {
    AnsShape shape;
    double bits;
};
AnsChoice choose_shares(const Quantiser& q, const uint64_t* counts, double scale, int64_t n);

// A byte for each existing code; how many.
int write_shares(const AnsShape& shape, const Quantiser& q, uint8_t* out);

// The bytes read at p, nothing at or beyond `end`, or 0 when they are no shares.
int read_shares(const uint8_t* p, const uint8_t* end, const Quantiser& q, AnsShape* shape);

// The code in place of strays and after the last value.
uint8_t ans_filling(const AnsShape& shape);

AnsTable ans_table(const AnsShape& shape);
AnsCodes ans_codes(const AnsShape& shape);

// A block is larger than raw codes when it has more strays, and is not written then.
constexpr int64_t most_ans_strays(int64_t n) { return n / 4; }
constexpr int64_t ans_words_bound(int64_t n) { return n + 4 * ANS_ROW; }
constexpr int64_t ans_block_bound(int64_t n) { return 256 + 2 * (most_ans_strays(n) + 2 * ANS_ROW) + ans_words_bound(n); }

// The bytes written for n values, or 0 when they have too many strays.
int64_t write_ans_block(const Ans& kernels, const uint8_t* symbols, int64_t n, const AnsCodes& codes, uint8_t* out);

// The bytes of the block at p, or 0 when it reaches beyond `end` or does not begin as one.
int64_t ans_block_size(const uint8_t* p, const uint8_t* end);

// What a block of n values, whose size is known to be good, is made of.
struct AnsParts {
    const uint8_t* strays;
    int64_t stray_count;
    const uint8_t *words, *words_end;  // after the first eight, which are in `place`
    bool good;  // no more strays than a sender writes, which would take long, no bits of first words where they are gone, no 0 as the last word
};
AnsParts ans_parts(const uint8_t* p, int64_t n, AnsPlace* place);

}  // namespace edgegossip::coding
