// Kernels for the architecture's base line (SSE2 on x86-64).
#define EDGEGOSSIP_TABLE kernels_portable
#include "runtime/isa/table.inc"
