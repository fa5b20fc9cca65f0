"""Keeps what a server run has beside the model: its progress, who evaluates when, and records of
rounds and boards.

Pure: classes here say what is to be logged or recorded by calling what they were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from numpy.typing import NDArray

from edgegossip.agreement import Agreement
from edgegossip.engine.plausible import Losses, ServerLevels
from edgegossip.engine.server_boards import Boards
from edgegossip.engine.server_frames import COORDINATOR
from edgegossip.frame import AUX_BYTES, HEADER_BYTES, Aux, Frame
from edgegossip.layout import Layout
from edgegossip.types import DataError, DecodeError, Metrics, NodeId, PeerError, Round, UsageError, Vec

Value: TypeAlias = float | int | str | bool | None
Log: TypeAlias = Callable[..., None]  # (event, text, **fields)
Record: TypeAlias = Callable[[NodeId, Round, Mapping[str, Value]], None]

FORMAT = 1
TRIES = 2  # boards that are asked for one evaluation during the run
NO_TEST_SET = "it has no test set"


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds a run between two rounds: everything that another process needs to go on. Plain
    values."""

    round: Round  # to play next
    model: Vec  # float32[n]
    reference: Vec | None = None  # float32[n], what boards trained from in the round before; None where it is the model
    strategy: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    levels: ServerLevels | None = None
    evaluations: int = 0  # asked for so far
    evaluate_next: Round | None = None  # the model after this round is to be evaluated
    records: Mapping[NodeId, tuple[Round, Mapping[str, Value]]] = field(default_factory=dict)  # that wait for a profile
    instance: str = ""  # which of several runs of the same recipe it is, drawn when it began; empty: not known
    examples: Mapping[NodeId, float] = field(default_factory=dict)  # that each board claimed last
    agreement: Agreement = Agreement({})  # what its boards have alike, as far as they said it
    corrections: Mapping[NodeId, Vec] = field(default_factory=dict)  # `Downlink.corrections`
    best: tuple[float, Round] | None = None  # the merit of the best evaluation, and of which round
    since_best: int = 0  # evaluations that were not better, in a row

    def plain(self) -> dict[str, Any]:
        """Return arrays, numbers and texts only."""
        levels = self.levels
        return {
            "format": FORMAT,
            "round": self.round,
            "model": self.model,
            "reference": self.reference,
            "strategy": dict(self.strategy),
            "levels": None if levels is None else _plain_levels(levels),
            "evaluations": self.evaluations,
            "evaluate_next": self.evaluate_next,
            "instance": self.instance,
            "examples": dict(self.examples),
            "agreement": dict(self.agreement.facts),
            "best": None if self.best is None else list(self.best),
            "since_best": self.since_best,
            "records": {name: [round, dict(values)] for name, (round, values) in self.records.items()},
            "corrections": dict(self.corrections),
        }

    @classmethod
    def from_plain(cls, found: Any, layout: Layout, levels: ServerLevels | None) -> Progress:
        """Read what `plain` gave.

        `levels`: as a run begins with them. Raises DataError when it is not of a run of this
        model."""
        try:
            if found["format"] != FORMAT:
                raise DataError(f"the checkpoint has format {found['format']}, this edgegossip reads {FORMAT}")
            corrections = dict(found.get("corrections", {}))
            for vec in (found["model"], found["reference"], *corrections.values()):
                if vec is not None:
                    layout.check(vec)
            if levels is not None and found["levels"] is not None:
                loss, first, count, lr, claims, sent_bits = found["levels"]
                first_claims = None if claims is None else tuple((float(f), float(eta)) for f, eta in claims)
                pair = (float(first[0]), float(first[1])) if first else None
                levels = replace(
                    levels, loss=loss, first=pair, levels=count, lr=lr, first_claims=first_claims, sent_bits=sent_bits
                )
            best = found.get("best")  # not there: of an earlier version
            return cls(
                int(found["round"]),
                found["model"],
                found["reference"],
                found["strategy"],
                levels,
                int(found["evaluations"]),
                found["evaluate_next"],
                {name: (int(round), dict(values)) for name, (round, values) in found["records"].items()},
                str(found["instance"]),
                {name: float(claim) for name, claim in found["examples"].items()},
                Agreement(found["agreement"]),
                corrections,
                None if best is None else (float(best[0]), int(best[1])),
                int(found.get("since_best", 0)),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, UsageError) as error:
            raise DataError(f"the coordinator's checkpoint cannot be used: {error}") from None


