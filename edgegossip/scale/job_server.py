"""The operator's side of `--on boards`: which cell is on, who takes part in it, and the records
that boards hand in.

Boards ask over HTTP/1.1 with JSON, with TLS 1.3 and certificates both ways unless the operator
goes without. A board's name is that of its certificate; without TLS it is what it says.
`JobServer` knows no sockets; `JobHttpServer` answers boards from it, and `BoardsBackend` runs
cells with both."""

from __future__ import annotations

import json
import math
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs

from typing_extensions import override

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.fleet.launch.identities import find_fleet
from edgegossip.fleet.launch.preflight import FLEET, check_exposure
from edgegossip.fleet.store import boards_of
from edgegossip.mesh import address as addresses
from edgegossip.node.spec import check_names, make_algorithm
from edgegossip.scale import summary
from edgegossip.scale.cells import Backend, Cell
from edgegossip.scale.follow import JOB, PATIENCE_S, RECORDS
from edgegossip.security.admission import Admission
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.identity import Identity
from edgegossip.sweep.campaign import Say
from edgegossip.telemetry.records import LogText, MetricsRecord, parse_record
from edgegossip.types import ConfigError, NodeId, RunError
from edgegossip.untrusted import request_target, whole_number

GONE_S = 30.0  # a board that has not asked for so long is not there: see follow.ASK_S and follow.RUNNING_ASK_S
MAX_RECORDS_BYTES = 64 << 20
_MAX_LINE_BYTES = 1 << 20
_MAX_HEAD_BYTES = _PIECE_BYTES = 1 << 16
IDLE_TIMEOUT_S = 60.0  # of a connection
ANNOUNCE_S = 5.0
JOIN_S = 600.0  # for boards that are not there
SILENT_S = 120.0  # a board that has not asked for so long while it should run is lost: see follow.RUNNING_ASK_S
LONGEST_S = 4 * 3600.0  # a cell


@dataclass(slots=True)
class CellRecords:
    """Holds what a board has handed in of a cell."""

    code: int  # exit status of its process
    reason: str
    lines: Iterable[str]  # of metrics.jsonl
    accuracy: float | None


