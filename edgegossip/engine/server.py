"""Decides what a coordinator does with its boards, without I/O.

Events and time go in, effects come out.

It has no clock, no thread and no connection. A driver owns those. It calls `start` once and then
`handle` with every event as it happens, carries out the effects that come back, in their order, and
calls `handle` with `TimePassed` when `wake_s` has come. Time is seconds of any clock that does not
go back. A driver is one loop:

    engine = ServerEngine(plan, initial)
    effects = engine.start(now(), progress)         # progress: of an earlier process, or None
    while True:
        for effect in effects:
            match effect:
                case Ask(questions): ...            # send each; its answer comes back as
                                                    Answered(number, ...)
                case Save(progress): ...            # keep it; durable before a later Ask is carried
                                                    out
                case Trained(model): ...            # hand the model over, then feed ModelKept()
                case EvaluateHere(model, n): ...    # then feed Evaluated(metrics)
                case Finished(): return
        event = wait_for_event(until=engine.wake_s) # TimePassed() where nothing happens until then
        effects = engine.handle(event, now())

What a driver promises:

- `PresenceReport` comes about every half second, with every board that the transport sees then. Who
  goes down, comes back or takes another's place is found out here, by comparing.
- What it finds at once is one event, `EventBatch`. A question that the transport cannot deliver is
  `Undelivered`; a process that it knows to have ended is `ProcessEnded`.
- Effects are carried out in their order, and a `Save` is durable before a later `Ask` goes out (as
  in etcd's raft). So whatever is asked twice after a crash is the round that was asked last, and a
  board that lives on has its answer at hand.
- Texts in events (names, reasons) come from the wire; the driver makes them printable. Everything
  else in them may be a lie: frames are checked here.
- An answer to a number that nobody waits for is fine, and ignored. So is the same answer twice.

A killed run goes on with `start(now_s, progress)` of the last `Save`. The combiner makes the next
model of a round's updates (`combine.py`); it is the only part that may hold state of its own, which
goes into `Progress` as arrays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from edgegossip import codecs
from edgegossip.engine.combine import Combiner
from edgegossip.engine.extensions import FEW, MOST, Extensions
from edgegossip.engine.server_boards import Address, Agreements, BoardPresence, Boards, OpenQuestion, OpenQuestions
from edgegossip.engine.server_evaluations import NO_TEST_SET
from edgegossip.engine.server_events import (
    Answer,
    Answered,
    Arriving,
    Ask,
    Better,
    BoardAnswer,
    Bye,
    Completed,
    Delivering,
    Effect,
    Evaluate,
    Evaluated,
    EvaluateHere,
    Event,
    EventBatch,
    Failure,
    Finished,
    Forget,
    Hello,
    Instruction,
    Joining,
    Log,
    ModelKept,
    PresenceReport,
    ProcessEnded,
    Question,
    Record,
    Save,
    ServerPlan,
    Stop,
    TimePassed,
    Trained,
    Undelivered,
)
from edgegossip.engine.server_frames import COORDINATOR, FULL, Downlink
from edgegossip.engine.server_records import Progress, Value
from edgegossip.engine.server_training import Span, Training
from edgegossip.frame import Frame
from edgegossip.types import EdgegossipError, Metrics, NodeId, PeerError, Round, RunError, Vec

REJOIN_S = 60.0  # for boards of a run that goes on: they ask for their coordinator all the time
REGATHER_S = 60.0  # for boards that all went away at once
HELLO_S = 30.0  # until a board that does not answer gets another hello; then twice as long each time
BYE_S = 3.0  # how long boards may take to say goodbye
ANNOUNCE_S = 5.0  # whoever waits says for whom, this often
# An answer whose round is over is waited for so many deadlines, or times the longest one so far
DEADLINES, LONGEST = 10, 4
LOOKS = 4  # in one deadline, at whether an answer goes on coming in
MOST_OVERDUE = 6  # from where on that is not doubled again
MAX_REPEATS = 10  # of a round whose boards all went away
ABSENCES = 3  # of one board that goes away whenever it is asked to evaluate the final model


@dataclass(slots=True)
class _Wait:
    """Times one wait: since when, and when it was last announced."""

    since_s: float
    announced_s: float
    short: bool = False  # whether it is one for boards to come back


@dataclass(slots=True)
class _Asking:
    """Holds the questions that the run waits for, and the answers that have come."""

    what: str
    numbers: frozenset[int]
    deadline_s: float
    enough: int  # answers that end the wait; 0: all
    until_s: float  # after the beginning of the wait
    then: Callable[[], bool]
    relied_on: frozenset[NodeId]  # for whom the wait goes on once anybody has answered
    moved_s: float = -math.inf  # when more of an answer came that is not whole yet
    late: bool = False  # few had answered by the deadline: half of the answers are waited for
    halved: bool = False  # they are there
    answers: dict[NodeId, tuple[Address, Answer]] = field(default_factory=dict)

    @property
    def heard(self) -> int:
        """Return how many boards have done what was asked. An error comes at once, and ends no
        wait for the others."""
        return sum(isinstance(answer, BoardAnswer) for _, answer in self.answers.values())

    @property
    def half(self) -> bool:
        """Whether half of the boards have: with fewer a round does not go on by itself, or one that
        is quick would play alone while the others are late together."""
        return 0 < len(self.numbers) <= 2 * self.heard


@dataclass(slots=True)
class _FinalEvaluation:
    """Follows the search for boards that evaluate the final model."""

    frame: Frame
    faults: dict[NodeId, str]
    everywhere: bool  # all boards are asked next, not one
    absences: Counter[NodeId] = field(default_factory=Counter)
    names: list[NodeId] = field(default_factory=list)  # who has been asked


class ServerEngine:
    """Leads one run, from the first board that joins to the last that has said goodbye.

    `initial` float32[n] is the model of round 0. `combiner` makes models of updates; the streaming
    mean by default. `span(part)` is entered around encoding and decoding, for a driver that
    accounts for its seconds. Not thread-safe. Rounds are 0-based.

    `wake_s`: when `handle` wants to be called at the latest, in the clock of `now_s`; inf: only
    with events. `over`: `Finished` has been returned."""

    def __init__(
        self, plan: ServerPlan, initial: Vec, combiner: Combiner | None = None, span: Span = lambda part: nullcontext()
    ) -> None:
        plan.layout.check(initial)
        self._plan = plan
        self._training = Training(plan, initial, combiner, span, self._log, self._record, self._on_better)
        self._evaluations = self._training.evaluations
        self._boards = Boards(plan.boards, min(plan.min_nodes, len(plan.boards)), plan.return_s)
        self._agreements = Agreements(plan.agreement)
        self._open = OpenQuestions(self._boards)
        self._tries = 0  # of the round in progress
        self._join_s = plan.join_s
        self._resumed = False

        self._now_s = 0.0
        self.wake_s = math.inf
        self.over = False
        self._effects: list[Effect] = []
        self._phase: Callable[[], bool] = self._gathering
        self._wait = _Wait(0.0, 0.0)
        self._asking: _Asking | None = None
        self._extensions = Extensions()
        self._evaluated: Metrics | None = None  # by the driver
        self._parting: Frame | None = None  # the final model, which goes out with the goodbye
        self._kept = False  # the final model is
        self._final: _FinalEvaluation | None = None
        self._byes: frozenset[int] = frozenset()
        self._words = ""  # with which the run ended
        self._error: EdgegossipError | None = None
        self._failed = False

    @property
    def lost(self) -> dict[NodeId, str]:
        """Boards that are down at this moment, and why."""
        return dict(self._boards.lost)

    @property
    def leaving(self) -> bool:
        """Whether boards have been asked to leave: the run is over."""
        return self._phase in (self._leaving, self._ended)

    @property
    def round(self) -> Round:
        """The round in progress, or to be played next."""
        return self._training.round

    @property
    def model(self) -> Vec:
        """The coordinator's model, float32[n]; not to be written to."""
        return self._training.model

    def start(self, now_s: float, progress: Progress | None = None) -> list[Effect]:
        """Begin, or go on from what an earlier process saved. Call once, before `handle`."""
        if progress is not None:
            self._resumed, self._join_s = True, min(self._join_s, REJOIN_S)
            self._training.resume(progress)
            self._agreements.resume(progress.agreement)
        self._wait = _Wait(now_s, now_s)
        return self.handle(TimePassed(), now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what is to be done, in this order.

        Never raises what a board has caused."""
        self._now_s, self.wake_s, self._effects = now_s, math.inf, []
        try:
            self._take(event)
            if not self.leaving:
                self._give_up()
                self._check_enough()
            while self._phase():
                pass
        except EdgegossipError as error:
            self._give_in(error)
            while self._phase():
                pass
        return self._effects

    # Phases. Each is called after every event, and returns whether there is more to do now: with
    # True it has moved on to another phase, with False it waits. The way through them:
    #
    #   gathering
    #   each round:   waiting_for_boards (<-> evaluating_here) -> waiting_for_answers -> round ends
    #                 where all went away: -> regathering -> waiting_for_boards
    #   the model:    handing_over
    #                 -> evaluating_at_last, or looking_for_evaluator <-> waiting_for_answers
    #   the end:      leaving -> ended
    #
    # A RunError leads to leaving from any phase. In the final evaluation the model is safe already:
    # there it is the evaluation that is missing, and the run is complete.

    def _go(self, phase: Callable[[], bool], *, short: bool = False) -> bool:
        self._phase, self._wait = phase, _Wait(self._now_s, self._now_s, short)
        return True

    def _gathering(self) -> bool:
        """Wait for every board to join; after a while go on without those that have not."""
        if missing := self._boards.not_joined():
            if not self._passed(self._wait.since_s + self._join_s):
                count = len(self._boards.expected)
                names = ",".join(missing)
                self._announce(f"waiting {count - len(missing)}/{count}: missing {', '.join(missing)}", names)
                return False
            for name in missing:
                self._absent_from_start(name, f"it did not join within {self._join_s:g} s")
        for name, problem in self._agreements.settle(self._boards.expected).items():
            self._dismiss(name, problem)
        self._phase = self._waiting_for_boards  # nobody is joining any more: now there must be enough
        self._check_enough()
        begins = f"training goes on in round {self.round}" if self._resumed else "training starts"
        self._log("started", f"{begins} with {', '.join(m.name for m in self._boards.up())}")
        return self._next_round()

    def _next_round(self) -> bool:
        self._tries = 0
        if self.round < self._plan.rounds and not self._evaluations.exhausted:
            return self._go(self._waiting_for_boards)
        if self.round < self._plan.rounds and self._evaluations.best is not None:
            best, patience = self._evaluations.best[1] + 1, self._plan.patience
            text = f"training ends after round {self.round}: no evaluation was better than that after round {best} for so long"
            self._log("ended-early", f"{text} (evaluation.patience = {patience})", rounds=str(self.round))
        self._effects.append(Trained(self.model))
        return self._go(self._handing_over)

    def _waiting_for_boards(self) -> bool:
        """Wait until enough boards can take work; stragglers are waited for as any answer is."""
        if len(self._boards.idle()) >= self._boards.least:
            self._evaluations.look(self._boards)
            if self._plan.evaluates_itself and self._evaluations.wanted is not None:
                self._effects.append(EvaluateHere(self.model, self._plan.evaluation_examples or None))
                return self._go(self._evaluating_here)
            return self._ask_round()
        short = self._boards.short
        if short != self._wait.short:
            self._go(self._waiting_for_boards, short=short)  # another wait: with its own patience
        busy = self._boards.busy_names()
        if not short and self._passed(self._wait.since_s + self._patience_s):
            words = f"too few boards answer: {busy} have been busy for more than {self._patience_s:g} s"
            raise RunError(f"{words}; {self._too_short}")
        names = ", ".join(self._boards.absent) if short else busy
        self._announce(f"waiting for {names} to {'come back' if short else 'answer'} for {self._waited_s:.0f} s", names)
        return False

    def _evaluating_here(self) -> bool:
        if self._evaluated is None:
            return False
        self._evaluations.found(self._evaluated)
        self._evaluated = None
        return self._go(self._waiting_for_boards)

    def _ask_round(self) -> bool:
        instructions = self._training.instructions({m.name: m.address for m in self._boards.idle()})
        what = f"round {self.round}"
        asks = self._ask_and_wait(instructions, what, self._plan.deadline_s, self._plan.quorum, self._round_answered)
        assert self._asking is not None
        self._asking.relied_on = self._boards.relied_on(self._asking.relied_on)
        return asks

    def _ask_and_wait(
        self,
        instructions: Mapping[Address, Instruction],
        what: str,
        deadline_s: float,
        enough: int,
        then: Callable[[], bool],
    ) -> bool:
        """Ask, and wait for answers until the deadline, or until `enough` (0: all) have come;
        `then` says how it goes on."""
        numbers = self._ask(instructions, what)
        self._extensions.begin()
        names = frozenset(self._open.waited_for(numbers))
        self._asking = _Asking(what, numbers, deadline_s, enough, deadline_s, then, names)
        return self._go(self._waiting_for_answers)

    def _waiting_for_answers(self) -> bool:
        asking = self._asking
        assert asking is not None
        if asking.half and not asking.halved:
            # The others get one more deadline where these were late, and else as long again.
            more_s = self._plan.deadline_s if asking.late else max(self._plan.deadline_s, self._waited_s)
            until_s = round(self._waited_s + more_s, 2)
            asking.until_s = until_s if asking.late else min(asking.until_s, until_s)
            asking.late, asking.halved = False, True
        if not (waiting := self._open.waited_for(asking.numbers)):
            return asking.then()
        names = ", ".join(waiting)
        enough = asking.enough and asking.heard >= asking.enough
        if enough or (asking.half and asking.relied_on.isdisjoint(waiting)):
            text = f"{asking.what}: went on with {asking.heard} answers, without {names}"
            self._log("stragglers", text, missing=names)
            return asking.then()
        look_s = asking.deadline_s / LOOKS
        if self._now_s - asking.moved_s <= look_s:
            self._extend(asking, round(self._waited_s + look_s, 2))
        if self._passed(self._wait.since_s + asking.until_s):
            if not asking.half and not asking.late and self._patience_s > asking.until_s:
                # Boards that are slower than the deadline would never train: wait for half of them
                # as long as any is waited for.
                asking.late, asking.until_s = True, self._patience_s
                who = f"{asking.heard} of {len(asking.numbers)} boards" if asking.heard else "nobody"
                words = f"{asking.what}: {who} answered within {asking.deadline_s:g} s; waiting for {names}"
                self._log("waiting", f"{words}: {self._too_short}", missing=names)
                self._wake(self._wait.since_s + asking.until_s)
                return False
            for name in waiting:
                reason = f"no answer for {asking.until_s:g} s"
                self._log("suspect", f"{asking.what}: went on without {name}: {reason}", peer=name)
            self._boards.missed(asking.relied_on.intersection(waiting))
            return asking.then()
        self._announce(f"{asking.what}: waiting for {names} for {self._waited_s:.0f} s", names)
        return False

    def _delivering(self) -> None:
        """Count the deadline anew: a board that is still taking in its question cannot be at
        work."""
        asking = self._asking
        if asking is not None and self._phase == self._waiting_for_answers and not asking.late:
            self._extend(asking, round(self._waited_s + asking.deadline_s, 2))

    def _extend(self, asking: _Asking, until_s: float) -> None:
        """Wait longer, if that is not for few of the boards again and again."""
        few = 2 * len(asking.answers) >= len(asking.numbers)
        until_s = min(until_s, (FEW if few else MOST) * self._plan.deadline_s)
        if until_s > asking.until_s and self._extensions.allow(few):
            asking.until_s = until_s

    def _answers(self) -> dict[NodeId, tuple[Address, Answer]]:
        """End the wait for answers; return those that came."""
        assert self._asking is not None
        answers, self._asking = self._asking.answers, None
        return answers

    def _round_answered(self) -> bool:
        answers = self._answers()
        if not answers and not self._boards.busy_names():
            # All went away before they had answered: they are asked again when they are back.
            self._tries += 1
            if self._tries < MAX_REPEATS:
                return self._go(self._regathering)
        self._effects.append(self._training.end_round(answers, self._no_answer))
        common = self._agreements.common
        self._effects.append(Save(replace(self._training.progress(), agreement=common)))
        # The driver may save while the next round is encoded: that happens in the next call.
        self._wake(self._now_s)
        self._next_round()
        return False

    def _regathering(self) -> bool:
        """Wait for all boards that went away at once, as in a power cut, and not only for the first
        that is back."""
        if self._boards.absent and not self._passed(self._wait.since_s + min(REGATHER_S, self._plan.return_s)):
            return False
        return self._go(self._waiting_for_boards)

    def _handing_over(self) -> bool:
        """Wait until the driver has kept the final model, whatever happens to boards meanwhile."""
        if not self._kept:
            return False
        self._evaluations.end()
        frame = None
        if self._plan.hands_out_model or not self._plan.evaluates_itself:
            final = Downlink(self._plan.layout, self._plan.run_id, codecs.get(FULL))
            final.publish(self.model, self.round)
            frame = final.whole(self.round)
        if self._plan.hands_out_model:
            self._parting = frame
        if self._plan.evaluates_itself:
            self._effects.append(EvaluateHere(self.model, None))
            return self._go(self._evaluating_at_last)
        assert frame is not None
        self._final = _FinalEvaluation(frame, dict(self._evaluations.without), self._plan.evaluates_everywhere)
        return self._go(self._looking_for_evaluator)

    def _evaluating_at_last(self) -> bool:
        if self._evaluated is None:
            return False
        self._evaluations.record(self.round - 1, self._evaluated)
        return self._complete()

    def _looking_for_evaluator(self) -> bool:
        """Have the final model evaluated, which is safe by then: by all boards where each has a
        test set of its own. Where nobody did, one after the other is asked, until one has."""
        final = self._final
        assert final is not None
        up = [m for m in self._boards.up() if m.name not in final.faults]
        if ready := {m.name: m.address for m in up if not m.busy}:
            final.names = list(ready) if final.everywhere else [self._evaluations.next_board(list(ready))]
            final.everywhere = False
            instructions = {ready[name]: Evaluate(final.frame) for name in final.names}
            return self._ask_and_wait(instructions, "final evaluation", self._patience_s, 0, self._evaluator_answered)
        # Busy boards are waited for as any answer is, absent ones for `return_s`.
        names = [m.name for m in up] or [n for n in self._boards.absent if n not in final.faults]
        if not names or self._passed(self._wait.since_s + (self._patience_s if up else self._plan.return_s)):
            return self._not_evaluated(final.faults or {COORDINATOR: "no board is there"})
        missing = ", ".join(names)
        self._announce(f"waiting for {missing} for {self._waited_s:.0f} s", missing)
        return False

    def _evaluator_answered(self) -> bool:
        final, asking, found = self._final, self._asking, dict[NodeId, Metrics]()
        assert final is not None and asking is not None
        answers = self._answers()
        for name in sorted(final.names):
            answer = answers.get(name, (0, None))[1]
            metrics, reason = self._evaluation_in(answer)
            if metrics is not None:
                found[name] = metrics
                continue
            if answer is None and (member := self._boards.by_name(name)) is not None and member.busy:
                reason = f"no answer for {asking.deadline_s:g} s"
            final.absences[name] += 1
            if reason:
                final.faults[name] = reason
            elif final.absences[name] >= ABSENCES:  # it went away, and may come back: but not for ever
                final.faults[name] = "it went away"
        if not found:
            return self._go(self._looking_for_evaluator)
        if not self._plan.evaluates_everywhere:
            ((name, metrics),) = found.items()
            self._evaluations.record(self.round - 1, metrics, name)
            return self._complete()
        if faults := {n: reason for n, reason in final.faults.items() if n not in self._evaluations.without}:
            said = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
            self._log("not-evaluated", f"the final evaluation is without {said}", missing=",".join(faults))
        self._evaluations.record_all(self.round - 1, found)
        return self._complete()

    def _evaluation_in(self, answer: Answer | None) -> tuple[Metrics | None, str]:
        """Return what an answer found, or why it found nothing; "" of a board that went away."""
        if isinstance(answer, BoardAnswer):
            try:
                found = self._evaluations.checked(answer.evaluation)
            except PeerError as error:
                return None, str(error)
            if found is not None and found.examples:
                return found, ""
            return None, "its answer has no evaluation" if found is None else NO_TEST_SET
        if isinstance(answer, Failure):
            return None, "" if answer.away else answer.reason
        return None, "" if answer is None else "its answer is not to this question"

    def _not_evaluated(self, faults: Mapping[NodeId, str]) -> bool:
        self._evaluations.missing(self.round - 1, faults.items())
        return self._complete()

    def _complete(self) -> bool:
        self._final = None
        self._effects.append(Completed())
        return self._say_goodbye("the run is complete")

    def _give_in(self, error: EdgegossipError) -> None:
        """End the run, which cannot go on; in the final evaluation, go without it."""
        if self._final is not None:
            self._not_evaluated({**self._final.faults, COORDINATOR: str(error)})
        else:
            self._error, self._failed = error, True
            self._say_goodbye(f"the run failed: {error}")

    def _say_goodbye(self, words: str) -> bool:
        """Tell every board that the run is over, and give them a moment to hear it."""
        self._asking = self._final = None
        self._words = words
        if self._failed:
            self._parting = None
        self._byes = self._ask({m.address: Bye(words, self._failed, self._parting) for m in self._boards.up()}, "bye")
        return self._go(self._leaving)

    def _leaving(self) -> bool:
        # Nobody looks who is alive any more: whoever has heard the goodbye leaves.
        longest_s = BYE_S if self._parting is None else max(self._plan.deadline_s, self._open.typical_s)
        patience_s = max(BYE_S, longest_s)
        if self._open.waited_for(self._byes) and not self._passed(self._wait.since_s + patience_s):
            return False
        if not self._failed:
            self._training.end_records()
            self._log("finished", "coordinator finished")
        self._effects.append(Finished(self._error))
        self.over = True
        return self._go(self._ended)

    def _ended(self) -> bool:
        return False

    # Events

    def _take(self, event: Event) -> None:
        match event:
            case EventBatch(events):
                for one in events:
                    self._take(one)
            case Answered(number, answer):
                self._answered(number, answer)
            case Arriving(numbers):
                if self._asking is not None and numbers & self._asking.numbers:
                    self._asking.moved_s = self._now_s
            case Delivering():
                self._delivering()
            case Undelivered(number):
                self._open.close(number)
            case Evaluated(metrics):
                self._evaluated = metrics
            case ModelKept():
                self._kept = True
        if self.leaving:
            return
        match event:
            case Stop(words):
                self._failed = True
                self._say_goodbye(words)
            case PresenceReport(boards):
                self._see(boards)
            case ProcessEnded(name, reason):
                if self._boards.ended(name, reason):
                    self._down(name, reason)

    def _see(self, boards: Iterable[BoardPresence]) -> None:
        """Compare who is there with who was; say hello to strangers."""
        boards = tuple(boards)
        present = {board.address for board in boards}
        # A stranger that is gone does not answer, and its process does not come back by that
        # address.
        self._drop(lambda sent: sent.what in ("hello", "bye") and sent.address not in present)
        changes, strangers = self._boards.observe(boards)
        for change in changes:
            if change.up:
                self._log("peer-up", f"{change.name} is back", peer=change.name)
            else:
                self._down(change.name, change.reason)
        # A hello may be lost on its way, or its answer. One that is slow still counts when it
        # comes.
        unanswered = self._open.unanswered_hellos()
        due = (address for address in strangers if self._now_s >= _next_hello_s(unanswered.get(address, ())))
        self._ask({address: Hello(self.round) for address in due}, "hello")

    def _absent_from_start(self, name: NodeId, reason: str) -> None:
        self._boards.absent_from_start(name, reason)
        self._down(name, reason)

    def _down(self, name: NodeId, reason: str) -> None:
        self._drop(lambda sent: sent.name == name)
        self._log("peer-down", f"lost {name}: {reason}", peer=name)

    def _drop(self, which: Callable[[OpenQuestion], bool]) -> None:
        """Wait for these answers no more. A board that a round relied on until it was gone has let
        it wait in vain, as with a deadline: it may come and go."""
        dropped = self._open.drop(which)
        self._effects.extend(Forget(sent.number) for sent in dropped)
        if (asking := self._asking) is not None:
            names = {sent.name for sent in dropped if sent.number in asking.numbers}
            self._boards.missed(names & asking.relied_on)

    def _answered(self, number: int, answer: Answer) -> None:
        sent = self._open.get(number)
        if sent is None:
            return  # it came twice, or nobody waits for it any more
        self._open.close(number)
        member = self._boards.by_address(sent.address)
        if member is not None and not member.busy:
            member.overdue = 0
        if sent.what == "hello":
            self._drop(lambda other: other.what == "hello" and other.address == sent.address)
            self._joined(sent.address, number, answer)
        elif sent.what == "bye":
            self._training.take_profile(sent.name, answer)
        else:
            if member is None or self.leaving:
                return  # another process has taken its place, or the run is over
            went_away = isinstance(answer, Failure) and answer.away
            if not went_away:
                self._boards.answered(member.name)
            if self._asking is not None and number in self._asking.numbers:
                self._asking.answers[member.name] = (sent.address, answer)
                if went_away:
                    self._boards.missed(self._asking.relied_on & {member.name})
                if not isinstance(answer, Failure):  # one that comes late says nothing of what others need
                    self._open.took(member.name, self._now_s - sent.at_s)
            else:
                self._training.take_late(member.name, answer)

    def _joined(self, address: Address, hello: int, answer: Answer) -> None:
        """Take in a stranger that has answered a hello, or refuse it."""
        if isinstance(answer, Failure) and answer.away:
            return  # it was so busy getting ready that it was taken for gone: it gets another hello when it beats
        try:
            if isinstance(answer, Failure):
                raise PeerError(f"it cannot take part: {answer.reason}")
            if not isinstance(answer, Joining):
                raise answer if isinstance(answer, PeerError) else PeerError("it did not answer the hello")
            name = answer.name
            if self._plan.certified and answer.identity != name:
                real = answer.identity or "nobody any more"
                raise PeerError(f"it says that it is {name}, but its certificate is that of {real}")
            if answer.problem:
                self._cannot_take_part(address, name, answer.problem)
                return
            if problem := self._disagreement(name, answer.agreement):
                self._cannot_take_part(address, name, problem)
                self._ask({address: Bye(f"{name} cannot take part: {problem}", failed=True)}, "bye")
                return
            replaced = self._boards.admit(address, name, hello)
        except PeerError as error:
            self._boards.refuse(address)
            self._log("refused", f"refused a board: {error}", what="board")
            self._ask({address: Bye(str(error), failed=True)}, "bye")
            return
        if replaced is not None:
            # Nobody is left to answer what the process before was asked.
            self._drop(lambda sent: sent.address == replaced)
            self._ask({replaced: Bye(f"another board has joined as {name}", failed=True)}, "bye")
        if replaced == address:
            return
        self._log("joined", f"{name} joined", peer=name)
        if self.leaving:  # it got a hello before the end, and would wait for ever
            self._byes |= self._ask({address: Bye(self._words, self._failed, self._parting)}, "bye")

    def _disagreement(self, name: NodeId, said: str) -> str:
        """Return why a board that joins does not fit; "" where it does, as far as it is decided."""
        if name not in self._boards.expected:
            return ""  # it is not one of ours, and nothing that it says counts
        try:
            self._agreements.take(name, said)
        except PeerError as error:
            return str(error)
        return ""

    def _cannot_take_part(self, address: Address, name: NodeId, problem: str) -> None:
        """Go on without a board, and say why."""
        self._boards.refuse(address)
        if self._phase == self._gathering and name in self._boards.not_joined():
            self._absent_from_start(name, problem)
        self._log("refused", f"{name} cannot take part: {problem}", peer=name, what="data")

    def _dismiss(self, name: NodeId, problem: str) -> None:
        """Go on without a board that has joined and does not fit, and tell it why."""
        self._log("refused", f"{name} cannot take part: {problem}", peer=name, what="data")
        board = self._boards.by_name(name)
        if self._boards.ended(name, problem) and board is not None:
            self._down(name, problem)
            self._ask({board.address: Bye(f"{name} cannot take part: {problem}", failed=True)}, "bye")

    def _give_up(self) -> None:
        """Give up on answers that do not come although their boards are alive: lost on their way,
        or never made.

        Those boards are asked again; where that happens again and again, after twice the time each
        time."""
        current = frozenset[int]() if self._asking is None else self._asking.numbers
        for member in self._boards.up():
            sent = self._open.get(member.busy)
            if sent is None or member.busy in current:
                continue
            patience_s = self._patience_s * 2 ** min(member.overdue, MOST_OVERDUE)
            if self._passed(sent.at_s + patience_s):
                self._open.close(sent.number)
                self._effects.append(Forget(sent.number))
                member.overdue += 1
                reason = f"it is alive, and its answer has not come for {patience_s:g} s; it is asked again"
                text = f"{sent.what}: gave up on {sent.name}: {reason}"
                self._log("refused", text, peer=sent.name, what="silence", waited_s=patience_s)

    def _check_enough(self) -> None:
        """Raise RunError when too few boards are left, and have been for too long."""
        if self._phase in (self._handing_over, self._evaluating_at_last):
            return  # nobody but the driver is waited for
        joining = len(self._boards.not_joined()) if self._phase == self._gathering else 0
        self._wake(self._boards.check(self._now_s, joining))

    # Questions, time and words

    def _ask(self, instructions: Mapping[Address, Instruction], what: str) -> frozenset[int]:
        """Send one question a board; return the questions' numbers."""
        questions = []
        for address, instruction in instructions.items():
            sent = self._open.send(address, what, self._now_s)
            questions.append(Question(sent.number, address, sent.name, instruction))
        if questions:
            self._effects.append(Ask(tuple(questions)))
        return frozenset(question.number for question in questions)

    @property
    def _patience_s(self) -> float:
        """The seconds that an answer is waited for that no round waits for."""
        return max(DEADLINES * self._plan.deadline_s, LONGEST * self._open.typical_s)

    @property
    def _too_short(self) -> str:
        return f"they hang, or server.deadline_s = {self._plan.deadline_s:g} is too short for them"

    @property
    def _no_answer(self) -> str:
        busy = self._boards.busy_names()
        if not busy:
            return "all boards went away before they had answered"
        return f"nobody answered, although {busy} are alive: {self._too_short}"

    @property
    def _waited_s(self) -> float:
        return self._now_s - self._wait.since_s

    def _passed(self, at_s: float) -> bool:
        """Tell whether it is that late; where it is not, see to it that it will be noticed."""
        if self._now_s >= at_s:
            return True
        self._wake(at_s)
        return False

    def _wake(self, at_s: float) -> None:
        self.wake_s = min(self.wake_s, at_s)

    def _announce(self, text: str, missing: str) -> None:
        """Log for whom the run waits, every ANNOUNCE_S."""
        if self._now_s >= self._wait.announced_s + ANNOUNCE_S:
            self._wait.announced_s = self._now_s
            self._log("waiting", text, missing=missing)
        self._wake(self._wait.announced_s + ANNOUNCE_S)

    def _log(self, event: str, text: str, **fields: Any) -> None:
        self._effects.append(Log(event, text, fields))

    def _on_better(self, model: Vec, rounds: Round, merit: float) -> None:
        self._effects.append(Better(model, rounds, merit))

    def _record(self, node: NodeId, round: Round, values: Mapping[str, Value]) -> None:
        self._effects.append(Record(node, round, values))


def _next_hello_s(unanswered: Sequence[float]) -> float:
    """Return from when on a stranger gets a hello (again), by when it got those before."""
    return unanswered[-1] + HELLO_S * 2 ** (len(unanswered) - 1) if unanswered else -math.inf
