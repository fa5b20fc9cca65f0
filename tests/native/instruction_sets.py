"""The kernels' source files of an architecture with their compiler flags, as CMakeLists.txt has
them."""

_BITS = ["-mbmi2", "-mlzcnt"]
_AVX2, _AVX512 = ["-mavx2", *_BITS], [*_BITS, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]

ISA_FLAGS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "portable": [],
        "avx2": _AVX2,
        "avx512": _AVX512,
        "avx512vbmi": [*_AVX512, "-mavx512vbmi", "-mavx512vbmi2"],
        "int8_portable": [],
        "int8_avx2": _AVX2,
        "int8_avxvnni": [*_AVX2, "-mavxvnni"],
        "int8_avx512vnni": [*_AVX512, "-mavx512vnni", "-mprefer-vector-width=512"],
    },
    "aarch64": {
        "portable": [],
        "neon": [],
        "int8_portable": [],
        "int8_neon": [],
        "int8_dotprod": ["-march=armv8.2-a+dotprod"],
    },
}
