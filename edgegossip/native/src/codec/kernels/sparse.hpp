#pragma once

#include <cstdint>

namespace edgegossip {

// Magnitudes are compared as integers: the bits of a float32 without its sign, from 0 to 2^31 - 1, ordered as |x| is.
struct Sparse {
    // Positions (plus `first`) and bits, sign included, of the x[0..n) whose magnitude is at least `least`, in order. Both
    // outputs have room for n. How many.
    int64_t (*sieve)(const float* x, int64_t n, uint32_t least, uint32_t first, uint32_t* index, uint32_t* bits);

    // counts[(magnitude - low) >> shift] += 1 for every magnitude in low .. low + 2048 * 2^shift.
    void (*histogram)(const float* x, int64_t n, uint32_t low, int32_t shift, uint32_t* counts);

    // Sum of the squares in double, in eight lanes.
    double (*sum_of_squares)(const float* x, int64_t n);

    // u' = momentum u + factor g; v' = v + u'. Every product and every sum is rounded to float32.
    void (*accumulate)(const float* u, const float* v, const float* g, int64_t n, float momentum, float factor, float* u_next,
                       float* v_next);
};

}  // namespace edgegossip
