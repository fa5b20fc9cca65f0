// Integer training for aarch64.
#define EDGEGOSSIP_TABLE int8_neon
#include "runtime/isa/int8.inc"