def _plain_levels(levels: ServerLevels) -> list[Any]:
    first_claims = None if levels.first_claims is None else [list(pair) for pair in levels.first_claims]
    return [levels.loss, list(levels.first or ()), levels.levels, levels.lr, first_claims, levels.sent_bits]


Faults = tuple[tuple[NodeId, str], ...]  # boards that did not evaluate, and why


@dataclass(frozen=True, slots=True)
class _PendingEvaluation:
    """Holds an evaluation that a board has been asked for and has not answered yet."""

    step: Round
    faults: Faults  # of those who were asked before it


class Evaluations:
    """Decides when the model is evaluated and by whom, and records what came of it.

    A round never waits for an evaluation: it is taken whenever the board's answer comes. A board
    that owes it for good is followed by one other, with the model of that moment; then it is logged
    that there is none. `after_rounds`: rounds after which the model is to be evaluated.

    `everywhere`: each board has a test set of its own, so all of a round's boards are asked, and
    the mean of what has come by its end is the evaluation. `of_boards`: what each of them found is
    recorded as well, as nobody else does it here. `better`: which way a score is better;
    `patience`: evaluations in a row that are not, after which it is `exhausted` (0: never).
    `on_best` hears of each that is better than all before."""

    def __init__(
        self,
        after_rounds: frozenset[Round],
        training: Losses,
        log: Log,
        record: Record,
        everywhere: bool = False,
        of_boards: bool = False,
        better: str = "auto",
        patience: int = 0,
        on_best: Callable[[Round, Metrics], None] = lambda step, metrics: None,
    ) -> None:
        self._rounds, self._training, self._log, self._record = after_rounds, training, log, record
        self._everywhere, self._of_boards = everywhere, of_boards
        self._found: dict[NodeId, Metrics] = {}  # of this round's question to all
        self._step = -1  # which was about the model after this round
        self.wanted: Round | None = None  # the model after this round, and nobody has been asked
        self._faults: Faults = ()  # of the one that is wanted
        self._asked: dict[NodeId, _PendingEvaluation] = {}
        self.asked = 0  # so far
        self._better, self._patience, self._on_best = better, patience, on_best
        self.best: tuple[float, Round] | None = None  # merit and round of the best evaluation
        self.since_best = 0  # evaluations in a row that were not better
        self._told_unknown = False
        self.without: dict[NodeId, str] = {}  # boards that have no test set, and the reason in words

    @property
    def open(self) -> Round | None:
        """The round of an evaluation that has not been made, if there is one: another process asks
        for it again."""
        return self.wanted if self.wanted is not None else max((a.step for a in self._asked.values()), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether evaluations have not become better for so long that the run is to end."""
        return 0 < self._patience <= self.since_best

    def resume(self, progress: Progress) -> None:
        """Go on from what an earlier process had."""
        self.asked, self.wanted = progress.evaluations, progress.evaluate_next
        self.best, self.since_best = progress.best, progress.since_best

    def after(self, round: Round) -> None:
        """Take note that a round has ended."""
        if self._everywhere:
            self._end_round_of_all()
        if round in self._rounds:
            self._drop_wanted()
            self.wanted = round

    def ask(self, names: Sequence[NodeId], step: Round) -> Collection[NodeId]:
        """Choose who evaluates the model after round `step`, which goes out now; nobody when none
        of these boards has a test set."""
        tried, able = {name for name, _ in self._faults}, [n for n in names if n not in self.without]
        if not able:
            return ()
        if self._everywhere:
            self.asked += 1
            chosen = able
        else:
            chosen = [self.next_board([n for n in able if n not in tried] or able)]
        self._asked |= dict.fromkeys(chosen, _PendingEvaluation(step, self._faults))
        self.wanted, self._faults, self._step = None, (), step
        return chosen

    def next_board(self, names: Sequence[NodeId]) -> NodeId:
        """Choose one of these boards: they take turns."""
        self.asked += 1
        return names[(self.asked - 1) % len(names)]

    def answered(self, name: NodeId, found: Metrics | PeerError | None) -> None:
        """Take a board's answer, in time or late, to a question that may have asked for an
        evaluation. Raises PeerError."""
        asked = self._asked.get(name)
        if asked is None:
            return
        try:
            metrics = self.checked(found)
        except PeerError as error:
            self.failed(name, str(error))
            raise
        if metrics is None:
            self.failed(name, "its answer has no evaluation")
            return
        del self._asked[name]
        if not metrics.examples:
            self.has_none(name)
            if self.wanted is None and not self._everywhere:
                self.wanted, self._faults = asked.step, asked.faults
        elif self._everywhere:
            self._found[name] = metrics
        else:
            self.record(asked.step, metrics)

    def _end_round_of_all(self) -> None:
        """Take what has come of a round of which all boards were asked: what comes later is of no
        use."""
        for name in list(self._asked):
            self.failed(name, "it has not answered in time")
        if self._found:
            self.record_all(self._step, self._found)
        elif self._faults:
            self.missing(self._step, self._faults)
        self._found, self._faults = {}, ()

    def has_none(self, name: NodeId) -> None:
        """Take note that a board has no test set: it is not asked again."""
        self.without[name] = NO_TEST_SET
        self._log("no-test-set", f"{name} has no test set and evaluates nothing")

    def checked(self, found: Metrics | PeerError | None) -> Metrics | None:
        """Return the evaluation in an answer, if there is one; of 0 examples where the board has no
        test set. One that tells no figure is none.

        Raises PeerError when it cannot be one of this training."""
        if isinstance(found, PeerError):
            raise found
        if found is None or math.isnan(found.loss):
            return found if found is None or found.scores or not found.examples else None
        if not self._training.makes_sense(found.loss):
            raise DecodeError(
                f"the evaluation claims a loss of {found.loss:g}, out of all proportion to that of training"
            )
        return found

    def look(self, boards: Boards) -> None:
        """Give up on boards that were asked and are not busy with it any more: they went away, or
        were given up."""
        for name in list(self._asked):
            member = boards.by_name(name)
            if member is None or not member.up or not member.busy:
                self.failed(name, "it went away, or its answer was given up")

    def failed(self, name: NodeId, reason: str) -> None:
        """Take note that no evaluation comes of this board, if it was asked for one."""
        asked = self._asked.pop(name, None)
        if asked is None:
            return
        if self._everywhere:
            self._faults = (*self._faults, (name, reason))
            return
        faults = (*asked.faults, (name, reason))
        if len(faults) < TRIES and self.wanted is None:
            self.wanted, self._faults = asked.step, faults
        else:
            self.missing(asked.step, faults)

    def end(self) -> None:
        """End the training: what has not come is missing."""
        self._drop_wanted()
        for name, asked in self._asked.items():
            self.missing(asked.step, (*asked.faults, (name, "it has not answered")))
        self._asked.clear()

    def missing(self, step: Round, faults: Iterable[tuple[NodeId, str]]) -> None:
        """Log that there is none of the model after this round."""
        faults = tuple(faults)
        why = "; ".join(f"{name}: {reason}" for name, reason in faults)
        text = f"the model after round {step} is not evaluated ({why})"
        self._log("not-evaluated", text, missing=",".join(name for name, _ in faults))

    def found(self, metrics: Metrics) -> None:
        """Take the coordinator's own evaluation, of the model that is wanted."""
        assert self.wanted is not None
        self.record(self.wanted, metrics)
        self.wanted = None

    def record(self, step: Round, metrics: Metrics) -> None:
        """Record an evaluation of the model after round `step`."""
        self._record(COORDINATOR, step, metrics.records())
        merit = metrics.merit(self._better)
        if merit is None:
            if self._patience and not self._told_unknown:
                self._told_unknown, (name, _) = True, metrics.headline or ("loss", 0.0)
                text = f"evaluation.patience ends nothing: nobody knows whether a higher {name} is better"
                self._log("notice", f"{text}; say evaluation.better = higher, or lower")
            return
        if self.best is None or merit > self.best[0]:
            self.best, self.since_best = (merit, step), 0
            self._on_best(step, metrics)
        else:
            self.since_best += 1

    def record_all(self, step: Round, found: Mapping[NodeId, Metrics]) -> None:
        """Record what boards found of the model after round `step`, each on its own test set."""
        if self._of_boards:
            for name, metrics in sorted(found.items()):
                self._record(name, step, metrics.records())
        self.record(step, Metrics.over([metrics for _, metrics in sorted(found.items())]))

    def _drop_wanted(self) -> None:
        if self.wanted is not None and self._faults:
            self.missing(self.wanted, self._faults)
        self.wanted, self._faults = None, ()


class BoardRecords:
    """Records what the updates of boards say whose metrics are kept elsewhere, and the profile that
    they send of a round.

    A board knows how long its answer took to send when that is sent. So the profile of a round
    comes with the next answer, or with the board's goodbye; until then the record of the round is
    held back. Without one it has what the update said. At most one record a board waits."""

    def __init__(self, layout: Layout, record: Record) -> None:
        self._layout, self._record = layout, record
        self._waiting: dict[NodeId, tuple[Round, dict[str, Value]]] = {}

    @property
    def waiting(self) -> dict[NodeId, tuple[Round, dict[str, Value]]]:
        """Records that are not written yet; a process that is killed takes them along."""
        return dict(self._waiting)

    def resume(self, waiting: Mapping[NodeId, tuple[Round, Mapping[str, Value]]]) -> None:
        """Go on with those of an earlier process."""
        self._waiting = {name: (round, dict(values)) for name, (round, values) in waiting.items()}

    def answered(self, name: NodeId, profile: tuple[Round, Mapping[str, Value]] | PeerError | None) -> str | None:
        """Take the profile of an earlier round that came with an answer or a goodbye.

        Returns what is wrong with it, if anything."""
        if name not in self._waiting or profile is None:
            return None
        if isinstance(profile, PeerError):
            return str(profile)
        round, values = self._waiting[name]
        if profile[0] == round:
            # What it saw in the round is known to the board alone; an update says what it weighs.
            seen = {key: v for key, v in profile[1].items() if key == "train/examples"}
            self._write(name, {**profile[1], **values, **seen})
        return None

    def used(self, name: NodeId, round: Round, frame: Frame) -> None:
        """Take note of an update that counted."""
        self._write(name)
        values: dict[str, Value] = {
            "train/loss": frame.aux[Aux.LOSS],
            "train/examples": int(frame.aux[Aux.EXAMPLES]),
            "net/payload_bytes": len(frame.body),
            "codec/bits_per_value": 8 * len(frame.body) / self._layout.size,
        }
        self._waiting[name] = (round, values)

    def end(self) -> None:
        """Write what is left."""
        for name in list(self._waiting):
            self._write(name)

    def _write(self, name: NodeId, values: Mapping[str, Value] | None = None) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._record(name, waiting[0], waiting[1] if values is None else values)


def sent_values(frames: Sequence[Frame], layout: Layout) -> dict[str, Value]:
    """Return what the coordinator's record of a round says of the frames that went down."""
    payload = sum(len(f.body) for f in frames)
    overhead = sum(HEADER_BYTES + len(f.codec_params) + AUX_BYTES * len(f.aux) for f in frames)
    values: dict[str, Value] = {"net/payload_bytes": payload, "net/overhead_bytes": overhead}
    if frames:
        values["codec/bits_per_value"] = 8 * payload / (len(frames) * layout.size)
    return values


def used_values(frames: Sequence[Frame], believed: Sequence[bool]) -> dict[str, Value]:
    """Return what it says of the updates that were used: how many, their examples, and the mean of
    losses by examples.

    `believed`: which of their losses count."""
    values: dict[str, Value] = {"server/used": len(frames)}
    if examples := sum(f.aux[Aux.EXAMPLES] for f in frames):
        values["train/examples"] = int(examples)
    some = [f for f, good in zip(frames, believed, strict=True) if good]
    if examples := sum(f.aux[Aux.EXAMPLES] for f in some):
        values["train/loss"] = sum(f.aux[Aux.LOSS] * f.aux[Aux.EXAMPLES] for f in some) / examples
    return values
