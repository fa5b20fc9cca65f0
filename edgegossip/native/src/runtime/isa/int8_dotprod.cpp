// Integer training for aarch64 with the dot products of 8-bit integers (ARMv8.2, Cortex-A55 and A76 on): sdot.
#define EDGEGOSSIP_TABLE int8_dotprod
#include "runtime/isa/int8.inc"
