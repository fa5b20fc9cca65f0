// One tensor's part of a sparse body: a head, then positions, then values.
#pragma once

#include <cstdint>

#include "codec/sparse.hpp"

namespace edgegossip {

// How positions are told. ALL: every value is there, in order. DRAWN: the receiver draws them itself.
enum Positions : int32_t { ALL = 0, GAPS = 1, BITMAP = 2, DRAWN = 3 };

struct Section {
    int32_t positions, form;
    int64_t n, k;              // values of the tensor, and how many of them are here
    const uint8_t* where;      // the coded positions
    int64_t where_bytes;
    const uint8_t* values;
};

inline const FloatForm& form_of(const Kernels& kernels, int32_t form) {
    return form == VALUES_FP32 ? kernels.half.fp32 : form == VALUES_FP16 ? kernels.half.fp16 : kernels.half.bf16;
}

inline int64_t form_bytes(int32_t form) { return form == VALUES_FP32 ? 4 : 2; }

constexpr int64_t HEAD_BYTES = 6;  // at most

// The head of a section: u8 positions | form << 2; then, but for ALL, k in 7-bit groups, low ones first.
int64_t write_head(int32_t positions, int32_t form, int64_t k, uint8_t* out);

// The cheaper way to tell the positions of the k largest; when a bitmap saves nothing, all values are sent.
Positions choose_positions(int64_t n, int64_t k, int32_t form);

// Reads and checks the section at body[*at] of a tensor of n values, and moves *at behind it. `drawn`: which of the two
// families of bodies it is.
SparseFault read_section(const Kernels& kernels, const uint8_t* body, int64_t bytes, int64_t n, bool drawn, int64_t* at,
                         Section* section);

// Calls use(positions, count, index of the first of them) for all positions of a checked section, GAPS or BITMAP.
template <class Use>
void for_each_position(const Section& section, const Use& use);

}  // namespace edgegossip

#include "codec/gaps.hpp"

namespace edgegossip {

template <class Use>
void for_each_position(const Section& s, const Use& use) {
    uint32_t positions[GAP_BLOCK];
    if (s.positions == GAPS) {
        GapReader reader(s.where, s.where_bytes, s.n, s.k);
        for (int64_t first = 0; first < s.k; first += GAP_BLOCK) {
            const int64_t count = s.k - first < GAP_BLOCK ? s.k - first : GAP_BLOCK;
            reader.read(positions, count);
            use(positions, count, first);
        }
        return;
    }
    int64_t first = 0;
    for (int64_t byte = 0; byte < s.where_bytes; byte++) {
        int64_t count = 0;
        for (uint32_t bits = s.where[byte]; bits != 0; bits &= bits - 1)
            positions[count++] = uint32_t(8 * byte) + uint32_t(__builtin_ctz(bits));
        use(positions, count, first);
        first += count;
    }
}

}  // namespace edgegossip
