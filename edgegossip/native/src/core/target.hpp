// Where a tensor's values go.
#pragma once

#include <cstring>

#include "block.hpp"
#include "codes.hpp"
#include "quantised.hpp"
#include "scales.hpp"

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
    // Where values first .. first + count go, of which the first starts a bucket or a part of one that ends with it or beyond.
    // `room` for their scales.
    RunValues values(int64_t first, int64_t count, float* room) const {
        if (checks()) return {&q, nullptr, nullptr, false, weight};
        const int64_t bucket = q.bucket;
        if (bucket == 0)
            std::memcpy(room, scales, 4);
        else
            get_short(scales + 2 * (first / bucket), scale_count(count, bucket), room);
        return {&q, room, out + first, mode == Mode::ADD, weight};
    }

    // Those values from their symbols; `first` starts a byte. False when a code is none, which it cannot be where they are `checked`.
    bool write(const uint8_t* symbols, int64_t first, int64_t count, float* room, bool checked) const {
        const RunValues to = values(first, count, room);
        return kernels.quantise.dequantise(symbols, count, &q, to.scales, to.out, to.accumulate, weight, checked);
    }
};

}  // namespace edgegossip::coding
