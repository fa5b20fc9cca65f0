"""Check-ins of boards: `edgegossip fleet serve` answers them on the machine that has the fleet's
folder, and `fleet status` shows what boards last said (checkins/NAME.json). They get the time, the
newest revocation list, the operator's order and their release (edgegossip/update/client.py).

Only boards of the fleet reach it (security/https.py). A report is bounded and kept as plain
values."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from edgegossip.files import write_file
from edgegossip.fleet import orders, releases
from edgegossip.fleet.store import CHECKINS, Fleet, coordinator_of
from edgegossip.mesh import address as addresses
from edgegossip.security.admission import Admission
from edgegossip.security.https import MemberHandler, MemberServer
from edgegossip.security.identity import CRL, Identity, Revocations
from edgegossip.security.limits import RateLimitedLog
from edgegossip.types import DataError, EdgegossipError, NodeId
from edgegossip.untrusted import printable, request_target, whole_number
from edgegossip.update.client import CHECK_IN, MAX_ANSWER_BYTES, RELEASE, REVOCATIONS

SILENT_S = 30.0
LATE_S = 180.0  # boards check in every minute
APART_S = 10.0  # a report may be as long on its way
MAX_PART_BYTES = 8 << 20
_TEXTS = ("version", "release", "packages", "state", "status", "system", "kernel")
_NUMBERS = ("number", "sequence", "restarts", "uptime_s", "upgraded_s")

Say = Callable[[str], None]


class CheckIns:
    """Answers boards that check in, without sockets. Thread-safe.

    Raises EdgegossipError, OSError when the fleet's folder cannot be used."""

    def __init__(self, folder: Path, identity: Identity, say: Say) -> None:
        present = Revocations.load(folder / CRL, identity.authority)
        self.admission = Admission(replace(identity, revocations=present))
        self.folder, self.say = folder, say
        self._lock, self._seen, self._lines = threading.Lock(), dict[NodeId, str](), RateLimitedLog()
        (folder / CHECKINS).mkdir(mode=0o700, exist_ok=True)

    def check_in(self, name: NodeId, address: str, report: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what a board says; return the answer. Raises EdgegossipError, OSError."""
        now_s = time.time()
        kept: dict[str, Any] = {"name": name, "address": address, "at_s": round(now_s, 1)}
        kept |= {k: printable(str(report.get(k, ""))) for k in _TEXTS}
        kept |= {k: _number(report.get(k)) for k in _NUMBERS}
        clock_s = _number(report.get("clock_s"))
        kept["ahead_s"] = round(clock_s - now_s, 1) if clock_s else 0.0
        failed = report.get("failed")
        kept["failed"] = (
            {printable(str(k), 20): printable(str(v)) for k, v in failed.items()} if isinstance(failed, dict) else {}
        )
        kept |= {k: report.get(k) is True for k in ("trial", "restart_due")}
        kept["pending"] = None if report.get("pending") is None else _number(report["pending"])
        write_file(self.folder / CHECKINS / f"{name}.json", (json.dumps(kept) + "\n").encode(), 0o600)
        news = f"{name} checks in from {address}: version {kept['version']}, {kept['state']}"
        with self._lock:
            is_new, self._seen[name] = self._seen.get(name) != news, news
        if is_new:
            self._tell(name, news)
        answer = {"time_s": time.time(), "crl_number": self.admission.identity.revocations.number}
        return answer | self._order(name, report.get("number"))

    def _order(self, name: NodeId, number: object) -> dict[str, Any]:
        """Return its order, where the operator has signed one since its last word."""
        if not isinstance(number, int):
            return {}
        try:
            order = orders.newer(self.folder, name, number, self.admission.identity)
        except DataError as error:
            self._tell(name, str(error))
            return {}
        return {} if order is None else {"order": order}

    def _tell(self, name: NodeId, text: str) -> None:
        """Say what a board brought about, unless it has brought about too many lines."""
        with self._lock:
            is_worth = self._lines.worth(text, time.monotonic(), name)
        if is_worth:
            self.say(text)

    def part(self, name: NodeId, sequence: int, at: int, count: int) -> bytes:
        """Read a part of the bundle that this board should have. Raises PermissionError for another
        one, OSError."""
        if releases.load(self.folder).wanted.get(name) != sequence:
            raise PermissionError
        with open(releases.bundle_file(self.folder, sequence), "rb") as file:
            file.seek(at)
            return file.read(count)


class Server(MemberServer):
    """Listens for boards that check in, with `serve_forever` and `shutdown` as its parent."""

    def __init__(self, check_ins: CheckIns, listen: str) -> None:
        where = addresses.parse(listen, "--listen", any_port=True)
        self.check_ins = check_ins
        super().__init__(
            where.host, where.port, _Handler, check_ins.admission, SILENT_S, lambda refusal: check_ins.say(str(refusal))
        )


class _Handler(MemberHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    @property
    def _name(self) -> NodeId:
        assert self.caller is not None  # nobody comes here without a certificate
        return self.caller.subject.name

    def do_POST(self) -> None:
        length = whole_number(self.headers.get("content-length", ""), MAX_ANSWER_BYTES)
        if self.path != CHECK_IN or length is None:
            return self.refuse(HTTPStatus.BAD_REQUEST, "this is not how a board checks in")
        try:
            report = json.loads(self.rfile.read(length))
            if not isinstance(report, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return self.refuse(HTTPStatus.BAD_REQUEST, "a report that makes no sense")
        try:
            answer = self.server.check_ins.check_in(self._name, str(self.client_address[0]), report)
        except (EdgegossipError, OSError) as error:
            return self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the fleet's folder: {error}")
        self.answer(json.dumps(answer).encode())

    def do_GET(self) -> None:
        url = request_target(self.path)
        if url is None:
            return self.refuse(HTTPStatus.BAD_REQUEST, "this is no address")
        if url.path == REVOCATIONS:
            return self.answer(self.server.check_ins.admission.identity.revocations.present.der)
        asked = parse_qs(url.query)
        number = url.path.removeprefix(f"{RELEASE}/")
        at, count = (asked.get(k, [""])[0] for k in ("from", "count"))
        if (
            not all(t.isascii() and t.isdigit() and len(t) < 16 for t in (number, at, count))
            or int(count) > MAX_PART_BYTES
        ):
            return self.refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            self.answer(self.server.check_ins.part(self._name, int(number), int(at), int(count)))
        except PermissionError:
            self.refuse(HTTPStatus.FORBIDDEN, f"release {number} is not for {self._name}")
        except (EdgegossipError, OSError) as error:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the fleet's folder: {error}")


def open_check_ins(folder: Path, identity: Path, say: Say) -> CheckIns:
    """Answer with the identity of a coordinator of this fleet. Raises EdgegossipError."""
    return CheckIns(folder, Identity.load(identity), say)


def serve(folder: Path, listen: str, identity: Path | None, say: Say) -> None:
    """Answer boards at `listen` (HOST:PORT) until KeyboardInterrupt, with the identity of a
    coordinator; None: the fleet's own. Raises EdgegossipError."""
    check_ins = open_check_ins(folder, identity or coordinator_of(folder), say)
    with Server(check_ins, listen) as server:
        say(f"boards of fleet {check_ins.admission.identity.fleet} check in at {server.address}; Ctrl-C ends this")
        server.serve_forever()


def _number(value: object) -> float | int:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else 0


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """Holds what is known of one board; times in seconds by this machine's clock."""

    name: NodeId
    seen: str  # here, late, never, revoked
    ago_s: float | None
    address: str = ""
    version: str = ""
    release: int = 0
    wanted: int = 0
    state: str = ""
    status: str = ""
    clock: str = ""  # how far it was off when the board checked in
    trial: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    system: str = ""  # such as Debian 12.11
    kernel: str = ""
    pending: int | None = None  # security updates that wait; None: it does not know
    upgraded_ago_s: float | None = None  # since apt last looked and installed what there was; None: never
    restart_due: bool = False  # to begin with what was installed
    order: str = ""  # what the operator has to know of its order

    @property
    def update(self) -> str:
        """What becomes of the release that it should have, in a few words."""
        if not self.wanted or (self.release == self.wanted and not self.trial):
            return ""
        if str(self.wanted) in self.failed:
            return f"release {self.wanted} failed: {self.failed[str(self.wanted)]}"
        return f"release {self.wanted} is {'tried' if self.trial else 'on its way'}"

    def document(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {**asdict(self), "update": self.update}


def status(fleet: Fleet, now_s: float) -> tuple[BoardStatus, ...]:
    """Return a row for every board that the fleet ever had, once. Raises DataError."""
    wanted, found = releases.load(fleet.folder).wanted, []
    boards = dict.fromkeys(m.name for m in fleet.members if m.role == "board")
    valid = {m.name for m in fleet.members if m.role == "board" and m.state == "valid"}
    for name in boards:
        report = fleet.last_check_in(name)
        ago_s = None if report is None else max(0.0, now_s - float(report.get("at_s", 0)))
        seen = "never" if ago_s is None else "here" if ago_s < LATE_S else "late"
        row = _seen(name, seen if name in valid else "revoked", ago_s, report or {}, wanted.get(name, 0), now_s)
        found.append(replace(row, order=_news(fleet, name, report or {}, now_s)) if name in valid else row)
    return tuple(found)


def _news(fleet: Fleet, name: NodeId, report: Mapping[str, Any], now_s: float) -> str:
    """Say what is to be done or waited for of a board's order, where anything is."""
    try:
        order = orders.last(fleet.folder, name)
    except DataError as error:
        return str(error)
    if order is None:
        return ""
    if order.until_s - now_s < 30 * 86_400:
        return f"its order counts until {datetime.fromtimestamp(order.until_s, UTC).date()}: edgegossip fleet renew"
    return f"order {order.number} is on its way" if int(report.get("number", 0)) < order.number else ""


def table(rows: Sequence[BoardStatus], ago: Callable[[float], str]) -> list[str]:
    """Lay rows out as lines for people."""
    lines = [("board", "seen", "at", "version", "service", "system", "what it does")]
    for row in rows:
        when = row.seen if row.ago_s is None else f"{row.seen}, {ago(row.ago_s)} ago"
        what = "; ".join(filter(None, (row.update, row.order, row.clock, row.status)))
        lines.append((row.name, when, row.address, row.version, row.state, _system(row, ago), what))
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _system(row: BoardStatus, ago: Callable[[float], str]) -> str:
    """Say what a board runs beside us, and how its security updates stand."""
    if not row.system:
        return ""
    updates = "no word of security updates" if row.pending is None else f"{row.pending} security updates wait"
    last = "never upgraded" if row.upgraded_ago_s is None else f"upgraded {ago(row.upgraded_ago_s)} ago"
    due = "restart due" if row.restart_due else ""
    return ", ".join(filter(None, (row.system, row.kernel, updates, last, due)))


def _seen(
    name: NodeId, seen: str, ago_s: float | None, report: dict[str, Any], wanted: int, now_s: float
) -> BoardStatus:
    texts = {k: str(report.get(k, "")) for k in ("address", "version", "state", "status", "system", "kernel")}
    failed = {str(k): str(v) for k, v in (report.get("failed") or {}).items()}
    release, trial = int(report.get("sequence", 0)), bool(report.get("trial"))
    pending, upgraded_s = report.get("pending"), float(report.get("upgraded_s", 0))
    ahead_s, clock = float(report.get("ahead_s", 0)), ""
    if abs(ahead_s) > APART_S:
        clock = f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    return BoardStatus(
        name, seen, ago_s, **texts, clock=clock, release=release, wanted=wanted, trial=trial, failed=failed,
        pending=None if pending is None else int(pending),
        upgraded_ago_s=max(0.0, now_s - upgraded_s) if upgraded_s else None,
        restart_due=bool(report.get("restart_due")),
    )  # fmt: skip
