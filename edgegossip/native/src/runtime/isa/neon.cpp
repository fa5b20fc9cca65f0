// Kernels for aarch64, where NEON is the base line.
#define EDGEGOSSIP_TABLE kernels_neon
#include "runtime/isa/table.inc"
