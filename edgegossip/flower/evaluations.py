"""When the model is evaluated, by whom, and what came of it. No I/O but the sink."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message

from edgegossip import recipe as recipes
from edgegossip.flower import protocol
from edgegossip.flower.downlink import COORDINATOR
from edgegossip.profiling.records import Sink
from edgegossip.recipe import Recipe
from edgegossip.types import Metrics, NodeId, Round


class Evaluations:
    """Of one run. At most one is wanted at a time: that of the model after round `wanted`."""

    def __init__(self, recipe: Recipe, sink: Sink) -> None:
        self._sink, self._rounds = sink, recipes.evaluation_rounds(recipe)
        self.wanted: Round | None = None
        self.asked = 0

    @property
    def pending(self) -> bool:
        return self.wanted is not None

    def resume(self, asked: int, wanted: Round | None) -> None:
        self.asked, self.wanted = asked, wanted

    def after(self, round: Round) -> None:
        """A round has ended."""
        if round in self._rounds:
            self.wanted = round

    def want(self, round: Round) -> None:
        self.wanted = round

    def next_board(self, names: Sequence[NodeId]) -> NodeId:
        """They take turns."""
        self.asked += 1
        return names[(self.asked - 1) % len(names)]

    def note(self, reply: Message, step: Round) -> None:
        """Record what a board found of the model after round `step`, if that is wanted. Raises DecodeError."""
        found = protocol.read_evaluation(reply.content)
        if found is not None and self.wanted == step:
            self.found(found)

    def found(self, metrics: Metrics) -> None:
        assert self.wanted is not None
        values = {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy, "eval/examples": metrics.examples}
        self._sink.metrics(COORDINATOR, self.wanted, values)
        self.wanted = None
