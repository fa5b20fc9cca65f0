// A convolution whose weights are quantised and laid out: a call's, or a program's (program.hpp), which keeps them.
#pragma once

#include <cstdint>
#include <vector>

#include "int8/conv.hpp"
#include "int8/pack.hpp"

namespace edgegossip {

// Where results go: quantised, or as floats where `values` is not null.
struct ConvOutput {
    int8_t* q;
    float* scale;
    int32_t* zero;
    float* values;
};

class PackedConv {
public:
    // The shape's batch bounds together().
    PackedConv(const Int8& kernels, const ConvShape& shape, const float* weight, int threads);

    // Samples whose pixels are worth one product.
    int64_t together() const { return together_; }

    // Samples first .. first + samples - 1 of x, at most together(), in this thread. bias: [out] or null.
    void run(const Maps& x, int64_t first, int64_t samples, const float* bias, const ConvOutput& out) const;

    const ConvShape& shape() const { return shape_; }

private:
    void sums(const Maps& x, int64_t first, int64_t samples, int64_t group, struct ConvWork& work, int64_t padded) const;

    const Int8& kernels_;
    ConvShape shape_;
    int64_t together_;
    std::vector<float> weight_scale_;
    std::vector<Panels> panels_;        // by group
    std::vector<int32_t> weight_sums_;  // by output channel, for products of bytes
    std::vector<int64_t> places_;       // of the outputs' first inputs in the maps of a block
};

}  // namespace edgegossip
