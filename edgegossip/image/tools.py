"""Other programs: which are missing, and running one with a deadline and one sentence when it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgegossip.types import HostError

# Program -> Debian's package that has it.
PACKAGES = {
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "aarch64-linux-gnu-objdump": "binutils-aarch64-linux-gnu",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "apt-get": "apt",
    "tar": "tar",
    "xz": "xz-utils",
    "lsblk": "util-linux",
    "arch-test": "arch-test",
}
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # not on every user's PATH
_LAST_LINES = 4


def find(program: str) -> str | None:
    """Where it is."""
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_SBIN))


def need(*programs: str) -> None:
    """Raises HostError that names all that are missing and how to get them."""
    missing = [program for program in programs if find(program) is None]
    if missing:
        packages = sorted({PACKAGES.get(program, program) for program in missing})
        raise HostError(f"this needs {', '.join(missing)}: apt install {' '.join(packages)}")


def run(
    command: Sequence[str | Path],
    timeout_s: float,
    *,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    log: Path | None = None,
    cwd: Path | None = None,
) -> str:
    """Its standard output. With `log`, that and its errors go there instead. Raises HostError when it is missing, fails (with the
    last lines that it wrote), or takes longer than `timeout_s` seconds."""
    program = str(command[0])
    need(program)
    whole = [find(program) or program, *map(str, command[1:])]
    env = None if env is None else {**os.environ, **env}
    try:
        if log is None:
            done = subprocess.run(
                whole, input=text, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=cwd
            )
        else:
            with open(log, "a") as stream:
                done = subprocess.run(
                    whole, input=text, stdout=stream, stderr=stream, text=True, timeout=timeout_s, env=env, cwd=cwd
                )
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{program} did not end in {timeout_s:.0f} s{_where(log)}") from error
    if done.returncode:
        said = log.read_text(errors="replace") if log else done.stderr or done.stdout
        raise HostError(f"{program} failed with {done.returncode}: {_last(said)}{_where(log)}")
    return done.stdout or ""


def _last(said: str) -> str:
    return " / ".join([line.strip() for line in said.splitlines() if line.strip()][-_LAST_LINES:]) or "it said nothing"


def _where(log: Path | None) -> str:
    return f" (its log: {log})" if log else ""
