#include "codec/gaps.hpp"

#include <algorithm>
#include <cstring>

namespace edgegossip {
namespace {

constexpr int ESCAPE_ZEROS = 24, ESCAPE_BITS = 31;  // no code is longer than 55 bits, so one 64-bit word always holds it
constexpr int RICE_BITS = 5, RICE_MAX = 30, CHANGE_COST = RICE_BITS;

int log2_floor(uint64_t v) { return 63 - __builtin_clzll(v); }  // v > 0

int64_t cost(const uint32_t* gaps, int count, int rice) {
    uint32_t zeros = 0, escapes = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t q = gaps[i] >> rice;
        zeros += q < ESCAPE_ZEROS ? q : 0;
        escapes += q >= ESCAPE_ZEROS;
    }
    return int64_t(zeros) + int64_t(count) * (1 + rice) + int64_t(escapes) * (ESCAPE_ZEROS + ESCAPE_BITS - 1 - rice);
}

// The cheapest parameter near the one that fits the mean; a few large gaps pull the mean up, so mostly below it.
int best_rice(const uint32_t* gaps, int count, int before) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum += gaps[i];
    const int middle = log2_floor(sum / uint64_t(count) + 1);
    int best = before;
    int64_t least = cost(gaps, count, before) - CHANGE_COST;
    for (int rice = std::max(0, middle - 4); rice <= std::min(RICE_MAX, middle + 1); rice++) {
        const int64_t c = cost(gaps, count, rice);
        if (c >= least) continue;
        least = c;
        best = rice;
    }
    return best;
}

}  // namespace

int initial_rice(int64_t n, int64_t k) {
    // The best parameter for a geometric distribution of mean m is near log2(m ln 2); 11/16 is ln 2.
    return std::min(RICE_MAX, log2_floor(uint64_t((n - k) * 11 / (16 * k) + 1)));
}

int64_t gaps_capacity(int64_t n, int64_t k) {
    // By the longest code; or, since a block's cost is at most 7 bits for each of its gaps and of the values they pass over.
    const int64_t blocks = k / GAP_BLOCK + 1;
    return std::min(7 * k, n + k) + blocks + 16;
}

void GapWriter::bits(uint64_t value, int count) {
    pending_ |= value << pending_bits_;
    pending_bits_ += count;
    std::memcpy(out_, &pending_, 8);
    out_ += pending_bits_ >> 3;
    pending_ = pending_bits_ < 64 ? pending_ >> (pending_bits_ & ~7) : 0;
    pending_bits_ &= 7;
}

void GapWriter::write_block() {
    const int rice = best_rice(block_, filled_, rice_);
    if (rice == rice_)
        bits(1, 1);
    else
        bits(uint64_t(rice) << 1, 1 + RICE_BITS);
    rice_ = rice;
    for (int i = 0; i < filled_; i++) {
        const uint64_t gap = block_[i], q = gap >> rice;
        if (q >= ESCAPE_ZEROS)
            bits(gap << ESCAPE_ZEROS, ESCAPE_ZEROS + ESCAPE_BITS);
        else
            bits((((gap & ((uint64_t(1) << rice) - 1)) << 1) | 1) << q, int(q) + 1 + rice);
    }
    filled_ = 0;
}

void GapWriter::put(const uint32_t* positions, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        block_[filled_++] = positions[i] - next_;
        next_ = positions[i] + 1;
        if (filled_ == GAP_BLOCK) write_block();
    }
}

int64_t GapWriter::finish() {
    if (filled_ > 0) write_block();
    return out_ - begin_ + (pending_bits_ > 0);
}

uint64_t GapReader::window() const {
    const int64_t at = bit_ >> 3;
    uint64_t word = 0;
    if (at + 8 <= size_)
        std::memcpy(&word, data_ + at, 8);
    else if (at < size_)
        std::memcpy(&word, data_ + at, size_t(size_ - at));
    return word >> (bit_ & 7);
}

bool GapReader::read(uint32_t* positions, int64_t count) {
    const uint64_t head = window();
    const bool same = head & 1;
    if (!same) rice_ = int((head >> 1) & ((1 << RICE_BITS) - 1));
    bit_ += same ? 1 : 1 + RICE_BITS;
    if (rice_ > RICE_MAX) return false;
    const uint64_t low_bits = (uint64_t(1) << rice_) - 1;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t word = window();
        int64_t gap;
        if ((word & ((uint64_t(1) << ESCAPE_ZEROS) - 1)) == 0) {
            gap = int64_t((word >> ESCAPE_ZEROS) & ((uint64_t(1) << ESCAPE_BITS) - 1));
            bit_ += ESCAPE_ZEROS + ESCAPE_BITS;
        } else {
            const int q = __builtin_ctzll(word);
            gap = int64_t(((word >> q >> 1) & low_bits) | (uint64_t(q) << rice_));
            bit_ += q + 1 + rice_;
        }
        next_ += gap;
        if (next_ >= n_) return false;
        positions[i] = uint32_t(next_++);
    }
    return bit_ <= 8 * size_;
}

int64_t GapReader::finish() const {
    if ((bit_ & 7) != 0 && (data_[bit_ >> 3] >> (bit_ & 7)) != 0) return -1;
    return (bit_ + 7) >> 3;
}

}  // namespace edgegossip
