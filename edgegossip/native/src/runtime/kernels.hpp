// The dispatch table: one function pointer a kernel, filled in once for every instruction set (runtime/isa/*.cpp).
//
// A part (minmax8, ...) has its struct of kernels in codec/kernels/PART.hpp (lowrank/kernels/), their bodies in PART.inc beside
// it, which ends in a constant of that struct, a line here and in runtime/isa/table.inc, and its bindings in bind/PART.cpp.
//
// What every kernel promises: the same bytes on every instruction set, any length, any alignment of byte buffers; no
// allocation, no exception, no access outside what it is given. Tensor k is x[offsets[k] .. offsets[k + 1]); offsets start
// at 0, never fall, and have been checked by the caller, which also owns the floating-point environment (float_env.hpp).
#pragma once

#include <cfloat>
#include <cstdint>

#include "codec/kernels/eden.hpp"
#include "codec/kernels/entropy.hpp"
#include "codec/kernels/general.hpp"
#include "codec/kernels/half.hpp"
#include "lowrank/kernels/matrix.hpp"
#include "codec/kernels/minmax8.hpp"
#include "codec/kernels/rans.hpp"
#include "codec/kernels/runs.hpp"
#include "codec/kernels/sparse.hpp"
#include "codec/kernels/quantise.hpp"
#include "codec/kernels/steps.hpp"

static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must round to float; the kernels are bit-exact across machines");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bodies are little-endian and written in place");

namespace edgegossip {

struct Kernels {
    General general;
    Entropy entropy;
    Runs runs;
    Half half;
    MinMax8 minmax8;
    Sparse sparse;
    Quantise quantise;
    Rans rans;
    Steps steps;
    Matrix matrix;
    Eden eden;
};

}  // namespace edgegossip
