"""Measures what a case records while it runs. Pure arithmetic on the nodes' models.

Consensus distance: sqrt(1/n sum_i ||x_i - mean x||^2) (Kong, Lin, Koloskova, Jaggi, Stich 2021,
"Consensus control for decentralized deep learning", section 3.1), with x_i the model that a node
trains: de-biased where the algorithm keeps a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgegossip.types import Metrics, Round, Vec

CURVE_POINTS = 200  # rounds of a run in which the consensus distance is taken


@dataclass(slots=True)
class FrameTraffic:
    """Adds up bytes of real frames. Payload: what the codec made; overhead: the rest of the
    frames.

    Nothing of a transport is counted: a run's overhead has the mesh's envelope besides, about 40
    bytes a message."""

    values: int  # n of the model
    payload_bytes: int = 0
    overhead_bytes: int = 0
    vectors: int = 0  # frames with a body: each stands for `values` values

    def count(self, frame_bytes: int, payload_bytes: int) -> None:
        """Add a frame of so many bytes, `payload_bytes` of them its body."""
        self.payload_bytes += payload_bytes
        self.overhead_bytes += frame_bytes - payload_bytes
        self.vectors += payload_bytes > 0

    @property
    def total_bytes(self) -> int:
        """Return payload and overhead together."""
        return self.payload_bytes + self.overhead_bytes

    @property
    def bits_per_value(self) -> float:
        """Return bits per value; nan when nothing was sent."""
        return 8 * self.payload_bytes / (self.vectors * self.values) if self.vectors else math.nan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Holds what was evaluated after a round."""

    round: Round
    sent_bytes: int  # by all nodes so far
    now_s: float  # virtual seconds since the start; nan where they are not counted
    averaged: Metrics | None  # of the mean of the nodes' models; None without a test set
    train_loss: float  # mean over the nodes, of this round


@dataclass(slots=True)
class ModelRecorder:
    """Takes the nodes' models at the end of rounds; evaluates and measures when all have come to
    that round.

    A node that was left behind and skips rounds stands in them with the model of the round it
    comes to; one that is gone counts no more."""

    nodes: int
    evaluate_after: frozenset[Round]
    measure_after: frozenset[Round]
    evaluate: Callable[[Vec], Metrics | None]
    sent_bytes: Callable[[], int]
    now_s: Callable[[], float] = lambda: math.nan
    evaluations: list[Evaluation] = field(default_factory=list)
    distances: list[tuple[Round, float]] = field(default_factory=list)
    _models: dict[Round, dict[int, tuple[Vec, float]]] = field(default_factory=dict)
    _next: list[Round] = field(default_factory=list)  # per node, the first round not seen yet
    _gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._next = [0] * self.nodes

    def done(self, node: int, round: Round, model: Vec, train_loss: float) -> None:
        """Take a node's model at the end of `round`, float32[n]; it is kept for a while, so
        nobody may write to it."""
        first, self._next[node] = self._next[node], max(self._next[node], round + 1)
        for r in range(first, round + 1):
            if r in self.evaluate_after or r in self.measure_after:
                waiting = self._models.setdefault(r, {})
                waiting[node] = (model, train_loss)
                self._complete_where_all_came(r)

    def gone(self, node: int) -> None:
        """Take note that a node will come to no further round."""
        self._gone.add(node)
        for r in sorted(self._models):
            self._complete_where_all_came(r)

    def _complete_where_all_came(self, round: Round) -> None:
        if len(self._models[round].keys() | self._gone) == self.nodes:
            self._complete(round, list(self._models.pop(round).values()))

    def _complete(self, round: Round, entries: Sequence[tuple[Vec, float]]) -> None:
        models = [model for model, _ in entries]
        mean = average(models)
        if round in self.measure_after:
            self.distances.append((round, consensus_distance(models, mean)))
        if round in self.evaluate_after:
            loss = float(np.mean([loss for _, loss in entries]))
            self.evaluations.append(Evaluation(round, self.sent_bytes(), self.now_s(), self.evaluate(mean), loss))


def measure_rounds(rounds: Round) -> frozenset[Round]:
    """Return at most about CURVE_POINTS rounds, evenly spaced, the first and the last among
    them."""
    every = max(1, rounds // CURVE_POINTS)
    return frozenset(range(0, rounds, every)) | {rounds - 1}


def average(models: Sequence[Vec]) -> Vec:
    """Return the mean of float32[n] vectors, summed in float64 in the order given."""
    total = np.zeros(models[0].shape, np.float64)
    for model in models:
        total += model
    total /= len(models)
    return total.astype(np.float32)


def consensus_distance(models: Sequence[Vec], mean: Vec) -> float:
    """Return the distance of float32[n] vectors from their mean; inf when it is beyond float32."""
    squares = 0.0
    with np.errstate(over="ignore"):
        for model in models:
            difference = model - mean
            squares += float(np.dot(difference, difference))
    return math.sqrt(squares / len(models))
