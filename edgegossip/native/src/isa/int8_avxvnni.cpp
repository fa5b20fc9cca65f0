// Integer training for x86-64 with AVX2 and AVX-VNNI, whose vpdpwssd multiplies and adds at once. Never run by the authors.
#define EDGEGOSSIP_TABLE int8_avxvnni
#include "int8.inc"
