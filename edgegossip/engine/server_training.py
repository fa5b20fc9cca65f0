"""Makes the model of a server run: whom a round asks, what goes down, which updates are believed,
the next model. `server.py` decides when; nothing here knows of time or of boards that come and go.

`Combiner` is the interface behind which updates become the next model. `Mean` is the mean of
McMahan et al. 2017, algorithm 1: x' = x + sum_i n_i / n * Q(delta_i), each update decoded straight
into the sum. Flower's FedAvg averages the models x + delta_i, which is the same number up to
rounding and needs a copy of the model for every board. Flower's other strategies are behind the
same interface in `flower/combine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.codecs.checks import all_finite
from edgegossip.engine.plausible import (
    Examples,
    Losses,
    NormFilter,
    Reputation,
    ServerLevels,
    length,
    require_reported,
)
from edgegossip.engine.server_boards import sample, wanted
from edgegossip.engine.server_events import Answer, Failure, Result, RoundEnded, ServerPlan, Train
from edgegossip.engine.server_frames import Channel, Downlink
from edgegossip.engine.server_records import (
    BoardRecords,
    Evaluations,
    Log,
    Progress,
    Record,
    Value,
    sent_values,
    used_values,
)
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import NodeId, PeerError, Round, RunError, Vec

MAX_EMPTY_ROUNDS = 3  # rounds in a row in which no board sent anything usable

Span: TypeAlias = Callable[[str], AbstractContextManager[object]]
Answers: TypeAlias = Mapping[NodeId, tuple[int, Answer]]  # with the transport's number of the board


class Training:
    """Makes the model of one run, round after round.

    `round` is the one in progress, or to be played next."""

    def __init__(
        self, plan: ServerPlan, initial: Vec, combiner: Combiner | None, span: Span, log: Log, record: Record
    ) -> None:
        self._plan, self._span, self._log = plan, span, log
        self.model, self.round = initial, 0
        self._channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        self._combiner = combiner or Mean(self._channel, uniform=plan.weighting == "uniform")
        self._downlink = Downlink(plan.layout, plan.run_id, plan.downlink)
        self._levels = ServerLevels.of(plan.codec)
        self._losses, self._examples = Losses(), Examples[NodeId]()
        self._reputation = Reputation(lambda event, text, name: log(event, text, peer=name))
        after_rounds = plan.evaluate_after | {plan.rounds - 1}
        self.evaluations = Evaluations(after_rounds, self._losses, log, record, plan.evaluates_everywhere)
        self._records = BoardRecords(plan.layout, record) if plan.records_boards else None
        self._holds: dict[NodeId, tuple[int, Round]] = {}  # the model that a board (by its number) answered last
        self._sent: dict[str, Value] = {}  # what the record of the round in progress says of its frames
        self._empty_rounds = 0

    def resume(self, progress: Progress) -> None:
        """Go on from what an earlier process saved."""
        self.model, self.round = progress.model, progress.round
        self._combiner.restore(progress.strategy)
        self._levels = progress.levels
        self._examples.used(progress.examples)
        self.evaluations.resume(progress.evaluations, progress.evaluate_next)
        if self._records is not None:
            self._records.resume(progress.records)
        if progress.reference is not None:
            self._downlink.resume(progress.reference, progress.round - 1)

    def progress(self) -> Progress:
        """Return all that another process needs to go on from here."""
        return Progress(
            self.round,
            self.model,
            self._downlink.reference if self._downlink.compresses else None,
            self._combiner.snapshot(),
            self._levels,
            self.evaluations.asked,
            self.evaluations.open,
            {} if self._records is None else self._records.waiting,
            self._plan.instance,
            dict(self._examples.claimed),
        )

    # A round begins

    def instructions(self, idle: Mapping[NodeId, int]) -> dict[int, Train]:
        """Choose among the idle boards, and what each is sent; one of them, or where each has a
        test set of its own all, may be asked to evaluate the model it gets.

        Boards are given and returned with the transport's numbers."""
        plan = self._plan
        trusted = self._reputation.trusted(list(idle), self.round, max(1, plan.min_nodes))
        count = wanted(plan.fraction, plan.min_nodes, len(plan.boards))
        some = sample([idle[name] for name in trusted], count, plan.seed, self.round)
        names = {node: name for name, node in idle.items()}
        with self._span("encode"):
            chosen = {names[node]: node for node in self._combiner.choose(self.round, self.model, some)}
            frames = self._frames(chosen)
        evaluators: Collection[NodeId] = ()
        if self.evaluations.wanted is not None and not plan.evaluates_itself and chosen:
            evaluators = self.evaluations.ask(sorted(chosen), self.round - 1)
        examples = plan.evaluation_examples
        return {node: Train(frames[name], examples if name in evaluators else None) for name, node in chosen.items()}

    def _frames(self, chosen: Mapping[NodeId, int]) -> dict[NodeId, Frame]:
        """Encode what each board gets: the difference if it holds the model before, else the whole.

        Either is made once."""
        aux = {} if self._levels is None else self._levels.aux()
        difference, whole = self._downlink.publish(self.model, self.round, aux), None
        frames: dict[NodeId, Frame] = {}
        for name, node in chosen.items():
            if difference is not None and self._holds.get(name) == (node, self.round - 1):
                frames[name] = difference
            else:
                whole = whole or self._downlink.whole(self.round, aux)
                frames[name] = whole
        self._sent = sent_values(list(frames.values()), self._plan.layout)
        return frames

    # A round ends

    def end_round(self, answers: Answers, no_answer: str) -> RoundEnded:
        """Make the next model of what has come. Raises RunError after too many rounds without one.

        `no_answer`: why there is none, for words."""
        with self._span("decode"):
            shares = self._checked(answers)
            unanswered = all(isinstance(answer, Failure) and answer.away for _, answer in answers.values())
            shares = self._combine(shares, no_answer if unanswered else "")
        if self._records is not None:
            for name, (_, answer) in answers.items():
                self.take_profile(name, answer)
            for share in shares:
                self._records.used(share.name, self.round, share.frame)
        frames = [share.frame for share in shares]
        values: dict[str, Value] = {"server/answers": len(answers)}
        values |= used_values(frames, self._losses.believed([frame.aux[Aux.LOSS] for frame in frames]))
        values |= self._sent
        ended = RoundEnded(self.round, self.model, values, tuple(share.name for share in shares))
        self.evaluations.after(self.round)
        self.round += 1
        return ended

    def _checked(self, answers: Answers) -> Sequence[WeightedUpdate]:
        """Return updates that can be used, as far as can be said before they are decoded, in the
        order of names."""
        good: list[WeightedUpdate] = []
        for name in sorted(answers):
            node, answer = answers[name]
            try:
                if isinstance(answer, Failure):
                    self.evaluations.failed(name, "it went away" if answer.away else answer.reason)
                    if answer.away:
                        continue  # which is logged elsewhere
                    raise PeerError(answer.reason)
                if not isinstance(answer, Result):
                    raise answer if isinstance(answer, PeerError) else PeerError("the answer is not to this question")
                self._holds[name] = (node, self.round)
                self.evaluations.answered(name, answer.evaluation)
                if not isinstance(answer.frame, (bytes, memoryview)):
                    raise answer.frame or PeerError("the answer has no update")
                frame = self._channel.check(answer.frame, Kind.UPDATE, self.round)
                require_reported(frame, self._levels is not None)
                good.append(WeightedUpdate(name, frame, frame.aux[Aux.EXAMPLES], node))
            except PeerError as error:
                self._reputation.refused(name, str(error))
        if self._plan.weighting == "examples":
            # Without those whose claim of examples would make the mean theirs.
            refused = self._examples.refused({share.name: share.weight for share in good})
            for name, reason in refused.items():
                self._reputation.refused(name, reason)
            good = [share for share in good if share.name not in refused]
        return good

    def _combine(self, shares: Sequence[WeightedUpdate], no_answer: str) -> Sequence[WeightedUpdate]:
        """Make the next model; return whose updates it is made of."""
        made = self._combiner.combine(self.round, self.model, shares) if shares else Combined(None, {})
        for name, reason in made.refused.items():
            self._reputation.refused(name, reason)
        shares = [share for share in shares if share.name not in made.refused]
        if made.why:
            self._log("refused", f"round {self.round} changes nothing: {made.why}")
            shares = []
        self._reputation.judge(self.round, [share.name for share in shares])
        self._examples.used({share.name: share.weight for share in shares})
        if self._levels is not None:
            planned = self._plan.learning_rate(self.round) if self._plan.learning_rate else None
            self._levels = self._levels.after([share.frame for share in shares], planned)
        if made.model is not None:
            self.model, self._empty_rounds = made.model, 0
            return shares
        self._empty_rounds += 1
        if self._empty_rounds >= MAX_EMPTY_ROUNDS:
            refusal = (
                f"the last reason: {self._reputation.last_reason}; where that is so of most boards, training runs away: "
                "lower training.lr"
            )
            raise RunError(f"no usable update for {MAX_EMPTY_ROUNDS} rounds; {no_answer or made.why or refusal}")
        return shares

    # What else comes with answers

    def take_late(self, name: NodeId, answer: Answer) -> None:
        """Take an answer whose round is over: its update is of no use any more, what it found of
        the model is."""
        self._log("late", f"the answer of {name} came after its round was over", peer=name)
        try:
            if isinstance(answer, Failure):
                self.evaluations.failed(name, answer.reason)
                raise PeerError(answer.reason)
            if isinstance(answer, Result):
                self.evaluations.answered(name, answer.evaluation)
        except PeerError as error:
            self._log("refused", f"refused a late answer of {name}: {error}", peer=name)

    def take_profile(self, name: NodeId, answer: Answer) -> None:
        """Take the profile of a board's earlier round, with an answer or its goodbye."""
        if self._records is None or not isinstance(answer, Result):
            return
        if problem := self._records.answered(name, answer.profile):
            self._log("refused", f"refused the profile of {name}: {problem}", peer=name)

    def end_records(self) -> None:
        """Write records of boards that have waited for a profile."""
        if self._records is not None:
            self._records.end()


