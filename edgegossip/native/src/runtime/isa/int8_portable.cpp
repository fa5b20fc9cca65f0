// Integer training for the architecture's base line (SSE2 on x86-64).
#define EDGEGOSSIP_TABLE int8_portable
#include "runtime/isa/int8.inc"
