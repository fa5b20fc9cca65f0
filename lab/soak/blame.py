"""Whether what boards say of each other is true: events, causes and verdicts held against who was
really away, and when. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgegossip.telemetry.clocks import COORDINATOR, Clocks
from edgegossip.telemetry.evidence import Evidence
from edgegossip.telemetry.records import EventRecord
from edgegossip.telemetry.run_folder import RunData
from edgegossip.telemetry.summary import plan_of, summarise
from edgegossip.telemetry.verdict import STOOD_STILL_S, findings
from edgegossip.types import NodeId, Round

CLOCKS_S = 0.5  # between two processes
LATE_S = 10.0  # a death is named within so long; a board that is back may be told of for so long, too
# What accuses nobody, whomever it names.
NEWS = frozenset(
    {"adopted", "compared", "entered", "holds", "joined", "listening", "loading", "member-here", "peer-up", "started"}
)
_OWN = re.compile(r"(named dead|revoked)|did not run|stood still")  # said of the board that says it


@dataclass(frozen=True, slots=True)
class Absence:
    """Says from when until when a board was not at work, by the time of day."""

    board: NodeId
    kind: str  # a signal's name; "" before it was there at all
    since_s: float
    until_s: float = math.inf

    def covers(self, at_s: float, since_s: float = math.inf) -> bool:
        """Whether it was so at that time, or not long ago, or at some time since `since_s`."""
        return self.since_s - CLOCKS_S <= at_s and min(at_s, since_s) <= self.until_s + LATE_S


def _clocks(data: RunData) -> Clocks:
    clocks = Clocks()
    for event in data.events():
        clocks.take(event)
    return clocks


def timed(data: RunData) -> list[tuple[float, EventRecord]]:
    """The events of a folder, each with its time of day."""
    clocks = _clocks(data)
    return [(clocks.began_unix_s + clocks.at(event), event) for event in data.events()]


def played(data: RunData, name: NodeId) -> list[tuple[float, Round]]:
    """When a node ended which rounds, by the time of day."""
    clocks = _clocks(data)
    return [(clocks.began_unix_s + clocks.at(record), record.step) for record in data.metrics() if record.node == name]


def until_it_trained(absence: Absence, began_s: Iterable[float]) -> Absence:
    """A process that was started loads first: a board is back when it says that it trains."""
    if absence.kind not in ("SIGKILL", "SIGTERM"):
        return absence
    return replace(absence, until_s=min((s for s in began_s if s > absence.until_s), default=math.inf))


def until_level(absence: Absence, rounds: Mapping[NodeId, Sequence[tuple[float, Round]]]) -> Absence:
    """A board that trains again is waited for until it has played or skipped what the others did
    meanwhile: it is level in the round in which the first of them was when it came. `rounds`: when
    each board ended which."""
    if not absence.kind:
        return absence
    others = (ended for name, ended in rounds.items() if name != absence.board)
    first = max((round for ended in others for s, round in ended if s <= absence.until_s), default=-1)
    level = (s for s, round in rounds[absence.board] if s > absence.until_s and round >= first)
    return replace(absence, until_s=min(level, default=math.inf))


def accused(event: EventRecord, boards: Collection[NodeId]) -> set[NodeId]:
    """Whom an event says something bad of."""
    if event.name in NEWS or event.text.endswith(" is back"):
        return set()
    fields = (str(event.fields.get(key, "")) for key in ("peer", "missing", "who"))
    named = {name for text in fields for name in text.split(",")} & {*boards}
    if named or _OWN.search(event.text):
        return named or {event.node}
    return {name for name in boards if re.search(rf"\b{re.escape(name)}\b", event.text)} - {event.node}


Waits: TypeAlias = Sequence[tuple[float, NodeId, set[NodeId]]]  # when, who, for whom


def waits_of(runs: Iterable[RunData], boards: Collection[NodeId]) -> Waits:
    """For whom boards wait, or went on without, by what each says itself."""
    return [(at_s, event.node, accused(event, boards)) for run in runs for at_s, event in timed(run)]


def behind(name: NodeId, at_s: float, waits: Waits) -> set[NodeId]:
    """A board, those that it waited for at about that time, whom they waited for, and so on."""
    found, todo = {name}, [name]
    while todo:
        one = todo.pop()
        new = {n for when_s, who, named in waits if who == one and abs(when_s - at_s) <= LATE_S for n in named} - found
        found |= new
        todo += new
    return found


def untrue(data: RunData, absences: Sequence[Absence], boards: Collection[NodeId], waits: Waits = ()) -> Iterator[str]:
    """What a run folder blames boards for that were there. `waits`: what all boards say of that."""
    for at_s, event in timed(data):
        # Who was away itself hears late of what others did meanwhile; that it lost a connection is
        # true, too, whoever was away.
        own = [a for a in absences if a.board == event.node and a.covers(at_s)]
        since_s = min((a.since_s for a in own), default=math.inf)
        link = own and re.match(r"lost .* the connection was", event.text)
        for name in accused(event, boards):
            # Who waits for somebody that waits, too, says so, and blames nobody.
            away = {name} | (behind(name, at_s, waits) - {event.node} if event.name == "waiting" else set())
            others = [a for a in absences if a.board in away]
            if not link and not any(a.covers(at_s, since_s) for a in others):
                near = min((max(a.since_s - at_s, at_s - a.until_s) for a in others), default=math.nan)
                yield f"{event.node} at {event.t_s:.1f} s: {event.name}, {event.text} ({name} was there; {near:.0f} s off)"
    yield from untrue_verdict(data, absences, boards)


def untrue_verdict(data: RunData, absences: Sequence[Absence], boards: Collection[NodeId]) -> Iterator[str]:
    """The same of interruptions, and of the verdict, judged as if the run had ended here."""
    summary, evidence = summarise(data), Evidence(plan_of(data))
    for record in (*data.metrics(), *data.events()):
        evidence.take(record)
    ended = {name: [a for a in absences if a.board == name and a.kind in ("SIGKILL", "SIGTERM")] for name in boards}
    for name, one in ended.items():
        told = [row for row in summary["interruptions"] if row["node"] == name]
        if told and len(told) > len(one):
            yield f"{name} was interrupted {len(told)} times by the summary, and {len(one)} times in truth: {told}"
    for finding in findings(evidence, [n for n in evidence.boards if n != COORDINATOR]):
        named = [name for name in boards if re.search(rf"\b{re.escape(name)}\b", finding.text)]
        true = {
            "starved": lambda a: a.kind == "SIGSTOP" and a.until_s - a.since_s > STOOD_STILL_S / 2,
            "lost": lambda a: a.kind == "SIGKILL",
        }.get(finding.kind, lambda a: False)
        if not all(any(true(a) for a in absences if a.board == name) for name in named) or finding.ruin:
            yield f"the verdict says {finding.kind}: {finding.text}"
