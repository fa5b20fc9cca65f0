// EDEN's bodies: a tensor in blocks. Its length, rounded up to a multiple of 32, in binary says which: as many of 4096 values as there
// are, then 2048, 1024, .., 32 where that bit is set. Zeros stand behind its last value.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels.hpp"

namespace edgegossip {

// Bytes of a tensor's n values.
int64_t eden_bytes(int64_t n, int32_t bits);

// The tensors of x, one after the other; keys[k] is that of tensor k. -1, or the first tensor that is not finite.
int64_t eden_encode(const Kernels& kernels, const float* x, const std::vector<int64_t>& offsets, const std::vector<uint64_t>& keys,
                    int32_t bits, uint8_t* body, int threads);

// -1, or the first tensor with a scale that is negative or not finite.
int64_t eden_fault(const uint8_t* body, const std::vector<int64_t>& offsets, int32_t bits);

// out = values, or out += weight * value, of a body without fault.
void eden_decode(const Kernels& kernels, const uint8_t* body, const std::vector<int64_t>& offsets, const std::vector<uint64_t>& keys,
                 int32_t bits, float* out, bool accumulate, float weight, int threads);

}  // namespace edgegossip
