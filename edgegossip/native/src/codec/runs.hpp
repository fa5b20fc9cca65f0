// The entropy coder for sparse tensors: an item for each code that is not zero, with the zeros before it; or for zeros alone.
//
//   token = run >> k << 4 | the level, or its class; then a bit for the sign, unless all are the same, the k low bits of the run and
//   the low bits of the level that its class leaves open. The token 0xf0 has no sign: it is (15 << k) + its low bits + 1 zeros.
//
// A block of 65536 values is one stream of items, or four when it has 2048 values or more:
//
//   u16 bytes of each stream, the streams
#pragma once

#include <cstdint>

#include "codec/huffman.hpp"
#include "codec/kernels/runs.hpp"

namespace edgegossip::coding {

inline int run_streams_of(int64_t n) { return n < FOUR_RUN_STREAMS_FROM ? 1 : 4; }
RunShape run_shape(const Quantiser& q, int run_bits, RunSigns signs);

// Tensors of fewer values have signs beside tokens: tables are of one code and where its signs are, and must not be made anew for a
// few values.
constexpr int64_t ONE_SIGN_FROM = 8192;

// The first byte of a section of this shape, and what that of one of n values says; false when it says nothing.
inline uint8_t shape_byte(const RunShape& shape) { return uint8_t(shape.run_bits | shape.signs << 4); }
bool read_shape(uint8_t byte, const Quantiser& q, int64_t n, RunShape* shape);

// k for a share nonzeros / values.
int run_bits_for(int64_t nonzeros, int64_t values);

// The items of a block, one stream's after the other's.
struct RunItems {
    int64_t counts[4];
    int64_t all() const { return counts[0] + counts[1] + counts[2] + counts[3]; }
};
constexpr int64_t run_items_bound(int64_t n) { return 2 * n + 32; }
RunItems find_items(const Runs& kernels, const uint8_t* symbols, int64_t n, const RunShape& shape, uint32_t* items, uint32_t* hist);

// Which signs so many items have.
struct SignsFound {
    bool plus = false, minus = false;
    void look_at(const uint32_t* items, int64_t count);
    RunSigns signs() const { return plus == minus ? SIGNS_BESIDE : plus ? ALL_PLUS : ALL_MINUS; }
};

// Takes the signs out of items. False when one has another than all are said to have; items are then of no use.
bool take_signs(uint32_t* items, int64_t count, RunSigns all);

// Bits of items beside their tokens' code words, of tokens that occur as `hist` says.
int64_t bits_beside(const uint32_t* hist, const RunShape& shape);

void make_run_table(const CodeLengths& lengths, const RunShape& shape, RunEntry* table);

// The bytes of a block that is written, or 0 when a stream is longer than its size can say. At most coded_run_bound are touched.
constexpr int64_t coded_run_bound(int64_t items) { return 4 * items + 64; }
int64_t write_run_block(const Runs& kernels, const uint32_t* items, const RunItems& found, int64_t n, const RunEntry* table, uint8_t* out);

// The bytes of the block of n values at p, or 0 when it reaches beyond `end`.
int64_t run_block_size(const uint8_t* p, const uint8_t* end, int64_t n);

// Values of a block whose size is known to be good, as Runs::read has them.
bool read_run_block(const Runs& kernels, const uint8_t* p, const uint8_t* end, int64_t n, const TokenTable& table, const RunShape& shape,
                    uint8_t* room, const Values& to);

// As symbol_table, of the tokens of codes of this shape.
TokenTable token_table(const CodeLengths& lengths, const RunShape& shape, int64_t n);

}  // namespace edgegossip::coding
