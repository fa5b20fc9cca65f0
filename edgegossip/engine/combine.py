"""Turns the updates of a round into the next model.

`Combiner` is the interface. `Mean` is the mean of McMahan et al. 2017, algorithm 1: x' = x +
sum_i n_i / n * Q(delta_i), each update decoded straight into the sum. Flower's FedAvg averages the
models x + delta_i, which is the same number up to rounding and needs a copy of the model for every
board. Flower's other strategies are behind the same interface in `flower/combine.py`.
`OuterCombiner` puts an outer optimiser around any of them, `WithControl` keeps SCAFFOLD's control
variates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median_low
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from edgegossip.codecs.checks import all_finite
from edgegossip.engine.plausible import ENOUGH, NormFilter, length
from edgegossip.engine.scaffold import GRADIENT_RATIO, ControlVariates, way_of
from edgegossip.engine.server_boards import Address
from edgegossip.engine.server_frames import Channel
from edgegossip.frame import Aux, Frame
from edgegossip.gossip.messages import LARGEST_STATISTIC
from edgegossip.gossip.outer import Memory, OuterOptimizer
from edgegossip.layout import Layout
from edgegossip.types import ConfigError, NodeId, PeerError, Round, Vec

_SUSPICIOUS = 4.0  # a mean so many times as long as the shortest since we looked makes us look at each update again


@dataclass(frozen=True, slots=True)
class WeightedUpdate:
    """Holds one board's part in the next model: a frame that has been checked, not decoded."""

    name: NodeId
    frame: Frame
    weight: float  # above 0: examples that the update is from
    address: Address = 0
    correction: Vec | None = None  # float32[n], what the way down left of `Combiner.correction`; None: all of it


@dataclass(frozen=True, slots=True)
class Combined:
    """Holds the next model, float32[n] (None: no update could be used), and who was refused, with
    the reason.

    `why`: there is no model, and no board is to blame. `distances`: how far each update is turned
    away from most others, where each is at hand."""

    model: Vec | None
    refused: dict[NodeId, str]
    why: str = ""
    distances: Mapping[NodeId, float] = field(default_factory=dict)


class Combiner(Protocol):
    """Makes the next model. Deterministic; its state goes into checkpoints.

    Example:
        mean = Mean(channel)
        made = mean.combine(round, x, [WeightedUpdate("board-0", frame, weight=60.0)])
    """

    def choose(self, round: Round, x: Vec, boards: Sequence[Address]) -> list[Address]:
        """Return which of these boards the round asks. x float32[n]: the model."""

    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        """Make the next model from x float32[n], which is not changed, and at least one share, in
        the order of names."""

    def correction(self, board: NodeId) -> Vec | None:
        """Return what each step of this board is to add to its gradient in the round, float32[n]
        (`scaffold.py`); None: nothing."""
        return None

    def snapshot(self) -> Mapping[str, Any]:
        """Return the state, as checkpoints keep it; arrays in it are not written to afterwards."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave."""


class Mean(Combiner):
    """Averages updates as they stream in, weighted, round after round. `uniform`: every board
    counts the same.

    An update out of all proportion is refused (`plausible.NormFilter`). Lengths of single updates
    are only measured when the mean itself is longer than usual, or nothing is known yet: what goes
    unnoticed so cannot move the model further than that. Beside the model there is never more than
    one vector of its size."""

    def __init__(self, channel: Channel, *, uniform: bool = False) -> None:
        self._channel, self._uniform = channel, uniform
        self._trained = slice(channel.layout.trainable_size)
        self._norms = NormFilter()
        self._usual: float | None = None  # the shortest mean since each update was measured; None: that never was

    @override
    def choose(self, round: Round, x: Vec, boards: Sequence[Address]) -> list[Address]:
        return list(boards)

    @override
    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        """Make the next model in four steps:

        1. Where nothing is known yet, measure each update and refuse those out of all proportion.
        2. Average the others. If the mean is suspiciously long, do step 1 now and average again.
        3. Add the mean to the model; refuse every update where the sum is not finite.
        4. Remember how long the mean is, and the updates that were measured."""
        refused: dict[NodeId, str] = {}
        lengths = self._inspect(x, shares, refused) if self._usual is None else {}
        # A mean and a decoded update are each as large as the model: there is one of them at a
        # time.
        mean = self._mean(_usable(shares, refused), refused)
        moved = length_of_trained(mean, self._channel.layout)
        if self._usual is not None and not moved <= _SUSPICIOUS * self._usual:
            del mean
            lengths = self._inspect(x, _usable(shares, refused), refused)
            mean = self._mean(_usable(shares, refused), refused)
            moved = length_of_trained(mean, self._channel.layout)
        if len(refused) == len(shares):
            return Combined(None, refused)
        with np.errstate(over="ignore"):
            mean += x
        if not all_finite(mean):
            why = "the update is so large that the model would not be finite"
            return Combined(None, {s.name: refused.get(s.name, why) for s in shares})
        self._usual = moved if lengths or self._usual is None else min(moved, self._usual)
        if lengths:
            self._norms.used({name: v for name, v in lengths.items() if name not in refused}, x[self._trained])
        else:
            self._norms.unmeasured()
        return Combined(mean, refused)

    @override
    def snapshot(self) -> Mapping[str, Any]:
        return {"lengths": asdict(self._norms), "usual": self._usual}

    @override
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._norms, self._usual = NormFilter(**snapshot["lengths"]), snapshot["usual"]

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
                lengths[share.name] = length_of_trained(decoded, self._channel.layout)
            except PeerError as error:
                refused[share.name] = str(error)
        refused.update(self._norms.refused(lengths, x[self._trained]))
        return lengths


