// Kernels for x86-64 with AVX-512 F, BW, VL, DQ, VBMI and VBMI2: bytes are looked up by bytes in registers.
#define EDGEGOSSIP_TABLE kernels_avx512vbmi
#include "runtime/isa/table.inc"
