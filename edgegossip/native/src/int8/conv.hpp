// Convolutions of int8 maps with float32 master weights: forward, backward-data and weight gradient (docs/int8.md).
// A linear layer is a 1x1 convolution of 1x1 maps. Maps are [batch][height][width][channels], weights [out][in / groups]
// [kernel_h][kernel_w]. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "int8/maps.hpp"

namespace edgegossip {

struct ConvShape {
    int64_t batch, height, width, in, out, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, groups;

    int64_t out_height() const { return (height + 2 * pad_h - kernel_h) / stride_h + 1; }
    int64_t out_width() const { return (width + 2 * pad_w - kernel_w) / stride_w + 1; }
    int64_t pixels() const { return out_height() * out_width(); }
    int64_t group_in() const { return in / groups; }
    int64_t group_out() const { return out / groups; }
    int64_t in_size() const { return height * width * in; }  // of a sample
    int64_t out_size() const { return pixels() * out; }
    int64_t weights() const { return out * group_in() * kernel_h * kernel_w; }
};

// y = conv(x, w) + bias (null: none). Into q, scale and zero, or as floats into `values` where that is not null.
void conv_forward(const Int8& kernels, const ConvShape& shape, const Maps& x, const float* weight, const float* bias, int8_t* q,
                  float* scale, int32_t* zero, float* values, int threads);

// The gradient of a layer's output, a sample at a time: an array, or what the layer after it computes (norm.hpp).
struct Gradient {
    virtual ~Gradient() = default;
    // float[size of a sample], until this thread's next call. Called once for every sample, from any thread.
    virtual const float* sample(int64_t n) const = 0;
};

struct ConvGradients {
    float* x;       // [batch][height][width][in], or null
    float* weight;  // as the weights, or null
    float* bias;    // [out], or null
};

class ArrayGradient final : public Gradient {
public:
    ArrayGradient(const float* g, int64_t size) : g_(g), size_(size) {}
    const float* sample(int64_t n) const override { return g_ + n * size_; }

private:
    const float* g_;
    int64_t size_;
};

// From g, a sample being float[out_height][out_width][out]. Backward-data rounds g to 8 bits stochastically by `key`; the weight
// gradient takes the same 8 bits, or 16 when `wide`.
void conv_backward(const Int8& kernels, const ConvShape& shape, const Maps& x, const float* weight, const Gradient& g, uint64_t key,
                   bool wide, const ConvGradients& out, int threads);

}  // namespace edgegossip