def with_outer(combiner: Combiner, optimizer: OuterOptimizer | None, layout: Layout) -> Combiner:
    """Return `combiner` with an outer optimiser around its rounds; itself for None. Raises what
    `check_outer` does."""
    check_outer(optimizer)
    return combiner if optimizer is None else OuterCombiner(combiner, optimizer, layout)


def check_outer(optimizer: OuterOptimizer | None) -> None:
    """Raise ConfigError for an outer optimiser that is for gossip only."""
    if optimizer is not None and optimizer.streams:
        raise ConfigError(
            f"outer.{optimizer.streams} is for run.mode = gossip: a coordinator sends a board the whole model, and asks "
            "for its next round when it has the answer to the last one; leave it away"
        )
    if optimizer is not None and optimizer.consensus:
        raise ConfigError(
            "outer.consensus is for run.mode = gossip: with a coordinator all boards have one model; say 0"
        )


class OuterCombiner(Combiner):
    """Takes what `combiner` makes of a round for a step of an outer optimiser. Beside what that
    needs it keeps the optimiser's memory: one vector of the trained values, or two for adam."""

    def __init__(self, combiner: Combiner, optimizer: OuterOptimizer, layout: Layout) -> None:
        self._combiner, self._optimizer, self._trained = combiner, optimizer, layout.trainable_size
        self._memory: Memory = optimizer.init(layout.trainable_size)

    @override
    def choose(self, round: Round, x: Vec, boards: Sequence[Address]) -> list[Address]:
        return self._combiner.choose(round, x, boards)

    @override
    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        made = self._combiner.combine(round, x, shares)
        if made.model is None:
            return made
        memory, lead = self._optimizer.lead(self._memory, made.model[: self._trained] - x[: self._trained])
        with np.errstate(over="ignore", invalid="ignore"):
            lead += made.model[: self._trained]
        if not all_finite(lead):
            return Combined(None, made.refused, "the outer step is so large that the model would not be finite")
        self._memory = memory
        return replace(made, model=np.concatenate([lead, made.model[self._trained :]]))

    @override
    def snapshot(self) -> Mapping[str, Any]:
        return {"inner": self._combiner.snapshot(), "outer": self._memory}

    @override
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._memory = snapshot["outer"]
        self._combiner.restore(snapshot["inner"])


def with_control(
    combiner: Combiner, strategy: str, channel: Channel, boards: int, *, uniform: bool = False
) -> Combiner:
    """Return `combiner`, the mean, an outer optimiser around it or not, with SCAFFOLD's control
    variates where that is the strategy of the recipe; itself for any other. `channel`: that of
    updates. `boards`: how many the run has. `uniform`: every board counts the same."""
    return WithControl(combiner, channel, boards, uniform=uniform) if strategy == "scaffold" else combiner


class WithControl(Combiner):
    """Keeps the control variates of SCAFFOLD beside what `combiner` makes of the rounds
    (`scaffold.py`): a vector of the trained values for each board, and their mean."""

    def __init__(self, combiner: Combiner, channel: Channel, boards: int, *, uniform: bool = False) -> None:
        layout = channel.layout
        self._combiner, self._channel, self._uniform = combiner, channel, uniform
        way = way_of(channel.codec, layout.size)
        self.controls = ControlVariates(boards, layout.size, layout.trainable_size, way)

    @override
    def choose(self, round: Round, x: Vec, boards: Sequence[Address]) -> list[Address]:
        return self._combiner.choose(round, x, boards)

    @override
    def correction(self, board: NodeId) -> Vec:
        return self.controls.correction(board)

    @override
    def combine(self, round: Round, x: Vec, shares: Sequence[WeightedUpdate]) -> Combined:
        made = self._combiner.combine(round, x, shares)
        if made.model is None:
            return made
        used, scratch = _usable(shares, made.refused), np.empty(self._channel.layout.size, np.float32)
        # Each is decoded twice, so that one at a time is in memory, however many boards there are.
        lengths = {share.name: length(g) for share in used if (g := self._gradient(share, scratch)) is not None}
        typical = median_low(lengths.values()) if len(lengths) >= ENOUGH else math.inf
        most = GRADIENT_RATIO * (typical or math.inf)
        for share in used:
            taken = self._gradient(share, scratch) if lengths.get(share.name, math.inf) <= most else None
            self.controls.used(share.name, taken, 1.0 if self._uniform else share.weight)
        self.controls.settle()
        return made

    def _gradient(self, share: WeightedUpdate, scratch: Vec) -> Vec | None:
        """Return the mean gradient of an update's steps; None where it does not say how long they
        were."""
        rate = share.frame.aux.get(Aux.LEARNING_RATE, 0.0) * share.frame.aux.get(Aux.STEPS, 0.0)
        if rate <= 0.0:
            return None
        sent = self._channel.codec.decode(share.frame.body, self._channel.layout, scratch)
        had = self.correction(share.name) if share.correction is None else share.correction
        return self.controls.gradient(sent, had, rate)

    @override
    def snapshot(self) -> Mapping[str, Any]:
        return {"inner": self._combiner.snapshot(), "control": self.controls.snapshot()}

    @override
    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.controls.restore(snapshot["control"])
        self._combiner.restore(snapshot["inner"])


def length_of_trained(update: Vec, layout: Layout) -> float:
    """Return the length of what is trained in an update, float32[n]: how a board's statistics move
    is a matter of what it measures, in Pa or in volts. Of these only what would overflow is too
    long, and then all is."""
    trained, statistics = update[: layout.trainable_size], update[layout.trainable_size :]
    return length(trained) if length(statistics) <= LARGEST_STATISTIC else math.inf


def _usable(shares: Sequence[WeightedUpdate], refused: Mapping[NodeId, str]) -> list[WeightedUpdate]:
    """Return the updates that are not refused."""
    return [share for share in shares if share.name not in refused]
