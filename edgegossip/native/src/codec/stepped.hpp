// Bodies of dither and deadzone: a vector in steps, which all tensors share, or of each tensor its own; then integers (integers.hpp).
//
//   dither: u64 key | f32 step | u8 flags: 1 if tensors have steps of their own, 2 if columns are sorted | i8 eighths of an octave, of each
//   tensor | u32 size and a string: of each matrix's columns the class
//   chunks of 2^20 values: u32 size, of the last one none | deadzone: u8 shift of magnitudes 1, 2, 3 or more | a string of integers
//
// What a column of a matrix holds is loud or quiet in all rows. Rows have their columns sorted by class, so that blocks of 64 are of one kind.
// With a step of 0 all values are 0 and there are no chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels.hpp"

namespace edgegossip::coding {

struct Stepped {
    const int64_t* offsets;
    const int64_t* columns;  // of each tensor; 0 where it has no rows
    int64_t tensors;
    bool dithered;
    uint64_t key;
    float step;
    const int8_t* eighths;  // of an octave, for each tensor; or null
    int64_t n() const { return offsets[tensors]; }
};

// A tensor's step.
float step_of(float step, int eighths);

// About how many bits the integers of a body take.
double bits_of_steps(const Kernels& kernels, const float* x, const Stepped& s);

// The sum of (value - x)^2, with a dead zone.
double error_of_steps(const Kernels& kernels, const float* x, const Stepped& s);

// The body of finite values, none of which is beyond STEPS_MOST steps.
std::vector<uint8_t> encode_steps(const Kernels& kernels, const float* x, const Stepped& s);

// Checks the body and then writes out = value or out += weight * value, where out is not null. 0 or a SectionError.
int64_t decode_steps(const Kernels& kernels, const uint8_t* body, int64_t size, const int64_t* offsets, const int64_t* columns, int64_t tensors,
                     bool dithered, bool accumulate, float weight, float* out);

// Writes the values of a body without dither that are all integers, none beyond `most`, at most 127: it has step 1 (or 0) and no shifts. 0 or
// a SectionError.
int64_t decode_integers(const Kernels& kernels, const uint8_t* body, int64_t size, const int64_t* offsets, const int64_t* columns, int64_t tensors,
                        int32_t most, int8_t* out);

}  // namespace edgegossip::coding
