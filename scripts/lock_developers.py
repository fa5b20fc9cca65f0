"""Make the locks of developers, CI and laptops: every Python package with its hashes, at the
versions of constraints.txt.

    python scripts/lock_developers.py [FOLDER_WITH_BUILDS_OF_TORCH ...]

    locks/developer.txt   what the Makefile installs, but for torch
    locks/torch-cpu.txt   torch's builds for the CPU: of those folders, and of earlier calls
    locks/torch.txt       torch as PyPI has it, for whom pip finds none of those
    locks/cuda.txt        what that asks for besides where it is built for CUDA
    locks/simulation.txt  Flower's simulation engine (make test-slow)
    locks/kernels.txt     what builds the C++ kernels
    locks/laptop.txt      what `edgegossip[server,image,report]` needs
    locks/container.txt   what `edgegossip[server]` and torch need, for deploy/oci

They hold for Python 3.11 to 3.13 on any machine: pip takes those whose markers fit. Boards' locks
are made by scripts/lock_boards.py."""

import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRES = PROJECT["build-system"]["requires"]
NEEDED, EXTRAS = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
TOOLS = ["cyclonedx-bom>=7"]
CPU = "locks/torch-cpu.txt"
_CUDA = re.compile(r"(nvidia-|cuda-|triton=)")


def resolve(wanted) -> list[str]:
    """Return a block of lines for each package that these need."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--generate-hashes"]
    command += ["--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
    command += ["--constraints", str(ROOT / "constraints.txt"), "-"]
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(done.stderr)
    return re.findall(r"^\S.*\n(?:    .*\n)*", done.stdout, re.MULTILINE)


def cpu_builds(torch: str, folders: list[Path]) -> str:
    """Return the block of torch's builds for the CPU: of those that lie in the folders, and those
    that an earlier call knew. Their index is not PyPI."""
    pin, file = f"{torch.split()[0]}+cpu", ROOT / CPU
    known = file.read_text() if file.exists() else ""
    found = set(re.findall(r"sha256:\w+", known)) if f"{pin} " in known else set[str]()
    for build in (f for folder in folders for f in folder.glob(f"{pin.replace('==', '-')}-*.whl")):
        found.add(f"sha256:{sha256(build.read_bytes()).hexdigest()}")
    if not found:
        sys.exit(f"no build of {pin} is known: name a folder that has one")
    return " \\\n    ".join([pin, *(f"--hash={one}" for one in sorted(found))]) + "\n"


def write(name: str, what: str, blocks: list[str]) -> None:
    file = ROOT / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"# {what}, made by scripts/lock_developers.py.\n{''.join(blocks)}")
    print(f"{name}: {len(blocks)} packages")


if __name__ == "__main__":
    every = [*REQUIRES, *NEEDED, *(d for extra in EXTRAS.values() for d in extra), *TOOLS]
    found = resolve(every)
    (torch,) = [b for b in found if b.startswith("torch==")]
    cuda = [b for b in found if _CUDA.match(b)]
    rest = [b for b in found if b not in cuda and b != torch]
    write("locks/developer.txt", "What developers and CI install", rest)
    write("locks/torch.txt", "torch as PyPI has it", [torch])
    write(CPU, "torch for the CPU alone", [cpu_builds(torch, [Path(folder) for folder in sys.argv[1:]])])
    write("locks/cuda.txt", "What a build of torch for CUDA needs besides", cuda)
    write(
        "locks/simulation.txt",
        "Flower's simulation engine",
        resolve([EXTRAS["server"][0].replace("flwr", "flwr[simulation]")]),
    )
    write("locks/kernels.txt", "What builds the C++ kernels", resolve([*REQUIRES, "cmake", "ninja"]))
    container = [b for b in resolve([*NEEDED, *EXTRAS["server"], *EXTRAS["torch"]]) if b != torch and b not in cuda]
    write("locks/container.txt", "What edgegossip[server] and torch need", container)
    laptop = [*NEEDED, *EXTRAS["server"], *EXTRAS["image"], *EXTRAS["report"]]
    write("locks/laptop.txt", "What edgegossip[server,image,report] needs", resolve(laptop))
