// Integer training for x86-64 with AVX2; also for AVX-512 without VNNI.
#define EDGEGOSSIP_TABLE int8_avx2
#include "runtime/isa/int8.inc"
