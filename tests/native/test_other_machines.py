"""The kernels give the same bytes on x86-64 and on aarch64 (cross-compiled, run under user-mode emulation)."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.instruction_sets import ISA_FLAGS

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "edgegossip" / "native" / "src"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", f"-I{SRC}"]


def hashes(folder, compiler, arch, emulator, link=()):
    """{(instruction set, kernel): hash} from the driver, built as CMakeLists.txt builds the kernels."""
    objects = []
    for name, flags in ISA_FLAGS[arch].items():
        objects.append(folder / f"{name}.o")
        subprocess.run([compiler, *FLAGS, *flags, "-c", SRC / "isa" / f"{name}.cpp", "-o", objects[-1]], check=True)
    program = folder / "driver"
    sources = [*sorted((HERE / "drive").glob("*.cpp")), SRC / "cpu.cpp", *sorted((SRC / "core").glob("*.cpp"))]
    subprocess.run([compiler, *FLAGS, "-pthread", *link, *sources, *objects, "-o", program], check=True)
    done = subprocess.run([*emulator, program], check=True, capture_output=True, text=True)
    return {tuple(line.split()[:2]): line.split()[2] for line in done.stdout.splitlines()}


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
    here = hashes(tmp_path / "here", native_compiler, "x86_64", [])
    arm = hashes(tmp_path / "arm", cross, "aarch64", [emulator, "-cpu", "cortex-a72"], ["-static"])
    assert {isa for isa, _ in here} >= {"portable"}
    assert {isa for isa, _ in arm} == {"portable", "neon"}
    kernels = by_kernel({**{("x86 " + i, k): v for (i, k), v in here.items()}, **arm})
    assert {"minmax8_encode", "minmax8_decode"} <= set(kernels)
    assert all(len(values) == 1 for values in kernels.values()), (here, arm)
