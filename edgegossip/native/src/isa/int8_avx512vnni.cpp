// Integer training for x86-64 with AVX-512 VNNI: vpdpbusd on 512 bits, the rest on 32 registers of 256 bits. Never run by the authors.
#define EDGEGOSSIP_TABLE int8_avx512vnni
#include "int8.inc"
