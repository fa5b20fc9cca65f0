"""The run folder: everything that is known of one run, append-only and readable after kill -9. See
docs/run-folder.md."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip.files import make_folder, write_atomic, write_json
from edgegossip.telemetry.records import (
    MAX_LINE_BYTES,
    EventRecord,
    LogText,
    MetricsRecord,
    Record,
    parse_record,
    to_line,
    whole_characters,
)
from edgegossip.telemetry.sinks import RecordSink, write_all
from edgegossip.types import DataError, HostError, NodeId

SUPERLINK_LOG = Path("logs") / "superlink.log"  # in the folder of a coordinator
HOLDS = "holds"  # the event of a board with data of its own: `examples`, and JSON of `classes` and `counts`
WARN_S = 600.0  # between two words on a disk that takes nothing
_SAME_SECOND = 1000  # folders of one name that may start in the same second
_CLAIMS = 200  # tries to lock a folder that somebody looks at just then
# What a run writes is far below. Folders come from boards, and from other people.
MAX_DOCUMENT_BYTES = 32 << 20
MAX_VALUES = 1_000_000  # in one; each may take a hundred bytes of memory


def _to_stderr(text: str) -> None:
    print(f"!! {text}", file=sys.stderr)


def _create(parent: Path, name: str, now: datetime) -> Path:
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:64] or "run"
    stem = f"{now:%Y%m%d-%H%M%S}-{slug}"
    for attempt in range(1, _SAME_SECOND):
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            make_folder(path)
            return path
        except FileExistsError:
            if not parent.is_dir():
                raise HostError(f"cannot create the run folder {path}: {parent} is not a folder") from None
        except OSError as error:
            raise HostError(f"cannot create the run folder {path}: {error.strerror}") from None
    raise HostError(f"cannot create the run folder {parent / stem}: {_SAME_SECOND} of that name exist")


def _open_lines(path: Path) -> int:
    """Open for appending; a torn last line of an earlier process is ended first, so that it spoils
    no other."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        write_all(fd, b"\n")
    return fd


def _claim(fd: int) -> None:
    """Let others see that somebody writes there, for as long as the descriptor is open, kill -9 or
    not."""
    for _ in range(_CLAIMS):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:  # by `is_written`, just for this moment
            time.sleep(0.001)
        except OSError:  # a file system without locks
            return


