// Bodies of the sparse codecs: what is sent of every tensor, and where it goes. docs/wire-format.md has the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels.hpp"

namespace edgegossip {

enum ValueForm : int32_t { VALUES_FP32 = 0, VALUES_FP16 = 1, VALUES_BF16 = 2 };

// What can be wrong with a body.
enum SparseFault : int32_t { FAULT_NONE = 0, FAULT_SIZE = 1, FAULT_HEAD = 2, FAULT_POSITIONS = 3, FAULT_VALUES = 4 };

struct Verdict {
    int64_t tensor;  // where; -1 when nothing is wrong
    SparseFault fault;
};

struct Model {
    const int64_t* offsets;
    int64_t tensors;
    int64_t size(int64_t k) const { return offsets[k + 1] - offsets[k]; }
};

// More bytes than the body of counts[k] (1 to n, 0 for an empty tensor) values of every tensor needs.
int64_t sparse_capacity(const Model& model, const int64_t* counts, int32_t form);

// The largest counts[k] values of every tensor. `zero` and `rest`, where not null, are float32[n] too: where a value was
// sent, zero[i] becomes 0 and rest[i] loses what the receiver gets. `rest` may be x itself.
// Bytes written, or -1 - k when tensor k is not finite.
int64_t topk_encode(const Kernels& kernels, const float* x, const Model& model, const int64_t* counts, int32_t form,
                    int threads, float* zero, float* rest, uint8_t* body);

// counts[k] values at positions that `seed` draws, times n / counts[k] of the tensor when `unbiased`; saturates.
// Bytes written, or -1 - k when tensor k is not finite.
int64_t randk_encode(const Kernels& kernels, const float* x, const Model& model, const int64_t* counts, int32_t form,
                     bool unbiased, uint64_t seed, int threads, uint8_t* body);

// Checks everything, then out = value or out += weight * value; what was not sent is zero.
Verdict topk_decode(const Kernels& kernels, const uint8_t* body, int64_t bytes, const Model& model, float* out,
                    bool accumulate, float weight);
Verdict randk_decode(const Kernels& kernels, const uint8_t* body, int64_t bytes, const Model& model, float* out,
                     bool accumulate, float weight, int threads);

}  // namespace edgegossip
