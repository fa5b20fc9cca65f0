"""Make deploy/locks: every Python package of a board with its hashes, for aarch64: of the images,
and of a Jetson, whose system is NVIDIA's.

    python scripts/lock_boards.py

Versions follow constraints.txt, except for torch: 2.9.1 is the last CPU build on PyPI that runs on
cores without the atomics of ARMv8.1 (Cortex-A53 and A72: Raspberry Pi 3, 4, Zero 2 W). 2.10 dies
there of an illegal instruction, later ones want CUDA."""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from edgegossip.fleet.image.boards import BOARDS

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.9.1"
JETPACK = {"ubuntu-24.04-python3.12-aarch64.txt": ("Ubuntu 24.04 (JetPack 7.2)", "3.12")}


def lock(system: str, python: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]  # what a board trains on may be a csv
    wanted = [*project["dependencies"], *extras["server"], *extras["tables"], TORCH]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not re.match("(?i)torch=|#", line)]
    with tempfile.TemporaryDirectory() as folder:
        requirements, constraints = Path(folder, "requirements.txt"), Path(folder, "constraints.txt")
        requirements.write_text("\n".join(wanted) + "\n")
        constraints.write_text("\n".join(pins) + "\n")
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-config",
            "--python-version",
            python,
        ]
        command += ["--python-platform", "aarch64-manylinux_2_28", "--generate-hashes", "--only-binary", ":all:"]
        command += ["--no-header", "--no-annotate", "--constraints", constraints, requirements]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(done.stderr)
    return f"# Python packages of a board with {system}, made by scripts/lock_boards.py.\n{done.stdout}"


if __name__ == "__main__":
    debians = dict.fromkeys(d for board in BOARDS.values() for d in board.debians)
    systems = {d.lock: (f"Debian {d.version}", d.python) for d in debians}
    for name, (system, python) in {**systems, **JETPACK}.items():
        file = ROOT / "deploy" / "locks" / name
        file.write_text(lock(system, python))
        print(f"{file.relative_to(ROOT)}: {file.read_text().count('==')} packages")
