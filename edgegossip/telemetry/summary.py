"""A run in one document: what `run --json` prints and summary.json holds. Pure arithmetic on the
records.

What is not known is null, never 0. A board that was lost keeps its own figures and is named in
`failed_nodes`. What each number is over:

- `accuracy`, `scores`, `loss`, `train_loss`, `time_s`, `rounds`: the boards that finished; while
  none has, those still at work; where all were lost, `rounds` is theirs. Each is a board's last
  evaluation, last training loss and its sum of seconds; `loss`, `train_loss` and `time_s` are means
  over boards.
- `score` is the name of what the run goes by, the first of `scores`: that of the task, or "loss"
  where there is only that; null where nothing was evaluated. `better` says whether it should be
  "higher" or "lower"; null of a user's own score that does not say. `accuracy` is the score of that
  name, and what the run goes by where there is none.
- Where a coordinator asked its boards, each on a test set of its own, the mean is the
  coordinator's, weighted by examples; least and greatest are the boards'.
- `alone` and `average` are the same score of what boards made without exchange (`run --alone`),
  and of the mean of their models, each on the board's own test set.
- `sent_bytes`, `received_bytes`: sums over all boards, lost ones included: what was sent was sent.
  What a coordinator sends is what its boards receive.
- `seconds`: wall time, from the start of the first board to the last record, on the clock of all
  boards (clocks.py).
- `interruptions`: each time that a board's process ended before it had finished: when, on that
  clock, and after how many rounds. Not where the whole run was stopped, and `resumes` has when it
  went on, and how many rounds all boards had done.
- `ended_early`: the sentence with which a coordinator ended the run before its last round; else
  empty.
- `bits_per_value`: all payload bits of the boards divided by all values they stood for.
- `verdict`: what is not as it should be, see verdict.py; while boards are at work it says which of
  them were lost, and nothing else.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgegossip.files import parse_toml
from edgegossip.telemetry.clocks import AFTERWARDS, OF_THE_RUN, Clocks
from edgegossip.telemetry.clocks import COORDINATOR as COORDINATOR
from edgegossip.telemetry.records import (
    EVALUATED,
    PARTS,
    EventRecord,
    MetricsRecord,
    Record,
    in_order,
    scores_in,
    shown_scores,
)
from edgegossip.telemetry.run_folder import RunData
from edgegossip.types import NodeId, better_of

if TYPE_CHECKING:
    from edgegossip.telemetry.evidence import Evidence, RunPlan

_SENT_METRICS = {
    "payload": "net/payload_bytes",
    "overhead": "net/overhead_bytes",
    "socket": "net/sent_bytes",
    "link": "net/link_bytes",
}
SENT = tuple(_SENT_METRICS)
_SUMMED = (
    "net/received_bytes",
    *_SENT_METRICS.values(),
    *(f"{clock}/{part}_s" for clock in ("time", "cpu") for part in PARTS),
    "time/cpu_s",
    "sys/energy_j",
)
_LAST = ("train/loss", "eval/loss")
# event -> state of its node from then on
ENDS = {
    "trained": "finished",
    "finished": "finished",
    "lost": "lost",
    "error": "lost",
    "restarted": "unfinished",
    "resumed": "unfinished",
}
_INTERRUPTED = ("lost", "error", "restarted", "resumed", "loading")  # a process of the node is gone


@dataclass(slots=True)
class _Totals:
    """What is known of one node so far."""

    state: str = "unfinished"
    why: str = ""  # it failed
    rounds: int = 0  # rounds done
    seconds: float | None = None
    sums: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)  # of the last evaluation, the headline first
    evaluated: bool = False
    measured_rounds: int = 0  # that say what energy they took
    encoded_bits: float = 0.0
    encoded_values: float = 0.0
    peak_rss_bytes: float | None = None
    restarts: int = 0
    starts: int = 0  # of processes that go on where one had ended
    loads: int = 0  # of such processes, as they say themselves
    resumes: list[EventRecord] = field(default_factory=list)
    interruptions: list[tuple[str, EventRecord]] = field(default_factory=list)  # what it came to, who told first
    times_s: array[float] = field(default_factory=lambda: array("d"))  # of its rounds, as they came
    steps: array[int] = field(default_factory=lambda: array("q"))

    @property
    def shown(self) -> dict[str, float]:
        """Its scores; the test loss where that is all that was told."""
        return shown_scores({f"{EVALUATED}{name}": value for name, value in self.scores.items()} | self.last)

    def take(self, record: MetricsRecord) -> None:
        self.rounds = max(self.rounds, record.step + 1)
        self.seconds = max(self.seconds or 0.0, record.t_s)
        self.times_s.append(record.t_s)
        self.steps.append(record.step)
        for name in _SUMMED:
            if (value := record.number(name)) is not None:
                self.sums[name] = self.sums.get(name, 0.0) + value
        self.measured_rounds += record.number("sys/energy_j") is not None
        for name in _LAST:
            if (value := record.number(name)) is not None:
                self.last[name] = value
        self.evaluated |= any(name.startswith(EVALUATED) for name in record.values)
        found = {name: record.number(f"{EVALUATED}{name}") for name in scores_in(record.values)}
        if found:
            known = self.scores | {name: value for name, value in found.items() if value is not None}
            self.scores = {name: known[name] for name in in_order(self.scores, found) if name in known}
        rss_bytes = record.number("sys/peak_rss_bytes") or record.number("sys/rss_bytes")
        if rss_bytes is not None:
            self.peak_rss_bytes = max(self.peak_rss_bytes or 0.0, rss_bytes)
        bits, payload_bytes = record.number("codec/bits_per_value"), record.number("net/payload_bytes")
        if bits and payload_bytes:
            self.encoded_bits += 8 * payload_bytes
            self.encoded_values += 8 * payload_bytes / bits

    def interrupted(self, event: EventRecord) -> None:
        """Note the end of a process. Of one end two may tell: the board itself, and who started
        it. One that nobody told is known by the next process, which loads what was kept. A board
        that was well when all of them were stopped was not interrupted."""
        self.loads += event.name == "loading"
        if event.name == "loading" and self.loads <= self.starts:
            return
        ended = bool(self.interruptions) and self.interruptions[-1][0] != "restarted"
        if event.name not in ("lost", "error"):
            self.starts += 1
            if event.name == "resumed":
                self.resumes.append(event)
                if not ended:
                    return
            self.restarts += 1
        came_to = event.name if event.name in ("lost", "error") else "restarted"
        if ended:
            before, told = self.interruptions.pop()
            self.interruptions.append((came_to if came_to == "restarted" else before, told))
        else:
            self.interruptions.append((came_to, event))

    def done(self, rows: int) -> int:
        """Return how many rounds the first `rows` records are of."""
        return max(self.steps[:rows], default=-1) + 1

    def bytes(self, name: str) -> int | None:
        return round(self.sums[name]) if name in self.sums else None


def summarise(run: RunData, metrics: Iterable[MetricsRecord] | None = None) -> dict[str, Any]:
    """Return the document for a run folder, of a run that ended or one that goes on. `metrics` are
    its records where the caller reads them anyway."""
    records = run.metrics() if metrics is None else metrics
    return summarise_records(head_of(run), members_of(run), records, run.events(), plan_of(run))


def head_of(run: RunData) -> dict[str, Any]:
    """Return what a summary says of the run itself: its name, mode and rounds."""
    recipe = recipe_of(run)
    section, better = recipe.get("run", {}), recipe.get("evaluation", {}).get("better", "auto")
    return {
        "run": run.name,
        "mode": section.get("mode"),
        "rounds_asked": section.get("rounds"),
        "better": better,
    }


def members_of(run: RunData) -> Sequence[NodeId]:
    """Return the boards that should take part, as far as the folder tells."""
    return run.partition.get("nodes", ()) if run.partition else ()


def plan_of(run: RunData) -> RunPlan:
    """Return what the verdict goes by beside the records, as far as the folder tells."""
    from edgegossip.telemetry.evidence import RunPlan  # here: a board that waits judges nothing

    return RunPlan.of(recipe_of(run), run.partition, run.topology)


def recipe_of(run: RunData) -> dict[str, Any]:
    """Return the run's resolved recipe as plain tables; empty when there is none that can be
    read."""
    try:
        return parse_toml(run.recipe_toml or "")
    except ValueError:
        return {}


def summarise_records(
    head: Mapping[str, Any],
    members: Sequence[NodeId],
    metrics: Iterable[MetricsRecord],
    events: Iterable[EventRecord],
    plan: RunPlan | None = None,
) -> dict[str, Any]:
    """Return the document from the records themselves. `head` has run, mode and rounds_asked;
    `members` are the boards that should have taken part, so that one which never said a word is not
    forgotten."""
    summary = Summary(members, plan)
    for record in metrics:
        summary.take(record)
    for event in events:
        summary.take(event)
    return summary.document(head)


class Summary:
    """Makes the same of a run that goes on: it takes records as they come."""

    def __init__(self, members: Sequence[NodeId] = (), plan: RunPlan | None = None) -> None:
        self._members = len(members)  # the first of the nodes, in their order
        self._nodes = {name: _Totals() for name in members}
        from edgegossip.telemetry.evidence import Evidence

        self._evidence = Evidence(plan)
        self._clocks = Clocks()
        self._last_s: dict[NodeId, float] = {}  # of what a node said itself
        self._run_s = 0.0  # of what was said of it
        self._ended_early = ""

    def take(self, record: Record) -> None:
        """Take in one record."""
        self._evidence.take(record)
        totals = self._nodes.get(record.node)
        if totals is None:
            totals = self._nodes[record.node] = _Totals()
        if isinstance(record, MetricsRecord):
            totals.take(record)
        else:
            self._clocks.take(record)
            totals.state = ENDS.get(record.name, totals.state)
            if record.name in _INTERRUPTED:
                totals.interrupted(record)
            if record.name == "ended-early":
                self._ended_early = record.text
            if record.name in ("error", "lost"):
                totals.why = record.text.removeprefix(f"lost {record.node}: ")
        if isinstance(record, EventRecord) and record.name in OF_THE_RUN:
            if record.name not in AFTERWARDS:
                self._run_s = max(self._run_s, record.t_s)
        else:
            self._last_s[record.node] = max(self._last_s.get(record.node, 0.0), record.t_s)

    def document(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document; `head` as of `summarise_records`."""
        names = list(self._nodes)
        nodes = {
            name: self._nodes[name] for name in names[: self._members] + sorted(names[self._members :], key=_parts)
        }
        run_s = self._clocks.of(COORDINATOR, self._run_s)
        seconds = max((run_s, *(self._clocks.of(node, s) for node, s in self._last_s.items())))
        return {
            **_document(head, nodes, seconds, self._evidence),
            "interruptions": sorted(self._interruptions(nodes), key=lambda one: one["t_s"]),
            "resumes": [*self._resumes(nodes)],
            "ended_early": self._ended_early,
            "verdict": self._verdict(nodes),
        }

    def _interruptions(self, nodes: Mapping[NodeId, _Totals]) -> Iterable[dict[str, Any]]:
        for node, totals in nodes.items():
            for name, event in totals.interruptions:
                at_s, why = self._clocks.at(event), event.text.partition(": ")[2]
                rows = bisect_right(totals.times_s, at_s, key=lambda own_s: self._clocks.of(node, own_s))
                yield {"node": node, "event": name, "t_s": at_s, "rounds": totals.done(rows), "why": why}

    def _resumes(self, nodes: Mapping[NodeId, _Totals]) -> Iterable[dict[str, Any]]:
        """Each time that the run went on: the first board's moment, and the slowest one's rounds.
        It goes on later than any clock had come."""
        boards = [totals for totals in nodes.values() if totals.resumes]
        for events in zip(*(totals.resumes for totals in boards), strict=False):
            of_each = zip(boards, events, strict=True)
            rounds = [totals.done(bisect_right(totals.times_s, event.t_s)) for totals, event in of_each]
            yield {"t_s": min(map(self._clocks.at, events)), "rounds": min(rounds)}

    def _verdict(self, nodes: Mapping[NodeId, _Totals]) -> list[dict[str, Any]]:
        """Of a run that is over: while boards are at work it may still come right."""
        boards = {name: t for name, t in nodes.items() if name != COORDINATOR}
        states = {name: t.state for name, t in boards.items()}
        finished = [name for name, state in states.items() if state == "finished"]
        over = finished and "unfinished" not in states.values()
        lost = {name: t.why for name, t in boards.items() if t.state == "lost"}
        if not over and not lost:
            return []
        from edgegossip.telemetry import verdict

        found = verdict.findings(self._evidence, finished) if over else []
        return [finding.to_json() for finding in (*found, *verdict.lost(lost, len(boards)))]


