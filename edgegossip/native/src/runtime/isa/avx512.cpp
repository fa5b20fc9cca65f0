// Kernels for x86-64 with AVX-512 F, BW, VL and DQ. Same generic code as everywhere; see the package's docstring on what it was run on.
#define EDGEGOSSIP_TABLE kernels_avx512
#include "runtime/isa/table.inc"
