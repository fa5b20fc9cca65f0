"""Plants a fault, runs the tests that are nearest to it, and puts the file right again.

The nearest come first, and the first that fails is the end of it:

1. tests named after the module, then those that import it;
2. those of its room, then those named after modules that import it;
3. those of the simulator and of real processes.

Each group runs in a fork of this process, which has loaded what takes long."""

from __future__ import annotations

import difflib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.types import ConfigError
from lab.faults.places import Fault, faults_of

LONGEST_S = 300.0  # of a group of tests: who hangs is found
_TEST_S = 60
_WORDS = {
    "missing": "a statement is missing",
    "always": "condition always true",
    "never": "condition never true",
    "border": "a border is off by one",
}
_NO_TESTS = 5 << 8  # pytest's exit code, as `waitpid` has it: all are slow


@dataclass(frozen=True, slots=True)
class Found:
    """Tells what came of one planted fault."""

    file: str
    fault: Fault
    before: str  # what stands there
    by: str | None = None  # the first test that failed, "(hangs)", or empty: nobody saw it; None: not planted

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        kind, where, line = self.fault.kind, self.fault.where, self.fault.start[0]
        place = {"file": self.file, "line": line, "where": where, "kind": kind}
        return {**place, "before": self.before, "text": self.fault.text} | ({} if self.by is None else {"by": self.by})

    def __str__(self) -> str:
        """Where it is, and what."""
        place = f"{self.file.removeprefix('edgegossip/')}:{self.fault.start[0]}"
        return f"{place}, {self.fault.where}: {_WORDS.get(self.fault.kind, self.fault.kind)}"


def found(root: Path, path: Path, fault: Fault, by: str | None = None) -> Found:
    """Return what is told of a fault."""
    return Found(path.relative_to(root).as_posix(), fault, fault.replaced(path.read_text()), by)


def drawn(root: Path, rooms: Sequence[str], seed: int, count: int) -> list[tuple[Path, Fault]]:
    """Draw faults of these rooms of edgegossip/, half of them statements that are missing. Raises
    ConfigError for a room that is not there, and where nothing can be planted."""
    for room in rooms:
        _check_room(root / "edgegossip", room)
    sources = {path: path.read_text() for room in rooms for path in _files(root / "edgegossip" / room)}
    every = [(path, fault) for path, source in sources.items() for fault in faults_of(source)]
    if not every:
        raise ConfigError(f"--room {', '.join(rooms)}: there is nothing in it to plant a mistake in")
    missing, rng = [one for one in every if one[1].kind == "missing"], random.Random(seed)
    chosen = dict[tuple[Path, Fault], None]()
    for _ in range(100 * count):
        path, fault = rng.choice(missing if missing and rng.random() < 0.5 else every)
        if len(chosen) < count and fault.changes(sources[path]):
            chosen[path, fault] = None
    return list(chosen)


def _check_room(package: Path, room: str) -> None:
    if (package / room).exists():
        return
    names = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.suffix in ("", ".py")]
    near = difflib.get_close_matches(room, names, n=1)
    rooms = ", ".join(sorted(path.name for path in package.iterdir() if path.is_dir() and path.name[0].isalpha()))
    end = f"did you mean {near[0]}?" if near else f"there are {rooms}"
    raise ConfigError(f"--room {room}: edgegossip/ has no such folder or file; {end}")


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [file for file in found if file.suffix == ".py" and not file.stem.endswith(("_pb2", "_pb2_grpc"))]


def plant(root: Path, path: Path, fault: Fault) -> Found:
    """See whether a test finds the fault. The file is as before afterwards, also on Ctrl-C."""
    source, times = path.read_text(), path.stat()
    try:
        path.write_text(fault.planted(source))
        by = next(filter(None, (_failure(group) for group in groups(root, path))), "")
    finally:
        path.write_text(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return found(root, path, fault, by)


def groups(root: Path, path: Path) -> Iterator[list[Path]]:
    """Yield test files from the nearest to the farthest, each once; no empty group."""
    module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imports = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b")
    room = root / "tests" / path.relative_to(root / "edgegossip").parts[0]
    tests, given = sorted((root / "tests").rglob("test_*.py")), set[Path]()
    users = {(used.parts[0], used.stem) for used in _users(root / "edgegossip", imports)}
    rules: tuple[Callable[[Path], bool], ...] = (
        lambda test: name in test.stem and room in test.parents,
        lambda test: bool(imports.search(test.read_text())),
        lambda test: room in test.parents or (test.relative_to(root / "tests").parts[0], test.stem[5:]) in users,
        lambda test: root / "tests/lab/sim" in test.parents,
        lambda test: root / "tests/e2e" in test.parents,
    )
    for rule in rules:
        group = [test for test in tests if test not in given and rule(test)]
        given.update(group)
        if group:
            yield group


def _users(package: Path, imports: re.Pattern[str]) -> Iterator[Path]:
    return (path.relative_to(package) for path in _files(package) if imports.search(path.read_text()))


def _failure(group: Sequence[Path]) -> str:
    """Run these tests in a fork, up to the first that fails; return its name, empty for none."""
    import pytest

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(reader)
        first = _First(writer)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        words = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_S}", *map(str, group)]
        os._exit(int(pytest.main(words, plugins=[first])))
    os.close(writer)
    until_s = time.monotonic() + LONGEST_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until_s:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "(hangs)"
        time.sleep(0.05)
    with os.fdopen(reader) as pipe:
        return pipe.readline().strip() or ("(ends)" if ended[1] not in (0, _NO_TESTS) else "")


class _First:
    """Tells the name of the first test that fails, or of the file that cannot be read."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take a test's outcome."""
        self._tell(report)

    def pytest_collectreport(self, report: Any) -> None:
        """Take a file's outcome."""
        self._tell(report)

    def _tell(self, report: Any) -> None:
        if report.failed:
            os.write(self._writer, f"{report.nodeid}\n".encode())
