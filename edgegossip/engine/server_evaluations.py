"""Decides when the model of a server run is evaluated and by whom, which evaluation is the best,
and when the run has waited for a better one for long enough.

Pure: it says what is to be logged or recorded by calling what it was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from edgegossip.engine.plausible import ENOUGH, ExampleClaims, Losses
from edgegossip.engine.server_boards import Boards
from edgegossip.engine.server_events import ServerPlan
from edgegossip.engine.server_frames import COORDINATOR
from edgegossip.engine.server_records import Log, Progress, Record
from edgegossip.types import DecodeError, Metrics, NodeId, PeerError, Round, better_of

TRIES = 2  # boards that are asked for one evaluation during the run
NO_TEST_SET = "it has no test set"
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
    that there is none.

    Where each board has a test set of its own (`plan.evaluates_everywhere`), all of a round's
    boards are asked, and the mean of what has come by its end is the evaluation. What each of them
    found is recorded as well where nobody else does it (`plan.records_boards`). `on_best` hears of
    each evaluation that is better than all before, with its merit.

    Of three boards or more one may lie, or have an easier test set. Where all are asked the middle
    one's finding decides which evaluation is the best, whatever the mean. Where they take turns
    what the one that found most says is not held against the others': not where a run is to end,
    nor, once all had two turns to confirm it, where the best is chosen."""

    def __init__(
        self,
        plan: ServerPlan,
        training: Losses,
        log: Log,
        record: Record,
        on_best: Callable[[Round, float], None] = lambda step, merit: None,
    ) -> None:
        self._plan, self._training, self._log, self._record, self._on_best = plan, training, log, record, on_best
        self._found: dict[NodeId, Metrics] = {}  # of this round's question to all
        self._step = -1  # which was about the model after this round
        self.wanted: Round | None = None  # the model after this round, and nobody has been asked
        self._faults: Faults = ()  # of the one that is wanted
        self._asked: dict[NodeId, _PendingEvaluation] = {}
        self.asked = 0  # so far
        self.best: tuple[float, Round] | None = None  # merit and round of the best evaluation
        self.since_best = 0  # evaluations in a row that were not better
        self._unconfirmed = 0  # and since the best one that did not reach it
        self.merits: dict[NodeId, float] = {}  # the best that each has found
        self._examples = ExampleClaims[NodeId]("evaluation")
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
        return 0 < self._plan.patience <= self.since_best

    def resume(self, progress: Progress) -> None:
        """Go on from what an earlier process had."""
        self.asked, self.wanted = progress.evaluations, progress.evaluate_next
        self.best, self.since_best = progress.best, progress.since_best
        self.merits = dict(progress.merits)

    def after(self, round: Round) -> None:
        """Take note that a round has ended."""
        if self._plan.evaluates_everywhere:
            self._end_round_of_all()
        if round in self._plan.evaluate_after or round == self._plan.rounds - 1:
            self._drop_wanted()
            self.wanted = round

    def ask(self, names: Sequence[NodeId], step: Round) -> Collection[NodeId]:
        """Choose who evaluates the model after round `step`, which goes out now; nobody when none
        of these boards has a test set."""
        tried, able = {name for name, _ in self._faults}, [n for n in names if n not in self.without]
        if not able:
            return ()
        if self._plan.evaluates_everywhere:
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
            if self.wanted is None and not self._plan.evaluates_everywhere:
                self.wanted, self._faults = asked.step, asked.faults
        elif self._plan.evaluates_everywhere:
            self._found[name] = metrics
        else:
            self.record(asked.step, metrics, name)

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
        if self._plan.evaluates_everywhere:
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
        self._log("not-evaluated", text, missing=",".join(name for name, _ in faults), round=step)

    def found(self, metrics: Metrics) -> None:
        """Take the coordinator's own evaluation, of the model that is wanted."""
        assert self.wanted is not None
        self.record(self.wanted, metrics)
        self.wanted = None

    def record(self, step: Round, metrics: Metrics, by: NodeId = COORDINATOR, judged: float | None = None) -> None:
        """Record an evaluation of the model after round `step`, `by` one board or all together.
        `judged`: the merit that decides, where it is not that of these figures."""
        self._record(COORDINATOR, step, metrics.records())
        merit = metrics.merit(self._plan.better) if judged is None else judged
        if merit is None:
            self._tell_unknown(metrics)
            return
        better = merit > self._to_beat(by)
        self.merits[by] = max(merit, self.merits.get(by, -math.inf))
        self.since_best = 0 if better else self.since_best + 1
        self._unconfirmed += 1
        if better and (self.best is None or merit > self.best[0] or self._unconfirmed > 2 * len(self.merits)):
            self.best, self._unconfirmed = (merit, step), 0
            self._on_best(step, merit)

    def _to_beat(self, by: NodeId) -> float:
        """Return the merit beyond which what this board finds is better than what was known."""
        known = sorted(self.merits, key=self.merits.__getitem__)
        if len(self.merits.keys() | {by}) >= ENOUGH and known[-1] != by:
            known.pop()
        return self.merits[known[-1]] if known else -math.inf

    def _tell_unknown(self, metrics: Metrics) -> None:
        """Say once what comes of a score of which nobody knows what is better."""
        plan, (name, _) = self._plan, metrics.headline or ("loss", 0.0)
        idle = ["evaluation.patience ends nothing"] * bool(plan.patience)
        idle += ["checkpoint.best keeps no model"] * plan.keeps_best
        if idle and better_of(name, plan.better) is None and not self._told_unknown:
            self._told_unknown = True
            text = f"{' and '.join(idle)}: nobody knows whether a higher {name} is better"
            self._log("notice", f"{text}; say evaluation.better = higher, or lower")

    def record_all(self, step: Round, found: Mapping[NodeId, Metrics]) -> None:
        """Record what boards found of the model after round `step`, each on its own test set."""
        if self._plan.records_boards:
            for name, metrics in sorted(found.items()):
                self._record(name, step, metrics.records())
        claims = {name: float(of.examples) for name, of in found.items() if of.examples > 1}  # 1: unknown
        refused = self._examples.refused(claims)
        self._examples.used({name: claim for name, claim in claims.items() if name not in refused})
        for name, why in refused.items():
            self._log("refused", f"refused the evaluation of {name}: {why}", peer=name, what="evaluation")
        used = [metrics for name, metrics in sorted(found.items()) if name not in refused]
        merits = sorted(m for metrics in used if (m := metrics.merit(self._plan.better)) is not None)
        if used:
            self.record(step, Metrics.over(used), judged=median_low(merits) if len(merits) >= ENOUGH else None)

    def _drop_wanted(self) -> None:
        if self.wanted is not None and self._faults:
            self.missing(self.wanted, self._faults)
        self.wanted, self._faults = None, ()
