"""The operator's side: which cell is on, who takes part in it, and the records that boards hand in.

Boards ask over HTTP/1.1 with JSON, with TLS 1.3 and certificates both ways unless the operator goes
without. A board's name is that of its certificate; without TLS it is what it says. `Desk` knows no
sockets.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from edgegossip.mesh import address as addresses
from edgegossip.security.admission import Admission
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.identity import Identity
from edgegossip.types import NodeId
from edgegossip.untrusted import request_target, whole_number

JOB, RECORDS = "/v1/scale/job", "/v1/scale/records"
GONE_S = 30.0  # a board that has not asked for so long is not there: see follow.ASK_S and follow.RUNNING_ASK_S
MAX_RECORDS_BYTES = 64 << 20
SILENT_S = 60.0


@dataclass(slots=True)
class HandedIn:
    """What a board has handed in of a cell."""

    code: int  # exit status of its process
    reason: str
    lines: list[str]  # of metrics.jsonl
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class _Seen:
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
    results: dict[NodeId, HandedIn] = field(default_factory=dict)


class Desk:
    """Thread-safe."""

    def __init__(self, names: Sequence[NodeId]) -> None:
        self.names = tuple(names)
        self._lock = threading.Condition()
        self._seen: dict[NodeId, _Seen] = {}
        self._cell: _Cell | None = None
        self._over = False

    def missing(self, names: Sequence[NodeId]) -> list[NodeId]:
        """Those that have not asked of late, and those that have not ended an earlier cell."""
        gone = self.silent(names, GONE_S)
        with self._lock:
            return [name for name in names if name in gone or self._seen[name].running]

    def silent(self, names: Sequence[NodeId], seconds: float) -> list[NodeId]:
        """Those that have not asked for so long."""
        since_s = time.monotonic() - seconds
        with self._lock:
            return [name for name in names if name not in self._seen or self._seen[name].at_s <= since_s]

    def begin(self, key: str, recipe_toml: str, boards: Sequence[NodeId]) -> None:
        """From now on this is what these boards are to run."""
        with self._lock:
            self._cell = _Cell(key, recipe_toml, tuple(boards), {name: self._seen[name].where for name in boards})

    def wait(self, timeout_s: float) -> Mapping[NodeId, HandedIn]:
        """What has been handed in of this cell; returns early when somebody hands in."""
        with self._lock:
            self._lock.wait(timeout_s)
            return dict(self._cell.results) if self._cell is not None else {}

    def end(self) -> None:
        """No cell until the next one."""
        with self._lock:
            self._cell = None

    def finish(self) -> None:
        """Boards that ask from now on are told that it is over."""
        with self._lock:
            self._cell, self._over = None, True

    def job(self, name: NodeId, host: str, port: int, running: bool = False) -> dict[str, Any]:
        """The answer to a board that listens on this port for its peers. `running`: it is at a
        cell, and asks whether that is still wanted. Raises PermissionError for a stranger."""
        if name not in self.names:
            raise PermissionError
        where = str(addresses.Address(host, port))
        with self._lock:
            self._seen[name] = _Seen(time.monotonic(), where, running)
            cell = self._cell
            if self._over:
                return {"state": "over"}
            if cell is None or name not in cell.boards or name in cell.results:
                return {"state": "wait"}
            peers = {other: at for other, at in cell.peers.items() if other != name}
            return {"state": "go", "cell": cell.key, "recipe": cell.recipe_toml, "peers": peers}

    def hand_in(self, name: NodeId, document: Mapping[str, Any]) -> None:
        """A board is done with a cell. One that was given up meanwhile is not wanted any more.
        Raises ValueError for a document that makes no sense; the cell has then failed on this
        board, and nobody waits for another."""
        try:
            found = _handed_in(document)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._take(
                name, str(document.get("cell")), HandedIn(2, f"handed in records that make no sense: {error}", [], None)
            )
            raise ValueError(str(error)) from None
        self._take(name, str(document["cell"]), found)

    def _take(self, name: NodeId, key: str, found: HandedIn) -> None:
        with self._lock:
            if self._cell is not None and self._cell.key == key and name in self._cell.boards:
                self._cell.results[name] = found
                self._lock.notify_all()


def _handed_in(document: Mapping[str, Any]) -> HandedIn:
    """Raises ValueError, KeyError, TypeError, OverflowError."""
    reason, lines, accuracy = str(document["reason"])[:500], document["metrics"], document["accuracy"]
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("metrics are lines")
    for line in lines:
        line.encode()  # JSON can say half a character, which no file can hold
    share = None if accuracy is None else float(accuracy)
    if share is not None and not (math.isfinite(share) and 0.0 <= share <= 1.0):
        raise ValueError(f"an accuracy of {share}")
    return HandedIn(int(document["code"]), reason.encode(errors="replace").decode(), lines, share)


class Server(MemberServer):
    """Listens on a thread of its own from `start` to `stop`."""

    def __init__(self, desk: Desk, listen: str, identity: Identity | None) -> None:
        """`identity`: of this machine as a coordinator; None: without TLS. Raises HostError,
        ConfigError, DataError."""
        where = addresses.parse(listen, "--listen", any_port=True)
        self.desk = desk
        super().__init__(where.host, where.port, _Handler, None if identity is None else Admission(identity), SILENT_S)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True, name="desk")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(MemberHandler):
    server: Server

    @property
    def _certified(self) -> NodeId:
        return "" if self.caller is None else self.caller.subject.name

    def do_GET(self) -> None:
        url = request_target(self.path)
        asked = parse_qs(url.query) if url else {}
        name, port = self._certified or asked.get("name", [""])[0], whole_number(asked.get("port", [""])[0], 65_535)
        if url is None or url.path != JOB or not port:
            return self._answer({"error": "there is nothing here"}, HTTPStatus.NOT_FOUND)
        try:
            self._answer(self.server.desk.job(name, str(self.client_address[0]), port, "running" in asked))
        except PermissionError:
            known = ", ".join(self.server.desk.names)
            self._answer(
                {"error": f"{name or 'this board'} takes no part; the boards are {known}"}, HTTPStatus.FORBIDDEN
            )

    def do_POST(self) -> None:
        length = whole_number(self.headers.get("content-length", ""), MAX_RECORDS_BYTES)
        if self.path != RECORDS or length is None:
            return self._answer({"error": "this is not how records are handed in"}, HTTPStatus.BAD_REQUEST)
        try:
            document = json.loads(self.rfile.read(length))
            if not isinstance(document, dict):
                raise ValueError("records are an object")
            self.server.desk.hand_in(self._certified or str(document["name"]), document)
            self._answer({"state": "taken"})
        except (ValueError, KeyError, RecursionError) as error:
            self._answer({"error": f"records that make no sense: {error}"}, HTTPStatus.BAD_REQUEST)

    def _answer(self, document: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        with suppress(OSError):
            self.answer(json.dumps(document).encode(), status)

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer({"error": why}, status)
