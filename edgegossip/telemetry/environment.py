"""What a run ran on, for env.json. Versions are read from the names of the installed packages'
metadata folders: nothing is imported for it, not even importlib.metadata, whose 2.5 MiB a board
that waits would keep."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from edgegossip import native

PACKAGES = ("edgegossip", "numpy", "torch", "grpcio", "protobuf", "psutil", "click", "flwr")


def environment(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The machine and the software as a JSON document; `argv` is the command line, `isa` the native
    kernels' choice."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv if argv is None else argv),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "board": board_name(),
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "isa": native.isa(),
        "packages": {name: package_version(name, sys.path) for name in PACKAGES},
    }


def board_name(device_tree: Path = Path("/proc/device-tree")) -> str | None:
    """The board's model as its device tree has it, such as "Raspberry Pi 4 Model B Rev 1.4"; None
    on a PC."""
    try:
        return (device_tree / "model").read_text(errors="replace").strip("\0 \n") or None
    except OSError:
        return None


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The CPU's name from Linux, or what Python knows of it; None when neither does (most arm64
    kernels name none)."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or None


def package_version(package: str, search: Sequence[str]) -> str | None:
    """The version in `NAME-VERSION.dist-info` (the standard "Recording installed projects"), in the
    first folder of `search` that has one; None when the package is not installed."""
    for folder in search:
        for found in Path(folder or ".").glob(f"{package}-*.dist-info"):
            return found.name.removesuffix(".dist-info").removeprefix(f"{package}-")
    return None