class _Lines:
    """Is the lines that are left in a file, read one at a time and again each time; a longer one
    than a record is comes in pieces. The file is closed when nobody needs them any more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._begin = file, file.tell()
        weakref.finalize(self, file.close)

    def __iter__(self) -> Iterator[str]:
        self._file.seek(self._begin)
        return (line.decode(errors="replace") for line in iter(lambda: self._file.readline(_MAX_LINE_BYTES), b""))


@dataclass(frozen=True, slots=True)
class _BoardStatus:
    """When a board asked last, where its peers reach it, and whether it is still at a cell."""

    at_s: float
    where: str
    running: bool


@dataclass(slots=True)
class _Cell:
    key: str
    recipe_toml: str
    boards: tuple[NodeId, ...]
    peers: Mapping[NodeId, str]
    results: dict[NodeId, CellRecords] = field(default_factory=dict)


class JobServer:
    """Knows which cell is on and which boards are there. Thread-safe."""

    def __init__(self, names: Sequence[NodeId]) -> None:
        self.names = tuple(names)
        self._lock = threading.Condition()
        self._statuses: dict[NodeId, _BoardStatus] = {}
        self._cell: _Cell | None = None
        self._over = False

    def missing(self, names: Sequence[NodeId]) -> list[NodeId]:
        """Return those that have not asked of late, and those that have not ended an earlier
        cell."""
        gone = self.silent(names, GONE_S)
        with self._lock:
            return [name for name in names if name in gone or self._statuses[name].running]

    def silent(self, names: Sequence[NodeId], seconds: float) -> list[NodeId]:
        """Return those that have not asked for so long."""
        since_s = time.monotonic() - seconds
        with self._lock:
            return [name for name in names if name not in self._statuses or self._statuses[name].at_s <= since_s]

    def begin(self, key: str, recipe_toml: str, boards: Sequence[NodeId]) -> None:
        """Let these boards run this from now on."""
        with self._lock:
            self._cell = _Cell(key, recipe_toml, tuple(boards), {name: self._statuses[name].where for name in boards})

    def wait(self, timeout_s: float) -> Mapping[NodeId, CellRecords]:
        """Return what has been handed in of this cell, after so long or when somebody hands in."""
        with self._lock:
            self._lock.wait(timeout_s)
            return dict(self._cell.results) if self._cell is not None else {}

    def end(self) -> None:
        """Have no cell until the next one."""
        with self._lock:
            self._cell = None

    def finish(self) -> None:
        """Tell boards that ask from now on that it is over."""
        with self._lock:
            self._cell, self._over = None, True

    def job(self, name: NodeId, host: str, port: int, running: bool = False) -> dict[str, Any]:
        """Answer a board that listens on this port for its peers. `running`: it is at a cell,
        and asks whether that is still wanted. Raises PermissionError for a stranger."""
        if name not in self.names:
            raise PermissionError
        where = str(addresses.Address(host, port))
        with self._lock:
            self._statuses[name] = _BoardStatus(time.monotonic(), where, running)
            cell = self._cell
            if self._over:
                return {"state": "over"}
            if cell is None or name not in cell.boards or name in cell.results:
                return {"state": "wait"}
            peers = {other: at for other, at in cell.peers.items() if other != name}
            return {"state": "go", "cell": cell.key, "recipe": cell.recipe_toml, "peers": peers}

    def awaits(self, name: NodeId) -> bool:
        """Return whether this board is to hand in records now."""
        with self._lock:
            cell = self._cell
            return cell is not None and name in cell.boards and name not in cell.results

    def hand_in(self, name: NodeId, document: Mapping[str, Any]) -> None:
        """Take a board's records of a cell. Those of one that was given up meanwhile are not
        wanted any more.

        Raises ValueError for a document that makes no sense; the cell has then failed on this
        board, and nobody waits for another."""
        try:
            found = _records_of(document)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._take(
                name,
                str(document.get("cell")),
                CellRecords(2, f"handed in records that make no sense: {error}", [], None),
            )
            raise ValueError(str(error)) from None
        self._take(name, str(document["cell"]), found)

    def _take(self, name: NodeId, key: str, found: CellRecords) -> None:
        with self._lock:
            if self._cell is not None and self._cell.key == key and name in self._cell.boards:
                self._cell.results[name] = found
                self._lock.notify_all()


def _records_of(document: Mapping[str, Any]) -> CellRecords:
    """Raises ValueError, KeyError, TypeError, OverflowError."""
    reason, accuracy = str(document["reason"])[:500], document["accuracy"]
    share = None if accuracy is None else float(accuracy)
    if share is not None and not (math.isfinite(share) and 0.0 <= share <= 1.0):
        raise ValueError(f"an accuracy of {share}")
    return CellRecords(int(document["code"]), reason.encode(errors="replace").decode(), document["metrics"], share)


class JobHttpServer(MemberServer):
    """Answers boards on a thread of its own from `start` to `stop`."""

    def __init__(self, jobs: JobServer, listen: str, identity: Identity | None, say: Say = lambda line: None) -> None:
        """`identity`: of this machine as a coordinator; None: without TLS. Raises HostError,
        ConfigError, DataError."""
        where = addresses.parse(listen, "--listen", any_port=True)
        self.jobs = jobs
        super().__init__(
            where.host,
            where.port,
            _Handler,
            None if identity is None else Admission(identity),
            IDLE_TIMEOUT_S,
            lambda refusal: say(str(refusal)),
        )
        self._thread = threading.Thread(target=self.serve_forever, daemon=True, name="job-server")

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port; who is connected loses it."""
        self.shutdown()
        self.server_close()


