"""What a gossip board reports: a metrics record a round, with an evaluation when it is the round's turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgegossip import recipe as recipes
from edgegossip.gossip.base import RoundDone
from edgegossip.node.driver import Driver
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec
from edgegossip.profiling.records import Sink, Value
from edgegossip.profiling.spans import RoundClock
from edgegossip.training.base import Workload, stage_metrics
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round

if TYPE_CHECKING:
    from edgegossip.node.keeper import Keeper

LEAVE_S = 10.0  # how long the last frames may take to be acknowledged
PROMPT_S = 1.0  # of a round that takes so long the record is put down at once


class Records:
    """Where a board's metrics go. That of a short round is put down while the board waits for the messages of the next one, which
    is soon: training need not wait for it."""

    def __init__(self, name: NodeId, sink: Sink) -> None:
        self._name, self._sink = name, sink
        self._pending: tuple[Round, Callable[[], dict[str, Value]], float] | None = None  # the last: when it came

    def add(self, round: Round, values: Callable[[], dict[str, Value]], round_s: float) -> None:
        """`values`: puts them together when the time has come. `round_s`: what the round took, and so the next one may take."""
        self.flush()
        self._pending = round, values, time.monotonic()
        if round_s >= PROMPT_S:
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            round, values, ended_s = pending
            self._sink.metrics(self._name, round, values(), time.monotonic() - ended_s)


class Reporter:
    """One metrics record a round, with an evaluation when it is the round's turn."""

    def __init__(
        self,
        spec: NodeSpec,
        driver: Driver,
        workload: Workload,
        records: Records,
        clock: RoundClock,
        meters: NodeMeters,
        keeper: Keeper | None,
    ) -> None:
        self._spec, self._driver, self._workload, self._keeper = spec, driver, workload, keeper
        self._records, self._clock, self._meters = records, clock, meters
        self._evaluate_after = recipes.evaluation_rounds(spec.recipe)
        self._final: Metrics | None = None  # of the last round, over the whole test set

    def report(self, local: LocalUpdate, done: RoundDone) -> None:
        last = self._driver.round >= self._spec.recipe.run.rounds
        values, stages_s = _values(local, done) | self._evaluate(done.round), local.stages_s
        if self._keeper is not None:
            with self._clock.span("wait"):  # for the disk
                self._keeper.ready()
        if last:
            self._driver.drain(LEAVE_S)
        values |= self._driver.traffic.take(None if last else time.monotonic())
        times = self._clock.finish_round()
        self._records.add(
            done.round,
            lambda: values | stage_metrics(stages_s) | self._meters(due=last) | times.metrics(done.round),
            math.inf if last else times.round_s - times.parts_s["other"],  # the next round may be without an evaluation
        )

    def last(self) -> Metrics:
        """The final evaluation. A board that came so late that it took over the final model has only this to report."""
        if self._final is None:
            values = self._evaluate(self._driver.round - 1)
            times = self._clock.finish_round()
            values |= self._driver.traffic.take()
            self._records.add(self._driver.round - 1, lambda: values | self._meters() | times.metrics(), math.inf)
        assert self._final is not None
        return self._final

    def _evaluate(self, round: Round) -> dict[str, Value]:
        last = self._driver.round >= self._spec.recipe.run.rounds
        if not last and round not in self._evaluate_after:
            return {}
        limit = None if last else self._spec.recipe.evaluation.examples or None
        model = self._driver.model
        metrics = self._driver.aside("other", lambda: self._workload.evaluate(model, limit))
        if last:
            self._final = metrics
        return {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy}


def _values(local: LocalUpdate, done: RoundDone) -> dict[str, Value]:
    return {
        "train/loss": local.loss,
        "train/lr": local.lr,
        "train/examples": local.examples,
        "codec/relative_error": done.relative_error,
        "gossip/consensus_distance": done.consensus_distance,
    }
