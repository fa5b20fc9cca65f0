"""All kernels under clang's sanitizers: no finding, and the same results."""

import platform
import shutil

import pytest

from tests.native.driver import hashes, isa_objects, linked, shared_objects

SANITIZERS = {
    "memory and undefined behaviour": ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread"],
}


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
    assert {"int8_conv", "int8_conv_evonorm", "int8_conv_evonorm_backward", "int8_embedding", "int8_pool"} <= set(
        kernels
    )
    assert all(len(values) == 1 for values in kernels.values()), found
