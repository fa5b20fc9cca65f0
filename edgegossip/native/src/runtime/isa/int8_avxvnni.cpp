// Integer training for x86-64 with AVX2 and AVX-VNNI, whose vpdpbusd and vpdpwssd multiply and add at once. Never run by the authors.
#define EDGEGOSSIP_TABLE int8_avxvnni
#include "runtime/isa/int8.inc"
