// Values in steps of a lattice, and back: with subtractive dither, or with a dead zone about zero.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int64_t STEPS_ROW = 8;
constexpr int32_t STEPS_MOST = 1 << 22;  // a value is at most so many steps

// What a chunk is coded with. Values `first` on of a vector; first is a multiple of STEPS_ROW.
struct StepSpec {
    bool dithered;
    uint64_t key;
    int64_t first;
    float shift[4];  // with a dead zone: what is added to the magnitude of a value of 0, 1, 2, 3 or more steps
};

struct Steps {
    // q of n values, and zeros up to a whole row. inverse: 1 / step of each value.
    void (*quantise)(const float* x, const float* inverse, int64_t n, const StepSpec& spec, int32_t* q);

    // out = value or out += weight * value of n values. step: of each value.
    void (*restore)(const int32_t* q, const float* step, int64_t n, const StepSpec& spec, bool accumulate, float weight, float* out);
};

}  // namespace edgegossip
