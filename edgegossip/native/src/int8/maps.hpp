// int8 maps of a batch, which is what passes between layers: made of floats, and added (docs/int8.md). Results do not
// depend on the number of threads.
#pragma once

#include <cstdint>

#include "int8/kernels.hpp"

namespace edgegossip {

// The value of q is scale (q - zero), with one scale and zero point a sample.
struct Maps {
    const int8_t* q;
    const float* scale;
    const int32_t* zero;
};

struct WritableMaps {
    int8_t* q;
    float* scale;
    int32_t* zero;
};

// A sample's range of values makes its scale and zero point.
void quantise_maps(const Int8& kernels, const float* x, int64_t batch, int64_t size, int8_t* q, float* scale, int32_t* zero, int threads);

// a + b, with a range of its own.
void add_maps(const Int8& kernels, const Maps& a, const Maps& b, int64_t batch, int64_t size, int8_t* q, float* scale, int32_t* zero,
              int threads);

}  // namespace edgegossip
