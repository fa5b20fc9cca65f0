"""Builds the native fuzz target with clang's sanitizers and runs it:
`python -m tests.fuzz.native.run --seconds 60`.

Needs clang++ (with its libFuzzer). Exit code 0 when nothing was found; a finding is written to the
folder as crash-*, timeout-* or oom-*, and `--again FILE` runs it once more.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.native import corpus
from tests.native.instruction_sets import ISA_FLAGS

HERE = Path(__file__).parent
SRC = HERE.parents[2] / "edgegossip" / "native" / "src"
SANITIZERS = "address,undefined"
# float-cast-overflow is what the kernels' conversions must never do; a value that does not fit is
# undefined in C++.
FLAGS = [
    "-std=c++17",
    "-O1",
    "-g",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-omit-frame-pointer",
]
CHECKS = [
    f"-fsanitize=fuzzer-no-link,{SANITIZERS},float-cast-overflow",
    f"-fno-sanitize-recover={SANITIZERS},float-cast-overflow",
]


def compiler() -> str | None:
    return shutil.which("clang++")


def build(folder: Path) -> Path:
    """The fuzzer's program."""
    clang, jobs = compiler(), []
    assert clang is not None
    isas = {SRC / "runtime" / "isa" / f"{name}.cpp": flags for name, flags in ISA_FLAGS[platform.machine()].items()}
    sources = {
        **isas,
        **{
            p: []
            for p in (*sorted(p for p in SRC.glob("*/*.cpp") if p.parent.name != "bind"), *sorted(HERE.glob("*.cpp")))
        },
    }
    for source, flags in sources.items():
        out = folder / f"{source.stem}.o"
        jobs.append([clang, *FLAGS, *CHECKS, *flags, f"-I{SRC}", f"-I{HERE}", "-c", str(source), "-o", str(out)])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: subprocess.run(job, check=True), jobs))
    program = folder / "fuzz_decoders"
    objects = [job[-1] for job in jobs]
    link = [clang, f"-fsanitize=fuzzer,{SANITIZERS}", "-pthread", *objects, "-o", str(program)]
    subprocess.run(link, check=True)
    return program


def fuzz(program: Path, folder: Path, seconds: int, seed: int) -> int:
    """Runs it from the corpus and what earlier runs found; the exit code, 0 when nothing is
    wrong."""
    found = folder / "corpus"
    found.mkdir(exist_ok=True)
    count = corpus.write(folder / "start")
    print(f"{count} inputs to start from; findings go to {folder}", flush=True)
    limits = ["-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=64", f"-max_len={corpus.MAX_BYTES}"]
    command = [program, found, folder / "start", f"-max_total_time={seconds}", f"-seed={seed}", *limits]
    return subprocess.run([*command, f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=1"]).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native.run")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/fuzz"), help="for the program, the corpus and findings"
    )
    parser.add_argument("--again", type=Path, help="run this input only")
    options = parser.parse_args(arguments)
    if compiler() is None:
        print("the native fuzzer needs clang++; on Debian and Ubuntu: apt install clang", file=sys.stderr)
        return 2
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = build(folder)
    if options.again:
        return subprocess.run([program, options.again]).returncode
    return fuzz(program, folder, options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