def _document(
    head: Mapping[str, Any], nodes: Mapping[NodeId, _Totals], seconds: float, evidence: Evidence
) -> dict[str, Any]:
    boards = {name: t for name, t in nodes.items() if name != COORDINATOR}
    judged = [n for n, t in boards.items() if t.state == "finished"]
    judged = judged or [n for n, t in boards.items() if t.state == "unfinished"]
    basis = [boards[name] for name in judged]
    whole = nodes.get(COORDINATOR)
    whole = whole if whole is not None and whole.evaluated else None
    evaluated = [t for t in basis if t.evaluated]
    named = ([whole] if whole is not None else []) + evaluated
    names: list[str] = []
    for totals in named:
        names = in_order(names, totals.scores)
    names = names or ["loss"]  # where nobody tells more
    told = {name: [t.shown[name] for t in evaluated if name in t.shown] for name in names}
    scores = {name: _spread(values, whole, name) for name, values in told.items() if values or whole is not None}
    score = next(iter(scores), None)
    aside = {
        what: [of[n][score] for n in judged if score and score in of.get(n, ())] for what, of in evidence.beside.items()
    }
    loss = _spread([t.last["eval/loss"] for t in evaluated if "eval/loss" in t.last], whole, "loss")
    return {
        "run": head.get("run"),
        "mode": head.get("mode"),
        "nodes": len(boards),
        "rounds": max((t.rounds for t in basis or boards.values()), default=0),
        "rounds_asked": head.get("rounds_asked"),
        "accuracy": scores.get("accuracy") or scores.get(score or "") or _spread(()),
        "score": score,
        "better": better_of(score, head.get("better", "auto")) if score else None,
        "scores": scores,
        **{what: _spread(found) for what, found in aside.items()},
        "loss": loss["mean"],
        "train_loss": _mean([t.last["train/loss"] for t in basis if "train/loss" in t.last]),
        "seconds": seconds if any(t.seconds is not None for t in nodes.values()) else None,
        "sent_bytes": {part: _sum_bytes(boards.values(), name) for part, name in _SENT_METRICS.items()},
        "received_bytes": _sum_bytes(boards.values(), "net/received_bytes"),
        "bits_per_value": _ratio(boards.values()),
        "time_s": {part: _mean(_known(basis, f"time/{part}_s")) for part in PARTS},
        "failed_nodes": [name for name, t in boards.items() if t.state == "lost"],
        "unfinished_nodes": [name for name, t in boards.items() if t.state == "unfinished"],
        "restarted_nodes": [name for name, t in boards.items() if t.restarts],
        "boards": [_row(name, totals, evidence) for name, totals in nodes.items()],
    }


