#include "codec/section.hpp"

namespace edgegossip {
namespace {

// k in groups of 7 bits, at most five, the last one not zero unless it is the only one.
bool read_count(const uint8_t* body, int64_t bytes, int64_t* at, int64_t* k) {
    *k = 0;
    for (int shift = 0; shift < 35 && *at < bytes; shift += 7) {
        const uint8_t group = body[(*at)++];
        *k |= int64_t(group & 0x7f) << shift;
        if (group < 0x80) return group != 0;  // k is never 0
    }
    return false;
}

bool check_gaps(Section* s, int64_t room) {
    GapReader reader(s->where, room, s->n, s->k);
    uint32_t positions[GAP_BLOCK];
    for (int64_t done = 0; done < s->k; done += GAP_BLOCK)
        if (!reader.read(positions, s->k - done < GAP_BLOCK ? s->k - done : GAP_BLOCK)) return false;
    s->where_bytes = reader.finish();
    return s->where_bytes >= 0;
}

bool check_bitmap(Section* s) {
    int64_t found = 0;
    for (int64_t byte = 0; byte < s->where_bytes; byte++) found += __builtin_popcount(s->where[byte]);
    return found == s->k && ((s->n & 7) == 0 || s->where[s->where_bytes - 1] >> (s->n & 7) == 0);
}

}  // namespace

int64_t write_head(int32_t positions, int32_t form, int64_t k, uint8_t* out) {
    int64_t at = 0;
    out[at++] = uint8_t(positions | form << 2);
    if (positions == ALL) return at;
    for (; k >= 0x80; k >>= 7) out[at++] = uint8_t(k | 0x80);
    out[at++] = uint8_t(k);
    return at;
}

Positions choose_positions(int64_t n, int64_t k, int32_t form) {
    const int64_t bits = 8 * form_bytes(form);
    if (bits * k + n >= bits * n) return ALL;
    return 8 * k >= 3 * n ? BITMAP : GAPS;  // from 3/8 on Rice codes of random gaps are unary, which is a bitmap
}

SparseFault read_section(const Kernels& kernels, const uint8_t* body, int64_t bytes, int64_t n, bool drawn, int64_t* at,
                         Section* s) {
    if (*at >= bytes) return FAULT_SIZE;
    const uint8_t head = body[(*at)++];
    *s = {head & 3, head >> 2, n, n, nullptr, 0, nullptr};
    const bool fits = s->positions == ALL || (s->positions == DRAWN) == drawn;
    if (s->form > VALUES_BF16 || !fits) return FAULT_HEAD;
    if (s->positions != ALL && (!read_count(body, bytes, at, &s->k) || s->k > n)) return FAULT_HEAD;
    if (!drawn && s->positions != choose_positions(n, s->k, s->form)) return FAULT_HEAD;  // a sender's way is the fastest to read
    const int64_t value_bytes = form_bytes(s->form) * s->k;
    if (bytes - *at < value_bytes) return FAULT_SIZE;
    s->where = body + *at;
    if (s->positions == BITMAP) {
        s->where_bytes = (n + 7) / 8;
        if (bytes - *at < s->where_bytes + value_bytes) return FAULT_SIZE;
        if (!check_bitmap(s)) return FAULT_POSITIONS;
    }
    if (s->positions == GAPS && !check_gaps(s, bytes - *at - value_bytes)) return FAULT_POSITIONS;
    *at += s->where_bytes;
    s->values = body + *at;
    *at += value_bytes;
    return form_of(kernels, s->form).finite(s->values, s->k) ? FAULT_NONE : FAULT_VALUES;
}

}  // namespace edgegossip
