// Where a tensor's values go.
#pragma once

#include <cstring>

#include "codec/block.hpp"
#include "codec/codes.hpp"
#include "codec/quantised.hpp"
#include "codec/scales.hpp"

namespace edgegossip::coding {

struct Target {
    const Kernels& kernels;
    const Quantiser& q;
    const uint8_t* scales;
    int64_t n;
    Mode mode;
    float weight;
    float* out;

    bool checks() const { return mode == Mode::CHECK; }
    // Where values first .. first + count go, of which the first starts a bucket or a part of one that ends with it or beyond;
    // their scales are put into `room`. Nowhere where they are only checked.
    Values values(int64_t first, int64_t count, float* room) const {
        if (checks()) return {&q, nullptr, nullptr, false, weight};
        if (q.bucket == 0)
            std::memcpy(room, scales, sizeof *room);
        else
            get_short(scales + 2 * (first / q.bucket), scale_count(count, q.bucket), room);
        return {&q, room, out + first, mode == Mode::ADD, weight};
    }

    // Values first .. first + count from their symbols; `first` starts a byte, too. False when a code is none, which it cannot be
    // where they are `checked`.
    bool write(const uint8_t* symbols, int64_t first, int64_t count, float* room, bool checked) const {
        return kernels.quantise.dequantise(symbols, count, values(first, count, room), checked);
    }
};

}  // namespace edgegossip::coding
