"""Steps of a build, each done once: the folder that a step makes is named after all that it depends
on (content-addressed).

A build that was interrupted goes on at the step that it was in. A folder is made aside and renamed
when it is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.files import refused_as
from edgegossip.fleet.lock import locked
from edgegossip.types import HostError

Echo = Callable[[str], None]
_KEEP = 2  # outputs of a step: the one in use, and one before it


@dataclass(frozen=True, slots=True)
class Step:
    """Describes one step of a build. `make(folder, folders)` fills an empty folder; `folders` are
    those of the steps that it `needs`, by name. `inputs` (what JSON can say) is everything else
    that the outcome depends on."""

    name: str
    title: str
    inputs: Mapping[str, Any]
    make: Callable[[Path, Mapping[str, Path]], None]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Says which folder a step made, and what it took: the seconds of when it was made, and whether
    that was now."""

    name: str
    key: str
    folder: Path
    seconds: float
    cached: bool


def keys(steps: Sequence[Step]) -> dict[str, str]:
    """Return each step's name for its outcome: SHA-256 over its inputs and the keys of what it
    needs. Pure."""
    found: dict[str, str] = {}
    for step in steps:
        text = json.dumps([step.name, step.inputs, [found[need] for need in step.needs]], sort_keys=True)
        found[step.name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def carry_out(steps: Sequence[Step], cache: Path, echo: Echo) -> dict[str, Done]:
    """Do what is not done yet, in this order; tells about each. Raises HostError."""
    named, done = keys(steps), dict[str, Done]()
    with refused_as(HostError, cache):
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache):
            for number, step in enumerate(steps, 1):
                folders = {need: done[need].folder for need in step.needs}
                done[step.name] = _one(step, named[step.name], folders, cache, f"[{number}/{len(steps)}]", echo)
    return done


def _one(step: Step, key: str, folders: Mapping[str, Path], cache: Path, count: str, echo: Echo) -> Done:
    folder = cache / f"{step.name}-{key[:16]}"
    about = cache / f"{folder.name}.json"
    if folder.is_dir():
        os.utime(folder)
        seconds = _seconds(about)
        echo(f"{count} {step.title}: done before ({seconds:.1f} s)")
        return Done(step.name, key, folder, seconds, True)
    echo(f"{count} {step.title} ...")
    aside = cache / f".{folder.name}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    start = time.monotonic()
    with _usual_umask():
        step.make(aside, folders)
    seconds = time.monotonic() - start
    about.write_text(json.dumps({"seconds": round(seconds, 3)}) + "\n")
    aside.rename(folder)
    _forget_older(cache, step.name, folder)
    echo(f"{count} {step.title}: {seconds:.1f} s")
    return Done(step.name, key, folder, seconds, False)


def _seconds(about: Path) -> float:
    try:
        return float(json.loads(about.read_text())["seconds"])
    except (OSError, ValueError, KeyError):
        return 0.0


def _forget_older(cache: Path, name: str, present: Path) -> None:
    others = [p for p in cache.glob(f"{name}-????????????????") if p.is_dir() and p != present]
    for old in sorted(others, key=lambda p: p.stat().st_mtime, reverse=True)[_KEEP - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
        (cache / f"{old.name}.json").unlink(missing_ok=True)


@contextmanager
def _usual_umask() -> Iterator[None]:
    """Set the usual umask: what a step makes, and the programs that it starts, must not depend on
    who builds."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def tree_hash(folder: Path, *patterns: str) -> str:
    """Return a SHA-256 over names, modes and contents of the files below a folder that match any of
    the patterns."""
    total = hashlib.sha256()
    files = {path for pattern in patterns or ("**/*",) for path in folder.glob(pattern)}
    for path in sorted(files):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            total.update(f"{name} -> {os.readlink(path)}\n".encode())
        elif path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            total.update(f"{name} {path.stat().st_mode & 0o111:o} {len(data)}\n".encode() + data)
    return total.hexdigest()
