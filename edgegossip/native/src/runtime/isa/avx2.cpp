// Kernels for x86-64 with AVX2.
#define EDGEGOSSIP_TABLE kernels_avx2
#include "runtime/isa/table.inc"
