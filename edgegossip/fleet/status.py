"""Who of a fleet has checked in, when, and with which release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgegossip.fleet import checkins, releases
from edgegossip.fleet.store import Fleet
from edgegossip.types import NodeId

LATE_S = 180.0  # boards check in every minute


@dataclass(frozen=True, slots=True)
class Seen:
    """One board; times in seconds by this machine's clock."""

    name: NodeId
    seen: str  # here, late, never, revoked
    ago_s: float | None
    address: str = ""
    version: str = ""
    release: int = 0
    wanted: int = 0
    state: str = ""
    status: str = ""
    trial: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def update(self) -> str:
        """What becomes of the release that it should have, in a few words."""
        if not self.wanted or (self.release == self.wanted and not self.trial):
            return ""
        if str(self.wanted) in self.failed:
            return f"release {self.wanted} failed: {self.failed[str(self.wanted)]}"
        return f"release {self.wanted} is {'tried' if self.trial else 'on its way'}"

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "update": self.update}


def status(fleet: Fleet, now_s: float) -> tuple[Seen, ...]:
    """Every board that the fleet ever had, once. Raises DataError."""
    wanted, found = releases.load(fleet.folder).wanted, []
    boards = dict.fromkeys(m.name for m in fleet.members if m.role == "board")
    valid = {m.name for m in fleet.members if m.role == "board" and m.state == "valid"}
    for name in boards:
        report = checkins.of(fleet.folder, name)
        ago_s = None if report is None else max(0.0, now_s - float(report.get("at_s", 0)))
        seen = "never" if ago_s is None else "here" if ago_s < LATE_S else "late"
        found.append(_seen(name, seen if name in valid else "revoked", ago_s, report or {}, wanted.get(name, 0)))
    return tuple(found)


def table(rows: Sequence[Seen], ago: Callable[[float], str]) -> list[str]:
    """Lines for people."""
    lines = [("board", "seen", "at", "version", "service", "what it does")]
    for row in rows:
        when = row.seen if row.ago_s is None else f"{row.seen}, {ago(row.ago_s)} ago"
        what = "; ".join(filter(None, (row.update, row.status)))
        lines.append((row.name, when, row.address, row.version, row.state, what))
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _seen(name: NodeId, seen: str, ago_s: float | None, report: dict[str, Any], wanted: int) -> Seen:
    texts = {k: str(report.get(k, "")) for k in ("address", "version", "state", "status")}
    failed = {str(k): str(v) for k, v in (report.get("failed") or {}).items()}
    release, trial = int(report.get("sequence", 0)), bool(report.get("trial"))
    return Seen(name, seen, ago_s, **texts, release=release, wanted=wanted, trial=trial, failed=failed)