# Updates become the next model


@dataclass(frozen=True, slots=True)
class WeightedUpdate:
    """Holds one board's part in the next model: a frame that has been checked, not decoded."""

    name: NodeId
    frame: Frame
    weight: float  # above 0: examples that the update is from
    node: int = 0  # the transport's number for the board


@dataclass(frozen=True, slots=True)
class Combined:
    """Holds the next model, float32[n] (None: no update could be used), and who was refused, with
    the reason.

    `why`: there is no model, and no board is to blame."""

    model: Vec | None
    refused: dict[NodeId, str]
    why: str = ""


class Combiner(Protocol):
    """Makes the next model. Deterministic; its state, arrays by name, goes into checkpoints.

    Example:
        mean = Mean(channel)
        made = mean.combine(round, x, [WeightedUpdate("board-0", frame, weight=60.0)])
    """

    def choose(self, round: Round, x: Vec, nodes: Sequence[int]) -> list[int]:
        """Return which of these boards, by the transport's numbers, the round asks. x float32[n]:
        the model."""

    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        """Make the next model from x float32[n], which is not changed, and at least one share, in
        the order of names."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state; arrays in it are not written to afterwards."""

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `snapshot` gave."""


_SUSPICIOUS = 4.0  # a mean so many times as long as the shortest since we looked makes us look at each update again
_LENGTHS = "edgegossip/lengths/"  # in a snapshot: how long updates of the run are


class Mean(Combiner):
    """Averages updates as they stream in, weighted, round after round. `uniform`: every board
    counts the same.

    An update out of all proportion is refused (`plausible.NormFilter`). Lengths of single updates
    are only measured when the mean itself is longer than usual, or nothing is known yet: what goes
    unnoticed so cannot move the model further than that. Beside the model there is never more than
    one vector of its size."""

    def __init__(self, channel: Channel, *, uniform: bool = False) -> None:
        self._channel, self._uniform = channel, uniform
        self._norms = NormFilter()
        self._usual: float | None = None  # the shortest mean since each update was measured; None: that never was

    @override
    def choose(self, round: Round, x: Vec, nodes: Sequence[int]) -> list[int]:
        return list(nodes)

    @override
    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        refused: dict[NodeId, str] = {}
        lengths: dict[NodeId, float] = {}
        if self._usual is None:
            lengths = self._inspect(x, shares, refused)
        # A mean and a decoded update are each as large as the model: there is one of them at a
        # time.
        mean = self._mean([s for s in shares if s.name not in refused], refused)
        moved = length(mean)
        if self._usual is not None and not moved <= _SUSPICIOUS * self._usual:
            del mean
            lengths = self._inspect(x, [s for s in shares if s.name not in refused], refused)
            mean = self._mean([s for s in shares if s.name not in refused], refused)
            moved = length(mean)
        if len(refused) == len(shares):
            return Combined(None, refused)
        with np.errstate(over="ignore"):
            mean += x
        if not all_finite(mean):
            why = "the update is so large that the model would not be finite"
            return Combined(None, {s.name: refused.get(s.name, why) for s in shares})
        self._usual = moved if lengths or self._usual is None else min(moved, self._usual)
        if lengths:
            self._norms.used({name: v for name, v in lengths.items() if name not in refused}, x)
        else:
            self._norms.unmeasured()
        return Combined(mean, refused)

    @override
    def snapshot(self) -> dict[str, NDArray[Any]]:
        usual = -1.0 if self._usual is None else self._usual
        return lengths_as_arrays({**self._norms.memory, "usual": usual})

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        memory = lengths_in(snapshot)
        self._norms.restore(memory)
        self._usual = None if memory["usual"] < 0.0 else memory["usual"]

    def _mean(self, shares: Sequence[WeightedUpdate], refused: dict[NodeId, str]) -> Vec:
        """Average all that can be decoded.

        Those that cannot go to `refused`; they leave the sum as it was."""
        mean = np.zeros(self._channel.layout.size, np.float32)
        weights = [1.0 if self._uniform else s.weight for s in shares]
        total, used = sum(weights), 0.0
        for share, weight in zip(shares, weights, strict=True):
            try:
                self._channel.codec.decode(share.frame.body, self._channel.layout, mean, weight / total)
                used += weight
            except PeerError as error:
                refused[share.name] = str(error)
        if 0.0 < used < total:
            mean *= np.float32(total / used)
        return mean

    def _inspect(self, x: Vec, shares: Sequence[WeightedUpdate], refused: dict[NodeId, str]) -> dict[NodeId, float]:
        """Measure every update, and refuse those out of all proportion."""
        scratch = np.empty(self._channel.layout.size, np.float32)
        lengths = {}
        for share in shares:
            try:
                decoded = self._channel.codec.decode(share.frame.body, self._channel.layout, scratch)
                lengths[share.name] = length(decoded)
            except PeerError as error:
                refused[share.name] = str(error)
        refused.update(self._norms.refused(lengths, x))
        return lengths


def lengths_as_arrays(memory: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """Return a memory of lengths as a part of a snapshot."""
    return {f"{_LENGTHS}{key}": np.array([value]) for key, value in memory.items()}


def lengths_in(snapshot: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return what `lengths_as_arrays` was given."""
    lengths = ((path, array[0]) for path, array in snapshot.items() if path.startswith(_LENGTHS))
    return {path.removeprefix(_LENGTHS): float(value) for path, value in lengths}


def without_lengths(snapshot: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the part of a snapshot that is not a memory of lengths."""
    return {path: array for path, array in snapshot.items() if not path.startswith(_LENGTHS)}
