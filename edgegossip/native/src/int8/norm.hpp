// Range EvoNorm of int8 maps, a sample at a time (docs/int8.md). Results do not depend on the
// number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "int8/conv.hpp"

namespace edgegossip {

struct NormShape {
    int64_t batch, pixels, channels, groups, chunks;
    int64_t size() const { return pixels * channels; }  // of a sample
};

struct NormParameters {
    const float *v, *gamma, *beta;  // [channels] each
};

// z = gamma y hardsigmoid(v y) / (C R + 1e-5) + beta, quantised.
void evonorm_forward(const Int8& kernels, const NormShape& shape, const Maps& y, const NormParameters& with, int8_t* q, float* scale,
                     int32_t* zero, int threads);

// y = conv(x) and z, the norm of y, sample by sample: y is still in the thread's cache. The same bits as one after the other.
void conv_evonorm_forward(const Int8& kernels, const ConvShape& shape, const Maps& x, const float* weight, const float* bias,
                          const WritableMaps& y, const NormShape& norm, const NormParameters& with, const WritableMaps& z, int threads);

struct NormGradients {
    float* y;  // [batch][pixels][channels]
    float *v, *gamma, *beta;
};

// Sums over samples, in order, of float[batch][3][channels]: the gradients of the parameters.
void add_rows(const NormShape& shape, const std::vector<float>& rows, const NormGradients& out);

void evonorm_backward(const Int8& kernels, const NormShape& shape, const Maps& y, const NormParameters& with, const float* g,
                      const NormGradients& out, int threads);

// The gradient of y from g, that of z, in memory of the thread that asks: a convolution before the norm takes it from there.
class EvoNormGradient final : public Gradient {
public:
    EvoNormGradient(const Int8& kernels, const NormShape& shape, const Maps& y, const NormParameters& with, const float* g);
    ~EvoNormGradient() override;
    const float* sample(int64_t n) const override;
    void parameters(float* v, float* gamma, float* beta) const;  // once all samples were asked for

private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace edgegossip
