"""The kernels give the same bytes on x86-64 and on aarch64 (cross-compiled, run under user-mode emulation)."""

import platform
import shutil

import pytest

from tests.native.driver import hashes, isa_objects, linked


def by_kernel(found):
    kernels = {}
    for (_, kernel), value in found.items():
        kernels.setdefault(kernel, set()).add(value)
    return kernels


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("native_compiler", ["g++", "clang++"])
def test_same_bytes_on_x86_64_and_aarch64(tmp_path, native_compiler):
    cross, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
    if missing := [tool for tool in (native_compiler, cross, emulator) if not shutil.which(tool)]:
        pytest.skip(f"needs {', '.join(missing)}")
    if platform.machine() != "x86_64":
        pytest.skip("compares with x86-64, and this machine is not one")
    (tmp_path / "here").mkdir()
    (tmp_path / "arm").mkdir()
    here = hashes(
        linked(tmp_path / "here", native_compiler, isa_objects(tmp_path / "here", native_compiler, "x86_64").values())
    )
    program = linked(tmp_path / "arm", cross, isa_objects(tmp_path / "arm", cross, "aarch64").values(), ["-static"])
    old, new = (hashes(program, [emulator, "-cpu", cpu]) for cpu in ("cortex-a72", "max"))
    assert {isa for isa, _ in here} >= {"portable"}
    assert {isa for isa, _ in old} == {"portable", "neon"}
    assert {isa for isa, _ in new} == {"portable", "neon", "dotprod"}
    found = {"x86": here, "a72": old, "max": new}
    kernels = by_kernel({(f"{machine} {i}", k): v for machine, of in found.items() for (i, k), v in of.items()})
    assert {"minmax8_encode", "minmax8_decode"} <= set(kernels)
    assert all(len(values) == 1 for values in kernels.values()), found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [32, 64])
def test_products_of_bytes_with_another_instruction_in_the_place_of_vpdpbusd(tmp_path, size):
    """What surrounds vpdpbusd (layouts, offsets, vectors of 32 and 64 bytes), where no processor at hand has it."""
    if platform.machine() != "x86_64" or not shutil.which("g++"):
        pytest.skip("needs g++ on x86-64")
    objects = isa_objects(tmp_path, "g++", "x86_64")
    plain = hashes(linked(tmp_path, "g++", objects.values()))
    which = ("int8_portable", "int8_avx2")
    objects |= isa_objects(tmp_path, "g++", "x86_64", which, [f"-DEDGEGOSSIP_EMULATED_DOT={size}"])
    assert hashes(linked(tmp_path, "g++", objects.values())) == plain
