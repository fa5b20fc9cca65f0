"""Makes the model of a server run: whom a round asks, what goes down, which updates are believed.

`combine.py` makes the next model of them. `server.py` decides when; nothing here knows of time or
of boards that come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from edgegossip.engine.combine import Combined, Combiner, Mean, WeightedUpdate
from edgegossip.engine.plausible import (
    ExampleClaims,
    Losses,
    ServerLevels,
    require_reported,
)
from edgegossip.engine.quarantine import Reputation
from edgegossip.engine.server_boards import Address, sample, wanted
from edgegossip.engine.server_evaluations import Evaluations
from edgegossip.engine.server_events import Answer, BoardAnswer, Failure, RoundEnded, ServerPlan, Train
from edgegossip.engine.server_frames import Channel, Downlink
from edgegossip.engine.server_records import (
    BoardRecords,
    Log,
    Progress,
    Record,
    Value,
    sent_values,
    used_values,
)
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.robust import far_beyond
from edgegossip.types import NodeId, PeerError, Round, RunError, Vec

MAX_EMPTY_ROUNDS = 3  # rounds in a row in which no board sent anything usable

Span: TypeAlias = Callable[[str], AbstractContextManager[object]]
Answers: TypeAlias = Mapping[NodeId, tuple[Address, Answer]]


class Training:
    """Makes the model of one run, round after round.

    `round` is the one in progress, or to be played next."""

    def __init__(
        self,
        plan: ServerPlan,
        initial: Vec,
        combiner: Combiner | None,
        span: Span,
        log: Log,
        record: Record,
        on_better: Callable[[Vec, Round, float], None] = lambda model, rounds, merit: None,
    ) -> None:
        self._plan, self._span, self._log, self._on_better = plan, span, log, on_better
        self._evaluated: dict[Round, Vec] = {}  # models that are evaluated, by the round after which they were made
        self.model, self.round = initial, 0
        self._channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        self._combiner = combiner or Mean(self._channel, uniform=plan.weighting == "uniform")
        self._downlink = Downlink(plan.layout, plan.run_id, plan.downlink)
        self._levels = ServerLevels.of(plan.codec)
        self._losses, self._examples = Losses(), ExampleClaims[NodeId]()
        self._reputation = Reputation(log)
        self.evaluations = Evaluations(plan, self._losses, log, record, self._found_better)
        self._records = BoardRecords(plan.layout, record) if plan.records_boards else None
        self._holds: dict[NodeId, tuple[Address, Round]] = {}  # the model that a board answered last, and from where
        self._far: Mapping[
            NodeId, float
        ] = {}  # whose update was turned away far beyond the others', and how many times
        self._sent: dict[str, Value] = {}  # what the record of the round in progress says of its frames
        self._empty_rounds = 0

    def resume(self, progress: Progress) -> None:
        """Go on from what an earlier process saved."""
        self.model, self.round = progress.model, progress.round
        self._combiner.restore(progress.strategy)
        self._levels = progress.levels
        self._examples.used(progress.examples)
        self.evaluations.resume(progress)
        if self._records is not None:
            self._records.resume(progress.records)
        if progress.reference is not None:
            self._downlink.resume(progress.reference, progress.round - 1, progress.corrections)
        self._note_evaluated()

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
            corrections=self._downlink.corrections,
            best=self.evaluations.best,
            since_best=self.evaluations.since_best,
            merits=dict(self.evaluations.merits),
        )

    # A round begins

    def instructions(self, idle: Mapping[NodeId, Address]) -> dict[Address, Train]:
        """Choose among the idle boards, and what each is sent; one of them, or where each has a
        test set of its own all, may be asked to evaluate the model it gets."""
        plan = self._plan
        trusted = self._reputation.trusted(list(idle), self.round, max(1, plan.min_nodes))
        count = wanted(plan.fraction, plan.min_nodes, len(plan.boards))
        some = sample([idle[name] for name in trusted], count, plan.seed, self.round)
        names = {address: name for name, address in idle.items()}
        with self._span("encode"):
            chosen = {names[address]: address for address in self._combiner.choose(self.round, self.model, some)}
            frames = self._frames(chosen)
        evaluators: Collection[NodeId] = ()
        if self.evaluations.wanted is not None and not plan.evaluates_itself and chosen:
            evaluators = self.evaluations.ask(sorted(chosen), self.round - 1)
        examples = plan.evaluation_examples
        return {
            address: Train(frames[name], examples if name in evaluators else None) for name, address in chosen.items()
        }

    def _frames(self, chosen: Mapping[NodeId, Address]) -> dict[NodeId, Frame]:
        """Encode what each board gets: the difference if it holds the model before, else the whole.

        Either is made once; beside it goes the board's own correction, if it has one."""
        aux = {} if self._levels is None else self._levels.aux()
        difference, whole = self._downlink.publish(self.model, self.round, aux), None
        frames: dict[NodeId, Frame] = {}
        for name, address in chosen.items():
            if difference is not None and self._holds.get(name) == (address, self.round - 1):
                frames[name] = difference
            else:
                whole = whole or self._downlink.whole(self.round, aux)
                frames[name] = whole
            if (correction := self._combiner.correction(name)) is not None:
                frames[name] = self._downlink.with_correction(frames[name], name, correction)
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
        values |= self._sent | {f"far/{name}": times for name, times in self._far.items()}
        ended = RoundEnded(self.round, self.model, values, tuple(share.name for share in shares))
        self.evaluations.after(self.round)
        self._note_evaluated()
        self.round += 1
        return ended

    def _note_evaluated(self) -> None:
        """Keep the model that is to be evaluated, and the one before, whose evaluation may be under
        way: should one be the best, it is wanted."""
        step = self.evaluations.wanted
        if self._plan.keeps_best and step is not None:
            self._evaluated = dict([*self._evaluated.items(), (step, self.model)][-2:])

    def _found_better(self, step: Round, merit: float) -> None:
        if not self._plan.keeps_best:
            return
        model = self._evaluated.get(step)
        if model is None and step == self.round - 1:
            model = self.model  # the final one, of a run that ended early
        if model is not None:
            self._on_better(model, step + 1, merit)

    def _checked(self, answers: Answers) -> Sequence[WeightedUpdate]:
        """Return updates that can be used, as far as can be said before they are decoded, in the
        order of names."""
        good, corrections = list[WeightedUpdate](), self._downlink.corrections
        for name in sorted(answers):
            address, answer = answers[name]
            try:
                if isinstance(answer, Failure):
                    self.evaluations.failed(name, "it went away" if answer.away else answer.reason)
                    if answer.away:
                        continue  # which is logged elsewhere
                    raise PeerError(answer.reason)
                if not isinstance(answer, BoardAnswer):
                    raise answer if isinstance(answer, PeerError) else PeerError("the answer is not to this question")
                self._holds[name] = (address, self.round)
                self.evaluations.answered(name, answer.evaluation)
                if not isinstance(answer.frame, (bytes, memoryview)):
                    raise answer.frame or PeerError("the answer has no update")
                frame = self._channel.check(answer.frame, Kind.UPDATE, self.round)
                require_reported(frame, self._levels is not None)
                good.append(WeightedUpdate(name, frame, frame.aux[Aux.EXAMPLES], address, corrections.get(name)))
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
        self._far = far_beyond(made.distances)
        for name, reason in made.refused.items():
            self._reputation.refused(name, reason)
        shares = [share for share in shares if share.name not in made.refused]
        if made.why:
            self._log("refused", f"round {self.round} changes nothing: {made.why}", what="round")
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
            if isinstance(answer, BoardAnswer):
                self.evaluations.answered(name, answer.evaluation)
        except PeerError as error:
            self._log("refused", f"refused a late answer of {name}: {error}", peer=name, what="late answer")

    def take_profile(self, name: NodeId, answer: Answer) -> None:
        """Take the profile of a board's earlier round, with an answer or its goodbye."""
        if self._records is None or not isinstance(answer, BoardAnswer):
            return
        if problem := self._records.answered(name, answer.profile):
            self._log("refused", f"refused the profile of {name}: {problem}", peer=name, what="profile")

    def end_records(self) -> None:
        """Write records of boards that have waited for a profile; name those whose data the model
        has nothing of."""
        for name in self._plan.boards:
            if name not in self._examples.claimed:
                self._log("unused", f"no update of {name} was ever used", peer=name)
        if self._records is not None:
            self._records.end()