class _Handler(MemberHandler):
    server: JobHttpServer

    @property
    def _certified(self) -> NodeId:
        return "" if self.caller is None else self.caller.subject.name

    def do_GET(self) -> None:
        url = request_target(self.path)
        asked = parse_qs(url.query) if url else {}
        name, port = self._certified or asked.get("name", [""])[0], whole_number(asked.get("port", [""])[0], 65_535)
        if url is None or url.path != JOB or not port:
            return self.refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            self._answer(self.server.jobs.job(name, str(self.client_address[0]), port, "running" in asked))
        except PermissionError:
            known = ", ".join(self.server.jobs.names)
            self.refuse(HTTPStatus.FORBIDDEN, f"{name or 'this board'} takes no part; the boards are {known}")

    def do_POST(self) -> None:
        length = whole_number(self.headers.get("content-length", ""), MAX_RECORDS_BYTES)
        if self.path != RECORDS or length is None:
            return self.refuse(HTTPStatus.BAD_REQUEST, "this is not how records are handed in")
        try:
            with ExitStack() as spools:
                spool = spools.enter_context(tempfile.TemporaryFile())
                while length and (piece := self.rfile.read(min(length, _PIECE_BYTES))):
                    length -= len(piece)
                    spool.write(piece)
                spool.seek(0)
                if not self._certified or self.server.jobs.awaits(self._certified):
                    self._hand_in(spool)
                    spools.pop_all()  # whoever has the lines has the file
            self._answer({"state": "taken"})
        except (ValueError, KeyError, RecursionError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, f"records that make no sense: {error}")

    def _hand_in(self, spool: IO[bytes]) -> None:
        """What ended, an object on the first line, then the lines of metrics.jsonl. Raises
        ValueError, KeyError, RecursionError."""
        document = json.loads(spool.readline(_MAX_HEAD_BYTES))
        if not isinstance(document, dict):
            raise ValueError("records begin with an object")
        self.server.jobs.hand_in(self._certified or str(document["name"]), {**document, "metrics": _Lines(spool)})

    def _answer(self, document: Mapping[str, Any]) -> None:
        self.answer(json.dumps(document).encode())

    @override
    def worded(self, why: str) -> bytes:
        return json.dumps({"error": why}).encode()


