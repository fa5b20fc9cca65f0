"""Builds and runs tests/native/drive: every kernel on fixed inputs, one hash a kernel."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.native.instruction_sets import ISA_FLAGS

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "edgegossip" / "native" / "src"
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
    return compiled(folder, compiler, {SRC / "isa" / f"{name}.cpp": own for name, own in flags.items()})


def shared_objects(folder, compiler, more=()):
    """What every program is made of beside the kernels: the driver and what calls the kernels."""
    sources = [*(HERE / "drive").glob("*.cpp"), SRC / "cpu.cpp", *(SRC / "core").glob("*.cpp")]
    folder.mkdir(exist_ok=True)  # some files of the driver and of the core have one name
    (folder / "drive").mkdir()
    drive = [s for s in sources if s.parent.name == "drive"]
    core = compiled(folder, compiler, {s: more for s in sources if s not in drive})
    return [*core.values(), *compiled(folder / "drive", compiler, dict.fromkeys(drive, more)).values()]


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
