// The dispatch table: one function pointer a kernel, filled in once for every instruction set (isa/*.cpp).
//
// A new kernel = a file kernels/NAME.inc with its body, one line in this table, one line in isa/table.inc, one binding.
//
// What every kernel promises: the same bytes on every instruction set, any length, any alignment of byte buffers; no
// allocation, no exception, no access outside what it is given. Tensor k is x[offsets[k] .. offsets[k + 1]); offsets start
// at 0, never fall, and have been checked by the caller, which also owns the floating-point environment (float_env.hpp).
#pragma once

#include <cfloat>
#include <cstdint>

static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must round to float; the kernels are bit-exact across machines");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bodies are little-endian and written in place");

namespace edgegossip {

struct Kernels {
    // Index of the first tensor that holds a NaN or an infinity, or -1.
    int64_t (*first_nonfinite)(const float* x, const int64_t* offsets, int64_t tensors);

    // Body: `tensors` pairs (min, max) of float32, then one byte a value. -1, or the first tensor that is not finite.
    int64_t (*minmax8_encode)(const float* x, const int64_t* offsets, int64_t tensors, uint8_t* body);

    // out = value, or out += weight * value. -1, or the first tensor with a bad header; `out` is then untouched.
    int64_t (*minmax8_decode)(const uint8_t* body, const int64_t* offsets, int64_t tensors, float* out, bool accumulate,
                              float weight);
};

}  // namespace edgegossip
