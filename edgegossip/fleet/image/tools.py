"""Other programs: which are missing, and running one with a deadline and one sentence when it
fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
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
    "mmd": "mtools",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "apt-get": "apt",
    "tar": "tar",
    "lsblk": "util-linux",
    "arch-test": "arch-test",
    "qemu-system-aarch64": "qemu-system-arm",
    "ip": "iproute2",
}
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # not on every user's PATH
_LAST_LINES = 4
_PATIENCE_S = 10.0
_FULL = os.strerror(errno.ENOSPC)


def with_sudo(words: str) -> str:
    """Return a command of ours as root. sudo does not look where a virtual environment has its
    programs, so the whole path."""
    return f"sudo {shutil.which('edgegossip') or 'edgegossip'} {words}"


def find(program: str) -> str | None:
    """Return where a program is."""
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_SBIN))


def need(*programs: str) -> None:
    """Raise HostError that names all programs that are missing and how to get them."""
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
    """Run a program; return its standard output. With `log`, that and its errors go there instead.
    Raises HostError when it is missing, fails (with the last lines that it wrote), or takes longer
    than `timeout_s` seconds."""
    program = str(command[0])
    need(program)
    with open(log, "a") if log else nullcontext(subprocess.PIPE) as stream:
        # In a session of its own: mmdebstrap signals its whole process group when it fails, which
        # must not be ours. So Ctrl-C does not reach it: whatever ends the waiting ends all of it.
        process = subprocess.Popen(
            [find(program) or program, *map(str, command[1:])],
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            text=True,
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(text, timeout_s)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise HostError(f"{program} did not end in {timeout_s:.0f} s{_where(log)}") from error
        except BaseException:
            _end(process)
            raise
    if code := process.returncode:
        output = log.read_text(errors="replace") if log else err or out or ""
        why = f"failed with {code}: {_last(output)}"
        if _FULL in output:
            why = "was refused by the disk: no space left on device"
        raise HostError(f"{program} {why}{_where(log)}")
    return out or ""


def _end(process: subprocess.Popen[str]) -> None:
    """End it and what it has started: first asked, as mmdebstrap has mounts to take back."""
    for signal_, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def _last(output: str) -> str:
    return (
        " / ".join([line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]) or "it said nothing"
    )


def _where(log: Path | None) -> str:
    return f" (its log: {log})" if log else ""
