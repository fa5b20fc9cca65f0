"""Builds and runs tests/native/drive: every kernel on fixed inputs, one hash a kernel."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.native.instruction_sets import ISA_FLAGS

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "edgegossip" / "native" / "src"
PARTS = ("codec", "int8", "lowrank", "runtime")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", f"-I{SRC}"]


def compiled(folder, compiler, sources):
    """{name: object} of {source: flags}."""
    objects = {source.stem: folder / f"{source.stem}.o" for source in sources}
    jobs = [[compiler, *FLAGS, *own, "-c", s, "-o", objects[s.stem]] for s, own in sources.items()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: subprocess.run(job, check=True), jobs))
    return objects


def isa_objects(folder, compiler, arch, only=(), more=()):
    """The kernels of an architecture, or `only` some, with the flags of CMakeLists.txt and
    `more`."""
    folder.mkdir(exist_ok=True)
    flags = {name: [*own, *more] for name, own in ISA_FLAGS[arch].items() if not only or name in only}
    return compiled(folder, compiler, {SRC / "runtime" / "isa" / f"{name}.cpp": own for name, own in flags.items()})


def shared_objects(folder, compiler, more=()):
    """What every program is made of beside the kernels: the driver and what calls the kernels."""
    made = []
    for part in (HERE / "drive", *(SRC / name for name in PARTS)):  # some files of two parts have one name
        (folder / part.name).mkdir(parents=True)
        made += compiled(folder / part.name, compiler, dict.fromkeys(part.glob("*.cpp"), more)).values()
    return made


def linked(program, compiler, objects, more=()):
    subprocess.run([compiler, "-pthread", *more, *objects, "-o", program], check=True)
    return program


def hashes(program, emulator=()):
    """{(instruction set, kernel): hash} that the driver prints."""
    done = subprocess.run([*emulator, program], check=True, capture_output=True, text=True)
    found = {}
    for isa, kernel, value in map(str.split, done.stdout.splitlines()):
        assert found.setdefault((isa, kernel), value) == value, f"{isa} {kernel} gave two results"
    return found
