// Values in steps of a lattice, and back: with subtractive dither, or with a dead zone about zero.
#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int64_t STEPS_ROW = 8;
constexpr int64_t STEPS_PIECE = 1024;     // values that one call takes at most
constexpr float STEPS_ZONE = 1.0f / 3;   // with a dead zone a magnitude is rounded up from so much below the next integer
constexpr int32_t STEPS_MOST = 1 << 22;  // a value is at most so many steps

// What a chunk is coded with. Values `first` on of a vector; first is a multiple of STEPS_ROW.
struct StepSpec {
    bool dithered;
    uint64_t key;
    int64_t first;
    float shift[4];  // with a dead zone: what is added to the magnitude of a value of 0, 1, 2, 3 or more steps
};

// Of magnitudes 0, 1, 2, 3 and more: how many, the sum of what values are beyond them, floor(2^16 (t - |q|)), and that of (t - |q|)^2.
struct StepRests {
    int64_t count[4], sum[4];
    double square[4];
};

struct Steps {
    // q of n values, at most STEPS_PIECE, and zeros up to a whole row. inverse: 1 / step of each value.
    void (*quantise)(const float* x, const float* inverse, int64_t n, const StepSpec& spec, int32_t* q);

    // Adds what values are beyond their magnitudes, with a dead zone.
    void (*rest)(const float* x, const float* inverse, const int32_t* q, int64_t n, StepRests* rests);

    // 0, 1, 2, 3, 4 .. for 0, 1, -1, 2, -2 .., and 255 for all that would be 255 or more; whether there are such ones.
    bool (*fold)(const int32_t* q, int64_t n, uint8_t* symbols);
    void (*unfold)(const uint8_t* symbols, int64_t n, int32_t* q);

    // out = value or out += weight * value of n values, at most STEPS_PIECE. step: of each value.
    void (*restore)(const int32_t* q, const float* step, int64_t n, const StepSpec& spec, bool accumulate, float weight, float* out);
};

}  // namespace edgegossip
