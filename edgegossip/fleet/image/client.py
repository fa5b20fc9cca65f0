"""A board's Python packages in one folder, put together here from a hashed lock file and our wheel,
and compiled in advance.

Compiled files say that nobody need look at their sources (PEP 552, unchecked hashes): an SD card is
slow, and nothing on a board changes them. A board reads them for minutes less than it would
compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from edgegossip.fleet.image.boards import Debian
from edgegossip.fleet.image.tools import find, run
from edgegossip.types import DataError
from edgegossip.update.bundle import LOCK

# Below site/: what no board needs. Tests have example keys in them, which a scan for secrets would
# find.
_NOT_NEEDED = (
    "bin", "share", "torch/include", "torch/share", "torch/bin/protoc*", "torch/lib/*.a", "numpy/**/tests",
    "sympy/**/tests", "mpmath/tests", "networkx/**/tests", "greenlet/tests", "psutil/tests", "Crypto/SelfTest",
    "**/*.pyi",
)  # fmt: skip
_INSTALL_S, _COMPILE_S = 1800.0, 3600.0


def lock_file(source: Path, debian: Debian) -> Path:
    """Find the lock file of the checkout; raises DataError when it has none for this Debian."""
    file = source / "deploy" / "locks" / debian.lock
    if not file.is_file():
        raise DataError(f"{file} is missing: scripts/lock_boards.py makes it")
    return file


def install(lock: Path, debian: Debian, site: Path, log: Path) -> None:
    """Install all packages of a lock file for aarch64, each checked against its hash, without
    running any of it. Raises HostError."""
    command: list[str | Path] = [sys.executable, "-m", "uv", "pip", "install", "--no-config"]
    command += ["--require-hashes", "--no-deps"]
    command += ["--python-platform", "aarch64-manylinux_2_28", "--python-version", debian.python]
    command += ["--only-binary", ":all:", "--link-mode", "copy", "--target", site, "-r", lock]
    run(command, _INSTALL_S, log=log)
    for pattern in _NOT_NEEDED:
        for path in sorted(site.glob(pattern), reverse=True):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    (site / ".lock").unlink(missing_ok=True)
    shutil.copyfile(lock, site / LOCK)


def unpack(wheel: Path, site: Path) -> None:
    """Unpack our own package, beside the others."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def precompile(site: Path, debian: Debian, root: Path, inside: str, log: Path) -> str:
    """Compile everything below `site`, which is `inside` on the board, by a Python of the board's
    version: this machine's, or failing that the board's own under emulation, in the tree `root`
    (minutes). Returns which it was. Raises HostError."""
    options = ["-q", "-j", str(os.cpu_count() or 1), "--invalidation-mode", "unchecked-hash"]
    env = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    if python := has_same_python(debian):
        run([python, "-m", "compileall", *options, "-s", site, "-p", inside, site], _COMPILE_S, env=env, log=log)
        return f"Python {debian.python} of this machine"
    qemu = find("qemu-aarch64-static") or "qemu-aarch64-static"
    own: list[str | Path] = [qemu, "-L", root, root / f"usr/bin/python{debian.python}"]
    own += ["-m", "compileall", *options[:1], *options[3:]]
    run([*own, "-s", site, "-p", inside, site], _COMPILE_S, env={**env, "PYTHONHOME": str(root / "usr")}, log=log)
    return "the board's Python, emulated"


def has_same_python(debian: Debian) -> str | None:
    """Find a Python of the same minor version on this machine, whose compiled files are those of
    the board's."""
    if sys.version_info[:2] == tuple(map(int, debian.python.split("."))):
        return sys.executable
    found = find(f"python{debian.python}")
    if found and not subprocess.run([found, "-c", "pass"], capture_output=True, timeout=60).returncode:
        return found
    return None
