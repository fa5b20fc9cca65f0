"""Builds and runs tests/native/drive: every kernel on fixed inputs, one hash a kernel."""

import subprocess
from pathlib import Path

from tests.native.instruction_sets import ISA_FLAGS

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "edgegossip" / "native" / "src"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", f"-I{SRC}"]


def compiled(folder, compiler, sources):
    """{name: object} of {source: flags}."""
    objects = {}
    for source, flags in sources.items():
        objects[source.stem] = folder / f"{source.stem}.o"
        subprocess.run([compiler, *FLAGS, *flags, "-c", source, "-o", objects[source.stem]], check=True)
    return objects


def isa_objects(folder, compiler, arch, only=(), more=()):
    flags = {name: [*own, *more] for name, own in ISA_FLAGS[arch].items() if not only or name in only}
    return compiled(folder, compiler, {SRC / "isa" / f"{name}.cpp": own for name, own in flags.items()})


def linked(folder, compiler, objects, more=()):
    """The driver's program, of these kernels; `more`: flags of its own sources and of the link."""
    program = folder / "driver"
    sources = [*sorted((HERE / "drive").glob("*.cpp")), SRC / "cpu.cpp", *sorted((SRC / "core").glob("*.cpp"))]
    subprocess.run([compiler, *FLAGS, "-pthread", *more, *sources, *objects, "-o", program], check=True)
    return program


def hashes(program, emulator=()):
    """{(instruction set, kernel): hash} that the driver prints."""
    done = subprocess.run([*emulator, program], check=True, capture_output=True, text=True)
    found = {}
    for isa, kernel, value in map(str.split, done.stdout.splitlines()):
        assert found.setdefault((isa, kernel), value) == value, f"{isa} {kernel} gave two results"
    return found