def is_written(path: Path) -> bool:
    """Tell whether a process of this machine has the run folder open to write records. True where
    the system does not tell."""
    try:
        fd = os.open(path / "metrics.jsonl", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class RunFolder(RecordSink):
    """Keeps all records. Each is one write to the kernel before `write` returns: kill -9 loses none
    of them, power loss those that the kernel had not put on the disk yet. A disk that takes no
    more, once the folder is there, costs records and not the run: `warn` is told, at most every
    WARN_S, and an event says how many are missing when it takes them again. A disk that hangs holds
    whoever writes: in a Tee that is a thread of its own."""

    what = "the disk of the run folder"

    def __init__(
        self,
        path: Path,
        start_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = _to_stderr,
    ) -> None:
        """Open an existing folder to go on with; `RunFolder.create` makes a new one."""
        super().__init__(start_s, clock)
        self.path, self._warn = path.absolute(), warn  # a user's code may change the working directory
        self._lost, self._warned_s = 0, -math.inf  # records, and when that was said
        self._last_lost: Record | None = None
        self._holdings: dict[NodeId, dict[str, int]] = {}  # board -> class -> examples, as it says
        self._lock = threading.Lock()
        self._closed = False
        try:
            self.checkpoint_dir.mkdir(exist_ok=True)
            self._metrics_fd = _open_lines(path / "metrics.jsonl")
            self._events_fd = _open_lines(path / "events.jsonl")
            _claim(self._metrics_fd)
        except OSError as error:
            raise HostError(f"cannot write to the run folder {path}: {error.strerror}") from None

    @classmethod
    def create(
        cls,
        parent: Path,
        name: str,
        recipe_toml: str,
        env: Mapping[str, Any],
        *,
        now: datetime | None = None,
        start_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> RunFolder:
        """Make a new folder `<parent>/<YYYYmmdd-HHMMSS>-<name>` in local time, with recipe.toml and
        env.json in it."""
        path = _create(parent, name, datetime.now() if now is None else now)
        write_atomic(path / "recipe.toml", recipe_toml.encode())
        write_json(path / "env.json", dict(env))
        return cls(path, start_s, clock)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Go on with a run that ended early: records are appended, their times go on. Raises
        DataError when `path` is no run folder."""
        data = read_run(path)
        last_s = max((r.t_s for records in (data.metrics(), data.events()) for r in records), default=0.0)
        return cls(path, time.monotonic() - last_s)

    @property
    def checkpoint_dir(self) -> Path:
        """Where boards keep checkpoints and final models."""
        return self.path / "checkpoint"

    @override
    def write(self, record: Record) -> None:
        line = to_line(record)
        with self._lock:
            if self._closed:
                raise HostError(f"the run folder {self.path} is closed")
            try:
                if self._lost:
                    self._say_what_is_missing(record)
                write_all(self._metrics_fd if isinstance(record, MetricsRecord) else self._events_fd, line)
                if isinstance(record, EventRecord) and record.name == HOLDS:
                    self._note_holdings(record)
            except OSError as error:
                self._lose(record, error)

    def _note_holdings(self, record: EventRecord) -> None:
        """Keep partition.json at what boards with data of their own say that they hold. Raises
        OSError."""
        if (counts := _holdings(record.fields)) is None:
            return
        self._holdings[record.node] = counts
        classes = list(dict.fromkeys(name for held in self._holdings.values() for name in held))
        nodes = sorted(self._holdings)
        rows = [[self._holdings[node].get(name, 0) for name in classes] for node in nodes]
        self.write_partition(nodes, classes, rows)

    def _lose(self, record: Record, error: OSError) -> None:
        self._lost, self._last_lost = self._lost + 1, record
        if self._clock() - self._warned_s >= WARN_S:
            self._warned_s = self._clock()
            self._warn(
                f"cannot write to the run folder {self.path}: {error.strerror}; the run goes on, and its records are missing "
                "there until the disk takes them again"
            )

    def _say_what_is_missing(self, before: Record) -> None:
        """Raises OSError while the disk takes nothing yet. A newline first: the last line may be
        torn. `before` may have waited in a queue: what is missing is older than that."""
        for fd in (self._metrics_fd, self._events_fd):
            write_all(fd, b"\n")
        text = f"{self._lost} records are missing here: the disk took none for a while"
        event = EventRecord(before.node, before.t_s, "records-lost", text, {"records": self._lost})
        write_all(self._events_fd, to_line(event))
        self._lost = 0

    def write_run(self, run_id: bytes, members: Sequence[NodeId], instance: str = "") -> None:
        """Write run.json: what boards that are started again must be told to be let in; `instance`
        tells runs of the same recipe and members apart."""
        document = {"run_id": run_id.hex(), "members": list(members), **({"instance": instance} if instance else {})}
        write_json(self.path / "run.json", document)

    def write_topology(self, document: Mapping[str, Any]) -> None:
        """Write topology.json, see gossip.base.Topology.to_json."""
        write_json(self.path / "topology.json", dict(document))

    def write_partition(self, nodes: Sequence[NodeId], classes: Sequence[str], counts: Any) -> None:
        """Write partition.json: training examples of each class at each board, `counts` int[nodes,
        classes]."""
        rows = [[int(count) for count in row] for row in counts]
        write_json(self.path / "partition.json", {"nodes": list(nodes), "classes": list(classes), "counts": rows})

    def write_summary(self, document: Mapping[str, Any]) -> None:
        """Write summary.json, see summary.summarise."""
        write_json(self.path / "summary.json", dict(document))

    @override
    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._lost and self._last_lost is not None:
                with suppress(OSError):
                    self._say_what_is_missing(self._last_lost)
            for fd in (self._metrics_fd, self._events_fd):
                with suppress(OSError):  # said already, or of a disk that is gone
                    os.fsync(fd)
                os.close(fd)


@dataclass(frozen=True, slots=True)
class RunData:
    """Is a run folder on disk, of a run that ended, goes on, or was killed. Documents that are not
    there are None; records are read anew, one after the other, by each call."""

    path: Path
    recipe_toml: str | None
    env: Mapping[str, Any] | None
    topology: Mapping[str, Any] | None
    partition: Mapping[str, Any] | None
    summary: Mapping[str, Any] | None
    run: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def metrics(self) -> Iterator[MetricsRecord]:
        """Read the metrics records, one at a time."""
        return (r for r in _records(self.path / "metrics.jsonl") if isinstance(r, MetricsRecord))

    def events(self) -> Iterator[EventRecord]:
        """Read the event records, one at a time."""
        return (r for r in _records(self.path / "events.jsonl") if isinstance(r, EventRecord))

    def unreadable_lines(self) -> int:
        """Count the lines of both files that hold no record: torn by power loss, a full disk, or an
        editor."""
        files = ("metrics.jsonl", "events.jsonl")
        return sum(isinstance(r, LogText) for name in files for r in _records(self.path / name))


def read_run(path: Path) -> RunData:
    """Read a run folder. A torn line is passed over; a missing file is None. Raises DataError when
    `path` is no run folder or one of its documents is not what it should be."""
    path = Path(path)
    if not (path / "metrics.jsonl").is_file() and not (path / "recipe.toml").is_file():
        if not path.exists():
            raise DataError(f"there is no folder {path}; `edgegossip runs` lists your runs")
        raise DataError(f"{path} is not a run folder: it has neither metrics.jsonl nor recipe.toml")
    recipe = path / "recipe.toml"
    return RunData(
        path=path.resolve(),
        recipe_toml=recipe.read_text(errors="replace") if recipe.is_file() else None,
        env=_document(path / "env.json"),
        topology=_document(path / "topology.json", _is_topology),
        partition=_document(path / "partition.json", _is_partition),
        summary=_document(path / "summary.json", _is_summary),
        run=_document(path / "run.json"),
    )


def _records(path: Path) -> Iterator[Record | LogText]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if line.strip():
                yield parse_record(line)  # a longer one is in pieces, of which none is a record


def _document(path: Path, fits: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise DataError(f"{path} has more than {MAX_DOCUMENT_BYTES >> 20} MiB; delete it to read the rest of the run")
    data = path.read_bytes()
    if data.count(b",") > MAX_VALUES:
        raise DataError(f"{path} has more than {MAX_VALUES:,} values; delete it to read the rest of the run")
    try:
        document = whole_characters(json.loads(data))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(f"{path} does not hold a JSON object; delete it to read the rest of the run")
    if not fits(document):
        raise DataError(f"{path} does not hold what a run writes there; delete it to read the rest of the run")
    return document


def _holdings(fields: Mapping[str, Any]) -> dict[str, int] | None:
    """Examples of each class in a record of HOLDS; None where the record is not one that a board
    writes."""
    examples = fields.get("examples")
    try:
        classes, counts = (json.loads(str(fields[key])) for key in ("classes", "counts"))
    except (KeyError, ValueError, RecursionError):
        return None
    whole = isinstance(counts, list) and all(type(n) is int and n >= 0 for n in counts)
    if not whole or not _are_words(classes, len(counts)) or type(examples) is not int:
        return None
    return dict(zip(classes, counts, strict=True)) or {"examples": examples}


def _are_words(value: Any, length: int | None = None) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value) and length in (None, len(value))


def _is_topology(document: Mapping[str, Any]) -> bool:
    rounds = document.get("rounds", [])
    if not _are_words(document.get("members", [])) or not isinstance(rounds, list):
        return False
    edges = [one.get("edges", []) if isinstance(one, dict) else None for one in rounds]
    return all(isinstance(of_round, list) and all(_are_words(edge, 2) for edge in of_round) for of_round in edges)


def _is_partition(document: Mapping[str, Any]) -> bool:
    nodes, classes, counts = (document.get(key) for key in ("nodes", "classes", "counts"))
    if not (_are_words(nodes) and _are_words(classes) and isinstance(counts, list) and len(counts) == len(nodes or ())):
        return False
    size = len(classes or ())
    return all(isinstance(row, list) and len(row) == size and all(type(n) is int for n in row) for row in counts)


def _is_summary(document: Mapping[str, Any]) -> bool:
    """Whether it has what a list of runs says."""
    score, means, sent = (document.get(key) for key in ("score", "scores", "sent_bytes"))
    verdict, failed, unfinished = (document.get(key) for key in ("verdict", "failed_nodes", "unfinished_nodes"))
    means = {"None": {"mean": None}} if score is None else means
    reached = means.get(str(score)) if isinstance(means, dict) else None
    if not (isinstance(sent, dict) and isinstance(reached, dict) and {"run", "nodes", "rounds"} <= document.keys()):
        return False
    if not (isinstance(verdict, list) and isinstance(failed, list) and isinstance(unfinished or [], list)):
        return False
    found = [one.get("kind") if isinstance(one, dict) and "ruin" in one else None for one in verdict]
    numbers = [document["nodes"], document["rounds"], document.get("rounds_asked"), reached.get("mean", "?")]
    numbers += [sent.get("payload", "?")]
    return _are_words(found) and all(type(n or 0) in (int, float) and abs(n or 0) < 2**63 for n in numbers)


_PIECE_BYTES = 1 << 20


class Follower:
    """Reads metrics.jsonl and events.jsonl from where it stopped the last time. A last line without
    its end waits until it has one."""

    def __init__(self, folder: Path) -> None:
        self._files = [_Tail(folder / "events.jsonl"), _Tail(folder / "metrics.jsonl")]

    def new(self) -> Iterator[Record]:
        """Yield the records that came since the last call; events first, because they say which
        boards there are. Raises OSError."""
        for file in self._files:
            for line in file.lines():
                record = parse_record(line)
                if not isinstance(record, LogText):
                    yield record

    def shrunk(self) -> bool:
        """Tell whether a file is shorter than what was read of it: another run is written in its
        place. Raises OSError."""
        return any(file.size() < file.at for file in self._files)


class _Tail:
    def __init__(self, path: Path) -> None:
        self._path, self._rest = path, b""
        self.at = 0  # bytes read

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def lines(self) -> Iterator[bytes]:
        if self.size() <= self.at:
            return
        with self._path.open("rb") as file:
            file.seek(self.at)
            while piece := file.read(_PIECE_BYTES):
                self.at += len(piece)
                *whole, self._rest = (self._rest + piece).split(b"\n")
                yield from whole
