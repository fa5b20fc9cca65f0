// Integer training for x86-64 with AVX-512 VNNI: everything on 32 registers of 512 bits.
#define EDGEGOSSIP_TABLE int8_avx512vnni
#define EDGEGOSSIP_VECTORS_OF_64
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of what its own intrinsics leave undefined on purpose
#endif
#include "runtime/isa/int8.inc"
