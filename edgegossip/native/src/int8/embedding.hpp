// Embedding tables of float32 rows: int8 samples of the rows that ids name, and the table's gradient (docs/int8.md).
// Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "int8/kernels.hpp"

namespace edgegossip {

struct EmbeddingShape {
    int64_t batch, length, rows, width;  // a sample: `length` ids of 0 .. rows - 1

    int64_t size() const { return length * width; }  // of a sample
};

// q[sample][id] = the row of that id; one scale and zero point a sample. No weight is rounded before.
void embedding_forward(const Int8& kernels, const EmbeddingShape& shape, const int64_t* ids, const float* table, int8_t* q, float* scale,
                       int32_t* zero, int threads);

// dw[row] = the sum of g over the places that name the row: integers inside a sample, floats over samples in order. g in 8
// bits, rounded stochastically by `key`, or in 16 when `wide`. The row `padding` (none: -1) gets no gradient.
void embedding_backward(const Int8& kernels, const EmbeddingShape& shape, const int64_t* ids, const float* g, uint64_t key, bool wide,
                        int64_t padding, float* dw, int threads);

}  // namespace edgegossip
