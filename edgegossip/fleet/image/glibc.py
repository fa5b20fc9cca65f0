"""Which C library a compiled module needs, by the versions of the symbols that it takes from
others: that decides on which systems it loads, and the platform tag of its wheel (PEP 600)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from edgegossip.fleet.image.tools import run
from edgegossip.types import HostError

OBJDUMP = "aarch64-linux-gnu-objdump"
_FIRST = (2, 17)  # of aarch64
# What every system has that the tag admits; anything else would have to come along.
_LIBRARIES = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d|libgcc_s\.so\.1|ld-linux-aarch64\.so\.1")


def needed(module: Path, newest: tuple[int, int]) -> tuple[int, int]:
    """The C library that it needs at least. Raises HostError when that is newer than `newest`, or
    it needs other libraries."""
    libraries, versions = read(run([OBJDUMP, "-p", module], 60))
    if other := [name for name in libraries if not _LIBRARIES.fullmatch(name)]:
        raise HostError(f"{module.name} needs {', '.join(other)}, which boards may not have: see cross/toolchain.cmake")
    found = max(versions, default=_FIRST)
    if found > newest:
        raise HostError(
            f"{module.name} needs glibc {_text(found)}, and must load with {_text(newest)}: see cross/toolchain.cmake"
        )
    return max(found, _FIRST)


def read(said: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Of `objdump -p`: the libraries, and the versions of glibc's symbols. Pure."""
    libraries = re.findall(r"^\s+NEEDED\s+(\S+)", said, re.MULTILINE)
    return libraries, _versions(re.findall(r"\bGLIBC_(\d+)\.(\d+)", said))


def _versions(found: Iterable[tuple[str, str]]) -> list[tuple[int, int]]:
    return [(int(major), int(minor)) for major, minor in found]


def platform_tag(glibc: tuple[int, int]) -> str:
    """Of a wheel's name."""
    return f"manylinux_{glibc[0]}_{glibc[1]}_aarch64"


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
