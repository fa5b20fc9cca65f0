// Weight gradients of linear layers: integer sums over the rows of a batch, of which each has one gradient and one input.
#pragma once

#include <cstdint>
#include <vector>

#include "int8/conv.hpp"
#include "int8/work.hpp"
#include "runtime/buffer_pool.hpp"

namespace edgegossip {

bool is_linear(const ConvShape& shape);

// Rows that go together: their gradients, times scales and those of their inputs, share one scale of 16 bits.
class LinearRows {
public:
    static constexpr int64_t MOST = 256;  // 32512 * 255 each stay below 2^31

    LinearRows(const Int8& kernels, const ConvShape& shape, const Maps& x);

    // Rows `first` ... of the batch come, `rows` of them.
    void begin(int64_t first, int64_t rows);
    // `count` of these from `first` on, with gradients in work.g8, or in work.g16 when `wide`. In any order, from any thread.
    void take(int64_t first, int64_t count, const GradientScales* scales, bool wide, const ConvWork& work);
    // out[out][in] = their sums, or += where not `fresh`.
    void write(float* out, bool fresh, int threads) const;

private:
    void write(int64_t first_out, int64_t outs, float scale, float* out, bool fresh) const;

    const Int8& kernels_;
    const ConvShape& shape_;
    const Maps& x_;
    int64_t width_;  // of a row of inputs, with what may be read behind it
    int64_t first_ = 0, rows_ = 0;
    Pooled<int16_t> inputs_;    // [rows, even][width]
    Pooled<float> gradients_;   // [rows][out]
    std::vector<float> most_;   // by row: the largest magnitude
};

}  // namespace edgegossip