def _parts(name: NodeId) -> list[str]:
    """Return the words and numbers of a name to sort by, so that board-10 comes after board-9."""
    return [part.rjust(20, "0") if k % 2 else part for k, part in enumerate(re.split(r"([0-9]+)", name))]


def _row(name: NodeId, totals: _Totals, evidence: Evidence) -> dict[str, Any]:
    """One node's own figures, whatever became of it."""
    return {
        "node": name,
        "role": "coordinator" if name == COORDINATOR else "board",
        "state": totals.state,
        "why": totals.why if totals.state == "lost" else "",
        "restarts": totals.restarts,
        "rounds": totals.rounds,
        "accuracy": totals.shown.get("accuracy", next(iter(totals.shown.values()), None)),
        "scores": totals.shown,
        **{what: dict(of.get(name, {})) for what, of in evidence.beside.items()},
        "loss": totals.last.get("eval/loss"),
        "train_loss": totals.last.get("train/loss"),
        "seconds": totals.seconds,
        "sent_bytes": {part: totals.bytes(_SENT_METRICS[part]) for part in SENT},
        "received_bytes": totals.bytes("net/received_bytes"),
        "bits_per_value": _ratio([totals]),
        "time_s": {part: totals.sums.get(f"time/{part}_s") for part in PARTS},
        "cpu_s": totals.sums.get("time/cpu_s"),
        "cpu_time_s": {part: totals.sums.get(f"cpu/{part}_s") for part in PARTS},
        "energy_j": totals.sums.get("sys/energy_j"),
        "energy_rounds": totals.measured_rounds,
        "peak_rss_bytes": None if totals.peak_rss_bytes is None else round(totals.peak_rss_bytes),
    }


