"""How many files each walk of ARCHITECTURE.md makes a reader open: `python scripts/walks.py`.

A walk names files, in the order in which a call, an event or a message goes through them; what it
has in parentheses are other ways. To each file the reader follows a name that it takes from one
that is open already, or gives to one. Where there is none, the files on the shortest way have to be
opened, too, and count."""

from __future__ import annotations

import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "edgegossip"
TAKES = re.compile(r"^ *from (edgegossip[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.M)


def walks() -> dict[str, list[Path]]:
    """Return the files that each walk names, in order."""
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8")
    found = {}
    for title, body in re.findall(r"^## (One .*? round|Other walks.*?)\n(.*?)(?=^## )", text, re.M | re.S):
        parts = re.findall(r"^\*\*(.*?)\*\*(.*?)(?=^\*\*|\Z)", body, re.M | re.S)
        parts = parts or re.findall(r"^([A-Z][^\n]*:)\n\n(.*?)(?=^[A-Z]|\Z)", body, re.M | re.S) or [("", body)]
        for name, steps in parts:
            walk = name if title.startswith("Other") else f"{title} {name}"
            found[walk.strip(" :,")] = _files(steps)
    return found


def _files(text: str) -> list[Path]:
    """A name without a folder is in that of the file before, as a reader takes it."""
    files: list[Path] = []
    for name in re.findall(r"`([\w/-]+(?:\.py|\.[ch]pp|/))`", re.sub(r"\([^()]*\)", "", text)):
        places = [PACKAGE / name, *(before.parent / name for before in reversed(files))]
        files.append(next(place for place in places if place.exists()))
    return list(dict.fromkeys(files))


def _names_taken(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each name that a file takes: of which module, as what there and as what here. It is
    read as text: to parse all files takes twenty times as long."""
    for module, several, one in TAKES.findall(text):
        for name in filter(None, map(str.strip, re.sub("#.*", "", several or one).split(","))):
            there, _, here = name.partition(" as ")
            yield module, there, here or there


@cache
def takes_from() -> Mapping[Path, Sequence[Path]]:
    """Return the files of which a file takes a name, both in order."""
    found: dict[Path, set[Path]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text("utf-8")
        found[file] |= {_definer(module, name) for module, name, _ in _names_taken(text)}
        if "_native" in text:  # what is bound is called by its name in both
            for bound in (PACKAGE / "native/src/bind").glob("*.cpp"):
                if any(f"_native.{name}" in text for name in re.findall(r'"(\w+)"', bound.read_text("utf-8"))):
                    found[file].add(bound)
    for source in (PACKAGE / "native/src").rglob("*.[ch]pp"):
        names = re.findall(r'#include "([^"]+)"', source.read_text("utf-8"))
        found[source] |= {place for name in names if (place := PACKAGE / "native/src" / name).exists()}
    return {file: sorted(others - {file}) for file, others in sorted(found.items())}


@cache
def _definer(module: str, name: str) -> Path:
    """Return the file that has the name, past packages that only hand it on."""
    place = PACKAGE.parent / module.replace(".", "/")
    if (inside := place / f"{name}.py").exists():
        return inside
    file = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
    if file.name == "__init__.py" and file.exists():
        for other, there, here in _names_taken(file.read_text("utf-8")):
            if here == name and other != module:
                return _definer(other, there)
    return file


def between(start: Path, end: Path) -> list[Path] | None:
    """Return the files on the shortest way from one to the next, without both: down from either to
    the other, or through one that takes from both. A folder is as good as any file in it."""
    here, there = ({p} if p.is_file() else set(p.rglob("*.*")) for p in (start, end))
    callers = ([f] for f, takes in takes_from().items() if not here.isdisjoint(takes) and not there.isdisjoint(takes))
    return min([*islice(callers, 1), *_down(here, there), *_down(there, here)], key=len, default=None)


def _down(starts: set[Path], ends: set[Path]) -> list[list[Path]]:
    """Return the files between, or nothing where no way leads down."""
    ways, seen = deque([start] for start in sorted(starts)), set(starts)
    while ways:
        way = ways.popleft()
        if way[-1] in ends:
            return [way[1:-1]]
        for other in takes_from().get(way[-1], ()):
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def besides(files: list[Path]) -> list[Path]:
    """Return the files through which a walk leads that it does not name. A reader goes on from the
    file before, or from an earlier one; or the next one leads to it."""
    found: list[Path] = []
    for k, file in enumerate(files[1:], 1):
        ways = [between(other, file) for other in files[:k] + files[k + 1 : k + 2]]
        found += min((way for way in ways if way is not None), key=len)
    return [file for file in dict.fromkeys(found) if file not in files]


def main() -> int:
    """Print a line for each walk."""
    counts = []
    for name, files in walks().items():
        more = besides(files)
        counts.append(len(files) + len(more))
        print(f"{counts[-1]:3}  {name}", *(f"+ {file.relative_to(PACKAGE)}" for file in more))
    return int(len(counts) < 7 or max(counts) > 10)


if __name__ == "__main__":
    sys.exit(main())
