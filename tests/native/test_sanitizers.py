"""All kernels under clang's sanitizers: no finding, and the same results."""

import platform
import shutil

import pytest

from tests.native.driver import hashes, isa_objects, linked, shared_objects

SANITIZERS = {
    "memory and undefined behaviour": ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread"],
}
# What the driver has to have run: a file that fell out of its build would find nothing either.
CODECS = [
    "fp32",
    "fp16",
    "bf16",
    "minmax8_results",
    "minmax8_encode",
    "minmax8_decode",
    "eden_encode",
    "eden_decode",
    "quantise_norms",
    "quantise_codes",
    "quantise_values",
    "huffman_encode",
    "section_encode",
    "section_decode",
    "topk_encode",
    "randk_encode",
    "sparse_decode",
    "momentum",
    "spectral_basis",
    "spectral_atom",
    "power_step",
    "factors_product",
    "steps_encode",
    "steps_decode",
    "steps_bits",
    "steps_error",
]
INT8 = [
    "int8_quantise",
    "int8_conv",
    "int8_conv_backward",
    "int8_evonorm",
    "int8_evonorm_backward",
    "int8_add",
    "int8_pool",
    "int8_embedding",
    "int8_conv_evonorm",
    "int8_conv_evonorm_backward",
    "int8_shaping",
    "int8_program",
    "evonorm_s0",
    "evonorm_s0_backward",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", SANITIZERS)
def test_no_sanitizer_has_anything_to_say(tmp_path, which):
    if not shutil.which("clang++"):
        pytest.skip("needs clang++")
    flags = [*SANITIZERS[which], "-O1", "-g1"]
    objects = isa_objects(tmp_path / "isa", "clang++", platform.machine(), more=flags).values()
    shared = shared_objects(tmp_path / "core", "clang++", flags)
    found = hashes(
        linked(tmp_path / "driver", "clang++", [*objects, *shared], flags)
    )  # which fails when the program does
    kernels = {}
    for (_, kernel), value in found.items():
        kernels.setdefault(kernel, set()).add(value)
    assert {*CODECS, *INT8} <= set(kernels), {*CODECS, *INT8} - set(kernels)
    assert all(len(values) == 1 for values in kernels.values()), found
