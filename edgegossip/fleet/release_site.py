"""What is in a folder that is to become a release, looked through before it is signed: whatever
could not start on a board is refused here, and not by every board a quarter of an hour later."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from edgegossip.types import ConfigError
from edgegossip.update.bundle import LOCK, is_ours

MAKE = "make it with `edgegossip image release`"
_MACHINES = {183: "aarch64", 62: "x86_64", 40: "armv7l"}  # e_machine of ELF headers
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Site:
    """Of a folder that a board would have on its PYTHONPATH."""

    folder: Path
    version: str
    machine: str  # as `uname -m`
    python: str  # 3.11
    packages: str  # SHA-256 of its packages.lock
    whole: bool  # whether those packages are in it


def examine(folder: Path) -> Site:
    """Raises ConfigError for a folder that is no release, or one that lacks something."""
    lock = folder / LOCK
    version, module = version_of(folder), _module(folder)
    if not lock.is_file():
        raise ConfigError(f"{folder} has no {LOCK}, so no board could tell whether it has the packages: {MAKE}")
    data = lock.read_bytes()
    names = {path.name for path in folder.iterdir()} - {LOCK}
    whole = not all(is_ours(f"site/{name}/") for name in names)
    if whole and (missing := _missing(data.decode(errors="replace"), names)):
        raise ConfigError(f"{folder} lacks {', '.join(missing[:5])} of its {LOCK}, and could not start: {MAKE}")
    return Site(folder, version, _machine(module), _python(folder, module), hashlib.sha256(data).hexdigest(), whole)


def version_of(site: Path) -> str:
    """Of the package in it. Raises ConfigError."""
    try:
        text = (site / "edgegossip" / "__init__.py").read_text()
    except OSError as error:
        raise ConfigError(f"{site}: no edgegossip is in it: {MAKE}") from error
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ConfigError(f"{site}: its edgegossip does not say its version: say --release VERSION")
    return found[1]


def _module(site: Path) -> Path:
    found = sorted((site / "edgegossip/native").glob("_native*.so"))
    if not found:
        raise ConfigError(f"{site}: its edgegossip has no native module (_native*.so), and could not start: {MAKE}")
    return found[0]


def _machine(module: Path) -> str:
    with open(module, "rb") as stream:
        head = stream.read(20)
    code = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or code not in _MACHINES:
        raise ConfigError(f"{module} is for no machine that is known")
    return _MACHINES[code]


def _python(site: Path, module: Path) -> str:
    """From the compiled files; else from the module's name, which has no version where one serves
    several."""
    names = [path.name for path in (site / "edgegossip/__pycache__").glob("__init__.cpython-*.pyc")]
    found = {m[1] for name in (*names, module.name) if (m := re.search(r"cpython-3(\d+)[.-]", name))}
    if len(found) != 1:
        raise ConfigError(f"{site} is compiled for {'no Python' if not found else 'several Pythons'}: {MAKE}")
    return f"3.{found.pop()}"


def _missing(lock: str, names: set[str]) -> list[str]:
    """Packages of a lock file that no folder NAME-VERSION.dist-info stands for."""
    there = {_plain(name.removesuffix(".dist-info")) for name in names if name.endswith(".dist-info")}
    return [f"{name} {version}" for name, version in _PIN.findall(lock) if _plain(f"{name}-{version}") not in there]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
