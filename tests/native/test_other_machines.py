"""The kernels give the same bytes on x86-64 and on aarch64 (cross-compiled, run under user-mode
emulation)."""

import platform
import shutil

import pytest

from tests.native.driver import hashes, isa_objects, linked, shared_objects


def by_kernel(found):
    kernels = {}
    for (_, kernel), value in found.items():
        kernels.setdefault(kernel, set()).add(value)
    return kernels


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("native_compiler", ["g++", "clang++"])
def test_same_bytes_on_x86_64_and_aarch64(tmp_path, native_compiler):
    cross, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
    if missing := [tool for tool in (native_compiler, cross, emulator) if not shutil.which(tool)]:
        pytest.skip(f"needs {', '.join(missing)}")
    if platform.machine() != "x86_64":
        pytest.skip("compares with x86-64, and this machine is not one")
    arm = [*isa_objects(tmp_path / "arm", cross, "aarch64").values(), *shared_objects(tmp_path / "arm core", cross)]
    program = linked(tmp_path / "on_arm", cross, arm, ["-static"])
    old, new = (hashes(program, [emulator, "-cpu", cpu]) for cpu in ("cortex-a72", "max"))
    here, imitated = on_x86_64(tmp_path, native_compiler)
    assert {isa for isa, _ in here} >= {"portable"}
    assert {isa for isa, _ in old} == {"portable", "neon"}
    assert {isa for isa, _ in new} == {"portable", "neon", "dotprod"}
    assert imitated == here
    found = {"x86": here, "a72": old, "max": new}
    kernels = by_kernel({(f"{machine} {i}", k): v for machine, of in found.items() for (i, k), v in of.items()})
    assert {"minmax8_encode", "minmax8_decode", "int8_conv"} <= set(kernels)
    assert all(len(values) == 1 for values in kernels.values()), found


def on_x86_64(folder, compiler):
    """Hashes of this machine, and those with products of bytes on vectors of 32 and 64 bytes, where
    no processor at hand has vpdpbusd: a loop of the same meaning stands in for the instruction."""
    objects, shared = isa_objects(folder / "x86", compiler, "x86_64"), shared_objects(folder / "x86 core", compiler)
    plain = hashes(linked(folder / "plain", compiler, [*objects.values(), *shared]))
    for isa, size in (("int8_portable", 64), ("int8_avx2", 32)):
        imitation = [f"-DEDGEGOSSIP_EMULATED_DOT={size}", "-Wno-psabi"]
        objects |= isa_objects(folder / f"x86 {size}", compiler, "x86_64", (isa,), imitation)
    return plain, hashes(linked(folder / "imitated", compiler, [*objects.values(), *shared]))