class BoardsBackend(Backend):
    """Runs cells on boards that follow this machine."""

    def __init__(self, names: str, listen: str, fleet: Path | None, insecure: bool, say: Say) -> None:
        """`names`: a,b,...; empty: all boards of the fleet. Raises ConfigError, HostError,
        DataError."""
        identity, known, _ = _fleet(fleet, insecure)
        self._names = _named(names) or known
        if not self._names:
            raise ConfigError(
                "--on boards: name the boards with --boards, or make a fleet with `edgegossip fleet init`"
            )
        check_names("--boards", self._names)
        if strangers := [name for name in self._names if known and name not in known]:
            raise ConfigError(
                f"--boards: {strangers[0]} is not a board of the fleet: add it with `edgegossip fleet add`"
            )
        check_exposure(addresses.parse(listen, "--listen", any_port=True).host, insecure or identity is not None)
        self._jobs, self._say = JobServer(self._names), say
        self._server = JobHttpServer(self._jobs, listen, None if identity is None else Identity.load(identity), say)
        self._server.start()
        how = "--identity IDENTITY" if identity is not None else "--insecure" if insecure else ""
        say(f"boards join with: edgegossip scale --follow {self._server.address} --name NAME {how}".rstrip())

    @property
    def address(self) -> str:
        """Return where boards come to, HOST:PORT."""
        return self._server.address

    @override
    def check(self, cell: Cell) -> None:
        if cell.scheme.server:
            raise ConfigError(
                f"{cell.scheme.name}: --on boards plays schemes without a coordinator; use `edgegossip coordinator` for it"
            )
        if cell.devices > len(self._names):
            raise ConfigError(
                f"--boards {cell.devices}: there are {len(self._names)} boards ({', '.join(self._names)})"
            )
        training.check(cell.recipe)
        make_algorithm(cell.recipe)

    @override
    def run(self, cell: Cell) -> dict[str, Any]:
        names = self._names[: cell.devices]
        self._await(names)
        self._jobs.begin(cell.key, recipes.to_toml(cell.recipe), names)
        try:
            found = self._gather(names)
        finally:
            self._jobs.end()
        for name in names:
            if found[name].code:
                raise RunError(
                    f"{name}: {found[name].reason or f'its process ended with exit code {found[name].code}'}"
                )
        try:
            records = [record for name in names for record in _records(name, found[name])]
            row, curve = summary.row_of_records(cell, records, names)
        except ValueError as error:
            raise RunError(str(error)) from None
        rates = [result.accuracy for result in found.values() if result.accuracy is not None]
        row["accuracy"] = sum(rates) / len(rates) if rates else None
        return {"row": row, "curve": curve, "marks": []}

    @override
    def close(self, over: bool) -> None:
        if over:
            self._jobs.finish()
            time.sleep(2.5)  # boards ask every second: they are to hear it
        self._server.stop()
        if not over:
            self._say(f"boards go on asking here for {PATIENCE_S / 60:.0f} minutes")

    def _await(self, names: Sequence[NodeId]) -> None:
        """Until all of them ask. Raises RunError."""
        until_s = time.monotonic() + JOIN_S
        while missing := self._jobs.missing(names):
            if time.monotonic() > until_s:
                raise RunError(f"{', '.join(missing)} did not come within {JOIN_S:.0f} s")
            self._say(f"waiting for {', '.join(missing)}")
            stop_s = time.monotonic() + ANNOUNCE_S
            while self._jobs.missing(names) and time.monotonic() < stop_s:
                time.sleep(0.2)

    def _gather(self, names: Sequence[NodeId]) -> Mapping[NodeId, CellRecords]:
        """What they hand in. Once the first has, the others get SILENT_S. Raises RunError, also
        when one is lost."""
        until_s = time.monotonic() + LONGEST_S
        hurried = False
        while True:
            found = self._jobs.wait(1.0)
            if missing := [name for name in names if name not in found]:
                if found and not hurried:
                    until_s, hurried = min(until_s, time.monotonic() + SILENT_S), True
                lost = self._jobs.silent(missing, SILENT_S)
                if lost or time.monotonic() > until_s:
                    failed = [f"{name}: {result.reason}" for name, result in found.items() if result.code]
                    why = f"lost {', '.join(lost)}: not heard of for {SILENT_S:.0f} s"
                    raise RunError((failed or [why if lost else f"{', '.join(missing)} handed in no records"])[0])
                continue
            return found


def members(names: str, fleet: Path | None, insecure: bool) -> dict[str, Any]:
    """Return what a cell's result depends on: `boards`, who takes part, and `fleet`, its id,
    empty without TLS. Raises ConfigError, HostError, DataError, UsageError."""
    _, known, fleet_id = _fleet(fleet, insecure)
    return {"boards": _named(names) or known, "fleet": fleet_id}


def _named(names: str) -> tuple[NodeId, ...]:
    return tuple(filter(None, names.split(",")))


def _fleet(fleet: Path | None, insecure: bool) -> tuple[Path | None, tuple[NodeId, ...], str]:
    """This machine's identity, the boards, and the id, of the fleet that is served."""
    identity = find_fleet(fleet, None, insecure)
    if identity is None:
        return None, (), ""
    return identity, boards_of(fleet or Path(FLEET)), Identity.load(identity).fleet


def _records(name: NodeId, handed_in: CellRecords) -> list[MetricsRecord]:
    """Its own lines only, whatever else it says."""
    parsed = (parse_record(line, node=name) for line in handed_in.lines)
    return [r for r in parsed if not isinstance(r, LogText) and isinstance(r, MetricsRecord) and r.node == name]