def beside(summary: Mapping[str, Any]) -> list[tuple[NodeId, float | None, float | None, float | None]]:
    """Return what each board reached by the score that the run goes by: its name, by itself, in
    this run, and with the average of the boards' models. Empty where no board trained by itself."""
    score, rows = summary["score"], [row for row in summary["boards"] if row["role"] == "board"]
    if not any(score in row.get("alone", ()) for row in rows):
        return []
    whole = next((row["scores"].get(score) for row in summary["boards"] if row["role"] == "coordinator"), None)
    together = {row["node"]: row["scores"].get(score, whole) for row in rows if row["state"] != "lost"}
    return [
        (row["node"], row["alone"].get(score), together.get(row["node"]), row["average"].get(score)) for row in rows
    ]


def evaluated_by(summary: Mapping[str, Any]) -> str:
    """Return whose model a document's scores are of: each "board" its own, or the one of the
    "coordinator", whoever evaluated that; "" without any."""
    told = {row["role"] for row in summary["boards"] if row["scores"] or row["loss"] is not None}
    return "coordinator" if "coordinator" in told else "board" if told else ""


def _known(basis: Sequence[_Totals], name: str) -> list[float]:
    return [t.sums[name] for t in basis if name in t.sums]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(values: Sequence[float], whole: _Totals | None = None, name: str = "") -> dict[str, float | None]:
    """Mean, least and greatest; `whole` evaluated for all, and says the mean."""
    mean = _mean(values)
    if whole is not None:
        mean = whole.last.get("eval/loss") if name == "loss" else whole.scores.get(name)
        values = values if mean is None else [mean, *values]  # a board that is lost by now had its part in it
    return {"mean": mean, "min": min(values, default=None), "max": max(values, default=None)}


def _sum_bytes(nodes: Iterable[_Totals], name: str) -> int | None:
    """Null as soon as one node that took part did not measure: a sum that leaves someone out is no
    total."""
    values = [t.bytes(name) for t in nodes if t.rounds]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _ratio(nodes: Iterable[_Totals]) -> float | None:
    pairs = [(t.encoded_bits, t.encoded_values) for t in nodes]
    values = sum(v for _, v in pairs)
    return sum(b for b, _ in pairs) / values if values else None
