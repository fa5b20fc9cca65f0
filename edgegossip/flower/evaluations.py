"""When the model is evaluated, by whom, and what came of it. No I/O but the sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from edgegossip import recipe as recipes
from edgegossip.flower import protocol
from edgegossip.flower.downlink import COORDINATOR
from edgegossip.flower.losses import Losses
from edgegossip.flower.roster import Roster
from edgegossip.profiling.records import Sink
from edgegossip.recipe import Recipe
from edgegossip.types import DecodeError, Metrics, NodeId, Round

TRIES = 2  # boards that are asked for one evaluation during the run

Faults = tuple[tuple[NodeId, str], ...]  # boards that did not evaluate, and why


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of a board that has not answered yet."""

    step: Round
    faults: Faults  # of those who were asked before it


class Evaluations:
    """Of one run. During it a round never waits for an evaluation: it is taken whenever the board's answer comes. A board that
    owes it for good is followed by one other, with the model of that moment; then it is said that there is none."""

    def __init__(self, recipe: Recipe, sink: Sink, training: Losses) -> None:
        self._training = training
        self._sink, self._rounds = sink, recipes.evaluation_rounds(recipe)
        self.wanted: Round | None = None  # the model after this round, and nobody has been asked
        self._faults: Faults = ()  # of the one that is wanted
        self._asked: dict[NodeId, _Asked] = {}
        self.asked = 0

    @property
    def pending(self) -> bool:
        """Whether somebody is to be asked."""
        return self.wanted is not None

    @property
    def open(self) -> Round | None:
        """The round of an evaluation that has not been made, if there is one: another process asks for it again."""
        return self.wanted if self.wanted is not None else max((a.step for a in self._asked.values()), default=None)

    def resume(self, asked: int, wanted: Round | None) -> None:
        self.asked, self.wanted = asked, wanted

    def after(self, round: Round) -> None:
        """A round has ended."""
        if round in self._rounds:
            self._drop_wanted()
            self.wanted = round

    def ask(self, names: Sequence[NodeId], step: Round) -> NodeId:
        """Who evaluates the model after round `step`, which goes out now."""
        tried = {name for name, _ in self._faults}
        name = self.next_board([n for n in names if n not in tried] or names)
        self._asked[name] = _Asked(step, self._faults)
        self.wanted, self._faults = None, ()
        return name

    def next_board(self, names: Sequence[NodeId]) -> NodeId:
        """They take turns."""
        self.asked += 1
        return names[(self.asked - 1) % len(names)]

    def answered(self, name: NodeId, reply: Message) -> None:
        """A board's answer, in time or late, to a question that may have asked for an evaluation. Raises DecodeError."""
        asked = self._asked.get(name)
        if asked is None:
            return
        try:
            found = self.read(reply)
        except DecodeError as error:
            self.failed(name, str(error))
            raise
        if found is None:
            self.failed(name, "its answer has no evaluation")
            return
        del self._asked[name]
        self.record(asked.step, found)

    def read(self, reply: Message) -> Metrics | None:
        """The evaluation in a board's answer, if there is one. Raises DecodeError when it cannot be one of this training."""
        found = protocol.read_evaluation(reply.content)
        if found is not None and not self._training.makes_sense(found.loss):
            raise DecodeError(
                f"the evaluation claims a loss of {found.loss:g}, out of all proportion to that of training"
            )
        return found

    def look(self, roster: Roster) -> None:
        """Whoever was asked and is not busy with it any more went away, or its answer was given up."""
        for name in list(self._asked):
            member = roster.by_name(name)
            if member is None or not member.up or not member.busy:
                self.failed(name, "it went away, or its answer was given up")

    def failed(self, name: NodeId, reason: str) -> None:
        """No evaluation comes of this board, if it was asked for one."""
        asked = self._asked.pop(name, None)
        if asked is None:
            return
        faults = (*asked.faults, (name, reason))
        if len(faults) < TRIES and self.wanted is None:
            self.wanted, self._faults = asked.step, faults
        else:
            self.missing(asked.step, faults)

    def end(self) -> None:
        """The training is over: what has not come is missing."""
        self._drop_wanted()
        for name, asked in self._asked.items():
            self.missing(asked.step, (*asked.faults, (name, "it has not answered")))
        self._asked.clear()

    def missing(self, step: Round, faults: Iterable[tuple[NodeId, str]]) -> None:
        """Say that there is none of the model after this round."""
        faults = tuple(faults)
        why = "; ".join(f"{name}: {reason}" for name, reason in faults)
        text = f"the model after round {step} is not evaluated ({why})"
        self._sink.event(COORDINATOR, "not-evaluated", text, missing=",".join(name for name, _ in faults))

    def found(self, metrics: Metrics) -> None:
        """The coordinator's own, of the one that is wanted."""
        assert self.wanted is not None
        self.record(self.wanted, metrics)
        self.wanted = None

    def record(self, step: Round, metrics: Metrics) -> None:
        values = {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy, "eval/examples": metrics.examples}
        self._sink.metrics(COORDINATOR, step, values)

    def _drop_wanted(self) -> None:
        if self.wanted is not None and self._faults:
            self.missing(self.wanted, self._faults)
        self.wanted, self._faults = None, ()
