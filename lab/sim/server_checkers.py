"""A second set of books about a server run: what must hold whatever boards, messages, disks and the
coordinator do.

The ledger sees what the coordinator's driver sees: every event that goes into the engine, with what
is true about it (which board sent an answer, and whether it lied), and every effect that comes out.
From these it keeps by itself who is there, who owes an answer, what each model is made of, and what
the next one must be. It shares with the engine only codecs and frames."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_high, median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import frame as wire
from edgegossip.codecs.base import Ctx
from edgegossip.codecs.levels import LevelRule, levels_for, smooth_loss
from edgegossip.engine.scaffold import TURNS, way_of
from edgegossip.engine.server_events import (
    Answer,
    Answered,
    Ask,
    BoardAnswer,
    Bye,
    Completed,
    Effect,
    Evaluate,
    Event,
    Failure,
    Finished,
    Forget,
    Hello,
    Joining,
    Log,
    ModelKept,
    PresenceReport,
    ProcessEnded,
    Question,
    Record,
    RoundEnded,
    Save,
    ServerPlan,
    Stop,
    Train,
    Trained,
    Undelivered,
)
from edgegossip.engine.server_records import Progress
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import EdgegossipError, NodeId, Round, Vec
from lab.sim.checkers import Choices

MOMENTUM = 0.9  # of the combiner `momentum`
SILENT_S = 6.0  # without a sign of life, after which a board is down
PATIENCE = 10, 4  # deadlines, or times the median board's longest answer, that an answer is waited for
REJOIN_S = 60.0
AWAY = "Node Unavailable"  # what the transport answers in place of a board that is silent
FAILED = "the run failed: "  # how the goodbye of a run begins that did
HELLO_S = 60.0  # how long a board may wait for a second Hello, where the first was lost
SLACK_S = 5.0
NEAR = 1e-4  # how far float32 sums may be from float64's, relative to the largest value
CODED = 0.9  # of a change of a correction that the codec of the way down may lose, at most
FEW, MANY = 2, 64  # rounds that a board is left out: the first time, and at most
CAUSES_SILENCE = frozenset(
    (
        "loss",
        "delay",
        "split",
        "crash",
        "empty-disk",
        "pause",
        "late-join",
        "leave",
        "fleet-away",
        "slow",
        "hang",
        "other-layout",
        "other-labels",
        "coordinator-pause",
        "coordinator-kill",
        "coordinator-power-cut",
        "byzantine-name",
        "coordinator-torn-write",
        "coordinator-lost-write",
    )
)

SERVER_RULES: Mapping[str, str] = {
    "crash": "the engine raises nothing",
    "finite": "models are finite",
    "rounds": "rounds are played one after the other, and after a restart from where the newest file says",
    "saved": "a round is saved when it ends, and durable before the next one is asked for",
    "asked": "a round asks as many idle and trusted boards as it should, each for one thing at a time",
    "reference": "boards train from the model that the coordinator means, with the same number of levels",
    "ends": "a round ends with all answers, with enough of them, or at the deadline: not before and not after",
    "used": "a model is made of all good answers of its round, and of nothing else",
    "mean": "the model is what its combiner makes of those updates",
    "control": "each board is sent the weighted mean of all control variates less its own, whatever was lost or refused",
    "accepted": "no lie is part of a model that the rules promise to refuse, and nobody joins by another's name",
    "agreement": "boards that do not train the same do not train together: the most decide, others are told",
    "refused": "no honest update is refused, unless a liar's claims make it look out of proportion",
    "presence": "who gives signs of life is there, who does not is not; new ones are sent a Hello",
    "evaluated": "evaluations are of the model that they name; the final one is found where a board can make it",
    "records": "a board's record of a round says what its update said, once",
    "progress": "nobody is waited for beyond what deadlines promise",
    "goodbye": "in the end all boards hear that it is over",
    "failed": "a run fails only for a reason, and says which",
    "patience": "who does not answer is asked again after twice as long each time",
    "fair": "no board is chosen more often than others",
    "memory": "a board is asked for one thing at a time, and nothing is kept of those that are gone",
}


@dataclass(frozen=True, slots=True)
class Note:
    """Says what is true about an answer: whose it is, its number at the transport, and which lie
    it holds, if any."""

    name: NodeId
    node: int
    lie: str = ""
    data: str = ""  # which wrong data it has; "": the right ones
    corrected: int = 0  # checksum of the correction that its board holds; 0: none


@dataclass(slots=True)
class OpenQuestion:
    """Is a question that waits for its answer."""

    question: Question
    at_s: float

    @property
    def works(self) -> bool:
        """Tell whether the board trains or evaluates for it."""
        return isinstance(self.question.instruction, Train | Evaluate)


@dataclass(slots=True)
class OpenRound:
    """Is a round that is under way."""

    at_s: float
    numbers: dict[int, NodeId]
    answers: dict[NodeId, tuple[Answer, Note]] = field(default_factory=dict)
    half_s: float = math.inf  # when half of the boards had done their work
    late: bool = False  # they had not by the deadline
    relied_on: frozenset[NodeId] = frozenset()  # who has not cost too many deadlines before

    @property
    def heard(self) -> int:
        """Return how many have done their work: an error is none."""
        return sum(isinstance(answer, BoardAnswer) for answer, _ in self.answers.values())

    @property
    def half(self) -> bool:
        """Tell whether half have."""
        return 0 < len(self.numbers) <= 2 * self.heard

    def wants(self, waiting: Iterable[int]) -> set[NodeId]:
        """Return who of those that have not answered is worth the wait, once half have done their
        work."""
        names = {self.numbers[number] for number in waiting}
        return names & self.relied_on if self.half else names


@dataclass(frozen=True, slots=True)
class LevelState:
    """Holds ElastiCL's state, as long as it can be told without knowing how liars are held back."""

    known: bool = True
    loss: float | None = None
    first: tuple[float, float] = (0.0, 0.0)
    levels: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """Holds the run before a round: all that decides what comes next."""

    model: Vec
    velocity: NDArray[np.float64]
    levels: LevelState
    claimed: Mapping[NodeId, float] = field(default_factory=dict)
    controls: Mapping[NodeId, NDArray[np.float64]] = field(default_factory=dict)  # SCAFFOLD's c_i
    since: Mapping[NodeId, int] = field(default_factory=dict)  # updates used since a board's own, of those heard
    corrections: Mapping[NodeId, Vec] = field(default_factory=dict)  # that boards were sent last


@dataclass(slots=True)
class Suspension:
    """Counts how often a board was refused, and says until which round it is left out."""

    in_a_row: int = 0
    times: int = 0
    until: Round = 0


class Ledger:
    """Keeps books about a server run: `violate(rule, board or None, text)` hears what is wrong,
    `evaluate(x)` gives the loss of a model on test data."""

    def __init__(
        self,
        plan: ServerPlan,
        combiner: str,
        initial: Vec,
        faults: frozenset[str],
        calm_s: float,
        evaluate: Callable[[Vec], float],
        violate: Callable[[str, NodeId | None, str], None],
    ) -> None:
        self._plan, self._momentum, self._faults, self._calm_s = plan, combiner == "momentum", faults, calm_s
        self._evaluate, self._violate = evaluate, violate
        self._controlled, self._way = combiner == "scaffold", way_of(plan.codec, plan.layout.size)
        self._limits = wire.Limits.of(plan.layout)
        self._least = min(plan.min_nodes, len(plan.boards))
        self._wanted = max(math.ceil(plan.fraction * len(plan.boards) - 1e-9), plan.min_nodes)
        self._compresses = plan.downlink.name != "fp32"
        self._levelled = plan.codec.name == "elasticl"
        start = LevelState(levels=getattr(plan.codec, "s0", 0))
        self._start = RunState(initial, np.zeros(initial.size), start)
        self.chain: list[RunState] = [self._start]
        self.durable: Round = 0  # round of the newest file that is sure to be there
        self.broken = False  # whether a disk lost what it had promised to keep
        # What boards trained from, by round and model
        self._references: dict[tuple[Round, int], int] = {}
        # The next model, by updates and what they change
        self._made: dict[tuple[Any, ...], int] = {}
        self.lied = False  # whether anybody has
        self._evaluation_lies = False
        self.completed = self.stopped = False
        self.final: Vec | None = None
        self.used_updates = 0
        self._choices, self._chosen_in = Choices(), set[Round]()  # of boards; and in which rounds some were chosen
        self.looked = {"crash", "progress"}  # rules that had something to look at
        self._resumed = False
        self._alike: dict[Round, str | None] = {}  # data of those that had joined, when a round was saved
        self._begin(0.0)

    # Processes of the coordinator

    def _begin(self, now_s: float) -> None:
        """Forget all that a process knows."""
        self.up: dict[NodeId, int] = {}  # who is there, by the transport's number
        self._nodes: dict[int, NodeId] = {}  # boards that have joined, while the number counts
        self._ignored: set[int] = set()
        self._lost: set[NodeId] = set()
        self._ended: set[NodeId] = set()
        self._ended_now: set[NodeId] = set()  # of the events that the engine gets together
        self._open: dict[int, OpenQuestion] = {}
        self._last = 0
        self._asking: OpenRound | None = None
        self._gathering = True
        self._holds: dict[NodeId, tuple[int, Round]] = {}
        self._reference: tuple[Round, Vec] | None = None
        self._corrections: dict[NodeId, Vec] = {}  # of this round
        self._suspensions: dict[NodeId, Suspension] = {}
        self._refused: set[NodeId] = set()  # in this round
        self._joining: list[tuple[NodeId, Note]] = []  # names that strangers have just said
        self._data: dict[NodeId, str] = {}  # of boards that joined
        self._before: str | None = None  # data of those that had joined an earlier process
        self._untold: set[int] = set()  # who was just refused for its data
        self._dismissed: set[NodeId] = set()  # who had joined, and is not among those that begin
        self._seen: dict[int, float] = {}  # silent seconds of those for whom that counts
        self._silent: set[int] = set()
        self._mark_s = now_s
        self._longest_s: dict[NodeId, float] = {}
        self._given_up: dict[NodeId, int] = {}  # how often a board's answer was
        self._gave_up_s: dict[NodeId, float] = {}  # after how long, the last time
        self._unanswered: dict[NodeId, bool] = {}  # whether it has answered nothing since
        self._missed: dict[NodeId, tuple[int, int]] = {}  # waits that it cost; its answers since
        self._overdue: dict[int, float] = {}  # questions to be given up, and since when
        self._short_s: float | None = None  # since when there are too few
        self._evaluations: set[Round] = set()
        self._not_evaluated: set[Round] = set()
        self._recorded: set[tuple[NodeId, Round]] = set()
        self._claims: dict[tuple[NodeId, Round], Mapping[int, float]] = {}
        self._trained = self._over = self._leaving = False
        self._byes: set[NodeId] = set()
        self._saved: Round | None = None  # that was played last and is saved

    def began(self, progress: Progress | None, now_s: float) -> None:
        """Begin anew: a process of the coordinator starts from this file."""
        self._begin(now_s)
        self.looked.add("rounds")
        round = 0 if progress is None else progress.round
        if not self.broken and not self.durable <= round:
            self._violate("rounds", None, f"goes on from round {round}; the file of round {self.durable} was durable")
        if round >= len(self.chain):
            self._violate("rounds", None, f"goes on from round {round}, and {len(self.chain) - 1} have been played")
            return
        if progress is not None and progress.model.tobytes() != self.chain[round].model.tobytes():
            self._violate("rounds", None, f"goes on in round {round} from a model that was never made")
        del self.chain[round + 1 :]
        self.durable = round
        self._saved = round
        self._resumed = progress is not None
        self._before = self._alike.get(round) if progress is not None else None

    @property
    def round(self) -> Round:
        """Return the round to be played, or in progress."""
        return len(self.chain) - 1

    # Events and effects

    def event(self, event: Event, note: Note | None, now_s: float) -> None:
        """Take note of what goes into the engine now."""
        match event:
            case PresenceReport(boards):
                self._seen = {b.address: b.silent_s if b.beats_fast else 0.0 for b in boards}
                self._silent = {b.address for b in boards if b.silent_s >= SILENT_S}
            case Answered(number, answer):
                self._answered(number, answer, note, now_s)
            case Undelivered(number):
                self._open.pop(number, None)
            case ProcessEnded(name, _):
                node = self.up.get(name)
                if node is not None:
                    self._ignored.add(node)
                self._ended.add(name)
                self._ended_now.add(name)
            case Stop():
                self.stopped = True
                self._leave()
            case ModelKept():
                self._mark_s = now_s

    def _answered(self, number: int, answer: Answer, note: Note | None, now_s: float) -> None:
        if note is not None and note.lie:
            self.lied = True
            self._evaluation_lies |= note.lie in ("byzantine-evaluation", "byzantine-answer", "byzantine-stale")
        sent = self._open.pop(number, None)
        if sent is None:
            return
        self._mark_s = now_s
        if isinstance(sent.question.instruction, Hello):
            if note is not None:
                self._joining.append((answer.name if isinstance(answer, Joining) else "", note))
            return
        if not sent.works:
            return
        self._unanswered.pop(sent.question.name, None)
        if self._asking is not None and number in self._asking.numbers and note is not None:
            self._asking.answers[self._asking.numbers[number]] = (answer, note)
            if not isinstance(answer, Failure):
                name = sent.question.name
                self._longest_s[name] = max(self._longest_s.get(name, 0.0), now_s - sent.at_s)
            if self._asking.half:
                self._asking.half_s = min(self._asking.half_s, now_s)
        if isinstance(answer, Failure) and answer.away:
            if self._asking is not None and number in self._asking.numbers:
                self._costs(self._asking.relied_on & {sent.question.name})
            return
        missed, since = self._missed.get(sent.question.name, (0, 0))
        self._missed[sent.question.name] = missed, since + 1

    def effects(self, effects: list[Effect], looked: bool, now_s: float) -> None:
        """Check what came out of the engine, in its order, and what should have come. `looked`: at
        who is there."""
        for effect in effects:
            match effect:
                case Ask(questions):
                    self._ask(questions, now_s)
                case Forget(number):
                    self._open.pop(number, None)
                    if self._asking is not None and (name := self._asking.numbers.get(number)) is not None:
                        self._asking.answers.pop(name, None)  # it came with the news that its board is gone
                        self._costs(self._asking.relied_on & {name})
                case Log():
                    self._log(effect, now_s)
                case RoundEnded():
                    self._round_ended(effect, now_s)
                case Save(progress):
                    self._save(progress)
                case Record():
                    self._record(effect)
                case Trained(model):
                    self._mark_s, self._trained = now_s, True
                    if self.round != self._plan.rounds or model.tobytes() != self.chain[-1].model.tobytes():
                        self._violate("rounds", None, f"hands over another model than that after round {self.round}")
                case Completed():
                    self._mark_s, self.completed = now_s, True
                    self._check_final(now_s)
                case Finished(error):
                    self._finished(error, now_s)
        if not self._over:
            self._check_waits(now_s)
            if looked and not self._leaving:
                self._check_presence(now_s)
        if self._untold:
            self._violate("agreement", None, f"numbers {sorted(self._untold)} are refused and not told")
        self._joining.clear()
        self._ended_now.clear()

    def _leave(self) -> None:
        """Take note that the run is over for everybody: nobody looks any more who is there, and no
        round goes on."""
        self._leaving, self._asking = True, None

    # Who is there

    def _log(self, log: Log, now_s: float) -> None:
        name = log.fields.get("peer", "")
        match log.event:
            case "joined":
                self._joined(name, now_s)
            case "peer-up":
                self.up[name] = next(node for node, who in self._nodes.items() if who == name)
                self._lost.discard(name)
                self._mark_s = now_s
            case "peer-down":
                node = self.up.pop(name, None)
                self._lost.add(name)
                self._mark_s = now_s
                if name in self._ended_now:  # and had joined just before
                    self._ended.add(name)
                alive = node in self._seen and self._seen[node] <= SILENT_S and name not in self._ended
                if node is not None and alive:
                    self._violate("presence", name, f"is taken for gone, although it beats: {log.text}")
            case "started":
                for who in self._dismissed:
                    del self._data[who]
                self._dismissed.clear()
                if len(set(self._data.values())) > 1:
                    self._violate("agreement", None, f"it begins with {self._data}")
                self._gathering, self._mark_s = False, now_s
            case "refused":
                self._mark_s = now_s
                self._check_refusal(log, name)
            case "not-evaluated":
                if "round" in log.fields:
                    self._not_evaluated.add(log.fields["round"])
        few = len(self.up) + (len(self._not_joined()) if self._gathering else 0) < self._least
        self._short_s = None if not few else now_s if self._short_s is None else self._short_s

    def _not_joined(self) -> list[NodeId]:
        known = {*self._nodes.values(), *self._lost}
        return [name for name in self._plan.boards if name not in known]

    def _joined(self, name: NodeId, now_s: float) -> None:
        self.looked |= {"accepted", "agreement"}
        # Two processes of one board may have answered since the last look: the other one was first.
        found = [by for said, by in self._joining if said == name and by.node not in self._nodes]
        note = next((by for by in found if by.name == name), found[0] if found else None)
        if note is None or name not in self._plan.boards or (self._plan.certified and note.name != name):
            self._violate("accepted", name, f"joins, and is {note.name if note else 'nobody'}")
            return
        for node in [n for n, who in self._nodes.items() if who == name]:
            del self._nodes[node]
            if node != note.node:
                self._ignored.add(node)
        if note.data == "other-layout" or self._differs(name, note.data):
            self._violate("agreement", name, f"joins with {note.data or 'the right data'}")
        self._data[name] = note.data
        self._unanswered.pop(name, None)
        self._nodes[note.node] = name
        self.up[name] = note.node
        self._lost.discard(name)
        self._ended.discard(name)
        self._mark_s = now_s

    def _differs(self, name: NodeId, data: str) -> bool:
        """Whether anybody else that joined before the run began, or before a restart, has other
        data. Until it begins nothing is decided."""
        others = set() if self._gathering else {found for who, found in self._data.items() if who != name}
        return bool((others | {self._before}) - {data, None})

    def _outvoted(self, name: NodeId) -> bool:
        """Whether more boards that joined have other data than this one does, or as many and the
        run's first."""
        data = [self._data[who] for who in self._plan.boards if who in self._data]
        return self._data[name] != max(data, key=data.count)

    def _check_unfit(self, name: NodeId) -> None:
        """A board was refused for its data."""
        self.looked.add("agreement")
        for note in [note for said, note in self._joining if said == name]:
            self._ignored.add(note.node)
            if note.data == "other-layout":
                return  # it said so itself, and left
            if self._differs(name, note.data):
                self._untold.add(note.node)
                return
        node = next((node for node, who in self._nodes.items() if who == name), None)
        if self._gathering and node is not None and self._outvoted(name):
            self._ignored.add(node)
            if self.up.pop(name, None) is not None:
                self._untold.add(node)
            self._ended.add(name)
            self._dismissed.add(name)
            return
        self._violate("agreement", name, "is refused, though its data are those of the others")

    def _check_refusal(self, log: Log, name: NodeId) -> None:
        text, what = log.text, log.fields["what"]
        self.looked |= {"patience"} if what == "silence" else {"refused", "accepted"}
        if what == "update":
            self._refused.add(name)
            lie = ""
            if self._asking is not None and name in self._asking.answers:
                lie = self._asking.answers[name][1].lie
            # Where this is reworded, honest updates seem to be refused: it does not go unseen.
            relative = self.lied and re.search("times as (many|long)|not be finite|out of all proportion", text)
            if not lie and not relative:
                self._violate("refused", name, f"refused an honest update: {text}")
        elif what == "data":
            self._check_unfit(name)
        elif what == "board":
            if all(not note.lie for _, note in self._joining):
                self._violate("refused", None, f"an honest board may not join: {text}")
            self._ignored.update(note.node for _, note in self._joining if note.lie)
        elif what == "silence":
            self._given_up[name] = self._given_up.get(name, 0) + 1
            before = self._gave_up_s.get(name, 0.0)
            waited_s = log.fields["waited_s"]
            if self._unanswered.get(name) and waited_s < min(2 * before, PATIENCE[0] * self._plan.deadline_s * 2**6):
                self._violate("patience", name, f"is given up after {waited_s:g} s, and before after {before:g} s")
            self._gave_up_s[name], self._unanswered[name] = waited_s, True
        elif what in ("profile", "late answer") and not (self.lied or text.endswith(AWAY)):
            self._violate("refused", name, text)  # AWAY is no board's own answer

    def _check_presence(self, now_s: float) -> None:
        self.looked |= {"presence", "memory"}
        answered = {note.node for _, note in self._joining}  # since this look, which is a sign of life
        for name, node in self.up.items():
            silent = self._seen.get(node, math.inf) > SILENT_S and node not in answered
            if silent or node in self._ignored:
                self._violate("presence", name, "is taken to be there, and gives no sign of life")
                return
        asked_s: dict[int, float] = {}
        waits: dict[int, float] = {}  # twice as long after each Hello
        for sent in self._open.values():
            if isinstance(sent.question.instruction, Hello):
                node = sent.question.address
                asked_s[node], waits[node] = sent.at_s, 2 * waits.get(node, HELLO_S / 2)
        for node in self._seen:
            if node in self._silent or node in self._nodes or node in self._ignored or node in answered:
                continue
            if now_s - asked_s.get(node, -math.inf) > waits.get(node, 0.0) + SLACK_S:
                self._violate("presence", None, f"board number {node} beats, and is sent no Hello")
                return
        for number, sent in self._open.items():
            if sent.question.address not in self._seen and sent.at_s < now_s:
                self._violate("memory", None, f"question {number} is kept for a board that is gone")
                return

    # Questions

    def _ask(self, questions: tuple[Question, ...], now_s: float) -> None:
        idle = self._idle()
        for question in questions:
            number, node, wish = question.number, question.address, question.instruction
            if number <= self._last:
                self._violate("memory", question.name, f"number {number} is given twice")
            self._last = number
            if isinstance(wish, Bye):
                self._byes.add(question.name)
                if wish.failed:
                    self._untold.discard(node)
                    if node not in self._nodes:  # of its board another process is there
                        self._ignored.add(node)
                if wish.words.startswith("the run ") and not self._leaving:
                    self._leave()
                    if wish.words.startswith(FAILED):
                        self._check_reason(wish.words.removeprefix(FAILED), now_s)
            elif isinstance(wish, Hello):
                again = [o.at_s for o in self._open.values() if o.question.address == node]
                if again and now_s - max(again) < HELLO_S / 4 * 2 ** len(again) - 0.01:
                    self._violate("patience", None, f"board number {node} is sent Hello {len(again) + 1} too soon")
            elif idle.get(question.name) != node:
                state = "there" if self.up.get(question.name) == node else "not there"
                self._violate("asked", question.name, f"is asked, and is {state}: {self._works(node)}")
            self._open[number] = OpenQuestion(question, now_s)
        if any(isinstance(q.instruction, Train) for q in questions):
            self._ask_round(questions, idle, now_s)

    def _works(self, node: int) -> str:
        numbers = [n for n, o in self._open.items() if o.works and o.question.address == node]
        return f"question {numbers[0]} is open" if numbers else "it owes nothing"

    def _idle(self) -> dict[NodeId, int]:
        busy = {o.question.address for o in self._open.values() if o.works}
        return {n: self.up[n] for n in self._plan.boards if n in self.up and self.up[n] not in busy}

    def _ask_round(self, questions: tuple[Question, ...], idle: dict[NodeId, int], now_s: float) -> None:
        plan, round = self._plan, self.round
        self.looked |= {"rounds", "saved", "asked", "reference"} | ({"control"} if self._controlled else set())
        asked = {q.name: q for q in questions}
        frames = {q.name: q.instruction.frame for q in questions if isinstance(q.instruction, Train)}
        if self._asking is not None and self._asking.answers:
            self._violate("rounds", None, f"round {round} is asked for again, and has answers")
        if self._saved != round or self.durable > round:
            self._violate("saved", None, f"round {round} is asked for, and {self._saved} was saved last")
        if self._trained or any(f.round != round for f in frames.values()):
            self._violate("rounds", None, f"boards are asked for another round than {round}")
        trusted = [name for name in idle if self._suspension(name).until <= round]
        if len(trusted) < max(1, plan.min_nodes):
            for name in set(idle) - set(trusted):
                sentence = self._suspension(name)
                sentence.times, sentence.until = max(0, sentence.times - 1), 0
            trusted = list(idle)
        count = min(self._wanted, len(trusted))
        first = round not in self._chosen_in  # who is asked again in the same round is chosen as before
        self._chosen_in.add(round)
        if first and count < len(trusted):
            self._check_choice("training", trusted, asked)
        if not set(asked) <= set(trusted):
            self._violate("asked", None, f"round {round} asks {sorted(set(asked) - set(trusted))}, who are left out")
        if len(asked) != count or len(idle) < self._least:
            self._violate("asked", None, f"round {round} asks {len(asked)} of {len(trusted)} boards, not {count}")
        evaluate = [
            n for n, q in asked.items() if isinstance(q.instruction, Train) and q.instruction.examples is not None
        ]
        if len(evaluate) > 1:
            self._violate("asked", None, "more than one board is asked to evaluate")
        elif first and evaluate and len(asked) > 1:
            self._check_choice("evaluation", sorted(asked), evaluate)
        self._check_frames(frames, {name: q.address for name, q in asked.items()})
        relied_on = frozenset(n for n in asked if _relied_on(*self._missed.get(n, (0, 0)))) or frozenset(asked)
        self._asking = OpenRound(now_s, {q.number: q.name for q in questions}, relied_on=relied_on)
        self._refused, self._mark_s = set(), now_s

    def _check_choice(self, what: str, among: list[NodeId], chosen: Collection[NodeId]) -> None:
        """Check that nobody is chosen more often than others."""
        self.looked.add("fair")
        if set(chosen) <= set(among) and (fault := self._choices.fault(what, among, chosen)):
            self._violate("fair", None, fault)

    def _suspension(self, name: NodeId) -> Suspension:
        return self._suspensions.setdefault(name, Suspension())

    def _check_frames(self, frames: Mapping[NodeId, Frame], nodes: Mapping[NodeId, int]) -> None:
        """Check that all boards get the same model, the right one, each in a form that it can
        read."""
        plan, round, link = self._plan, self.round, self.chain[-1]
        models: dict[int, Vec] = {}
        for name, frame in frames.items():
            if frame.kind == Kind.DIFFERENCE and self._holds.get(name) != (nodes[name], round - 1):
                self._violate("reference", name, f"gets a difference, and does not hold the model of round {round - 1}")
            if self._levelled and link.levels.known and frame.aux.get(Aux.LEVELS) != link.levels.levels:
                told = frame.aux.get(Aux.LEVELS)
                self._violate("reference", name, f"is asked for {told} levels, not {link.levels.levels}")
            if id(frame) in models:
                continue
            body = self._without_correction(name, frame) if self._controlled else frame.body
            if frame.kind == Kind.MODEL:
                models[id(frame)] = np.frombuffer(bytes(body), "<f4")
            elif self._reference is None or self._reference[0] != round - 1:
                self._violate("reference", name, "gets a difference from a model that nobody has")
            else:
                models[id(frame)] = self._reference[1].copy()
                plan.downlink.decode(body, plan.layout, models[id(frame)], 1.0)
        crcs = {zlib.crc32(np.ascontiguousarray(x).data) for x in models.values()}
        if not models:
            return
        model = next(iter(models.values()))
        if len(crcs) > 1 or (not self._compresses and model.tobytes() != link.model.tobytes()):
            self._violate(
                "reference", None, f"boards get {len(crcs)} models in round {round}, or not the coordinator's"
            )
        key = (round, zlib.crc32(link.model.data))
        if self._references.setdefault(key, min(crcs)) != min(crcs):
            self._violate("reference", None, f"the model that goes out in round {round} is another one than before")
        self._reference, self._holds = (round, model), {}

    def _may_lose(self, change: Vec) -> float:
        """How much of a change of a correction the codec of the way down may lose: a share, or all
        that is beyond its largest value."""
        codec, layout = self._plan.downlink, self._plan.layout
        body, _ = codec.encode(change, codec.init(layout), Ctx(key=0, round=0))
        lost = np.linalg.norm(change - codec.decode(body, layout))
        return max(CODED * float(np.linalg.norm(change)), (1.0 + NEAR) * float(lost))

    def _without_correction(self, name: NodeId, frame: Frame) -> memoryview:
        """Return the body that is the model; check the other, which is the board's correction."""
        link, body = self.chain[-1], memoryview(frame.body)
        cut, before = int(frame.aux.get(Aux.CORRECTION, len(body))), link.corrections.get(name)
        own = link.controls.get(name, np.zeros(link.model.size))
        wanted = self._mean_control(link) - own
        if frame.kind == Kind.MODEL:
            correction = np.frombuffer(bytes(body[cut:]), "<f4")
        else:
            moved = self._plan.downlink.decode(body[cut:], self._plan.layout)
            correction = moved if before is None else before + moved
        most = NEAR * max(1.0, float(np.linalg.norm(wanted)), float(np.linalg.norm(own)))
        if self._compresses and before is not None:
            most += self._may_lose((wanted - before).astype(np.float32))
        if correction.size != wanted.size or not (off := float(np.linalg.norm(correction - wanted))) <= most:
            self._violate("control", name, f"its correction is {off:.3g} off the mean of all less its own")
        self._corrections[name] = correction
        return body[:cut]

    def _mean_control(self, link: RunState) -> NDArray[np.float64]:
        """Return the weighted mean of the control variates of all boards. Of those that were not
        heard, or not for long, it is zero, and each counts as much as the mean of the others."""
        uniform = self._plan.weighting == "uniform"
        weights = {name: 1.0 if uniform else link.claimed[name] for name in link.since}
        total = sum(weights.values()) * len(self._plan.boards) / max(1, len(weights))
        mean = np.zeros(link.model.size)
        for name, control in link.controls.items():
            mean += weights[name] / total * control
        return mean

    def _control(self, link: RunState, shares: Mapping[NodeId, tuple[Frame, Vec]]) -> RunState:
        """Return a state with the control variates after a round with these updates: each goes
        towards the mean gradient that its board stepped along."""
        since = {name: k + len(shares) for name, k in link.since.items()} | dict.fromkeys(shares, len(shares))
        since = {name: k for name, k in since.items() if k <= TURNS * len(self._plan.boards)}
        after = {name: control for name, control in link.controls.items() if name in since}
        gradients = {}
        for name, (frame, sent) in shares.items():
            rate = frame.aux.get(Aux.LEARNING_RATE, 0.0) * frame.aux.get(Aux.STEPS, 0.0)
            if rate > 0.0:  # else a liar does not say it
                gradients[name] = -sent.astype(np.float64) / rate - self._corrections[name]
        lengths = sorted(float(np.linalg.norm(gradient)) for gradient in gradients.values())
        typical = lengths[(len(lengths) - 1) // 2] if len(lengths) >= 3 else 0.0
        for name, gradient in gradients.items():
            if not typical or np.linalg.norm(gradient) <= 30.0 * typical:
                own = after.get(name, 0.0)
                after[name] = own + self._way * (gradient - own)
        return replace(link, controls=after, since=since, corrections={**link.corrections, **self._corrections})

    # The end of a round

    def _check_waits(self, now_s: float) -> None:
        """Check that nothing is waited for that has come, or for too long."""
        asking, plan = self._asking, self._plan
        typical_s = sorted(self._longest_s.values())[(len(self._longest_s) - 1) // 2] if self._longest_s else 0.0
        patience_s = max(PATIENCE[0] * plan.deadline_s, PATIENCE[1] * typical_s)
        if asking is not None:
            waiting = [n for n in asking.numbers if n in self._open]
            if asking.answers and not waiting:
                self._violate("ends", None, f"round {self.round} goes on, and all answers are there")
            elif plan.quorum and asking.heard >= plan.quorum:
                self._violate("ends", None, f"round {self.round} goes on with {asking.heard} answers")
            elif waiting and not asking.wants(waiting):
                self._violate("ends", None, f"round {self.round} goes on for boards that cost deadlines before")
            else:
                until_s = asking.at_s + plan.deadline_s
                asking.late = asking.late or (now_s >= until_s and not asking.half)
                if asking.late:
                    until_s = min(asking.half_s + plan.deadline_s, asking.at_s + patience_s + plan.deadline_s)
                if waiting and now_s > until_s + 0.02:
                    self._violate(
                        "ends", None, f"round {self.round} goes on {now_s - until_s:.2f} s after its deadline"
                    )
        for number, sent in self._open.items():
            if not sent.works or (asking is not None and number in asking.numbers):
                continue
            most_s = patience_s * 2 ** min(self._given_up.get(sent.question.name, 0), 6)
            late = now_s - sent.at_s > most_s + 1.0 and not self._trained
            if late and self._overdue.setdefault(number, now_s) < now_s:  # at the event before as well
                self._violate("progress", sent.question.name, f"its answer is waited for since {sent.at_s:.1f} s")
                return
        join_s = REJOIN_S if self.durable else plan.join_s
        bound_s = max(join_s, plan.join_s, plan.return_s, patience_s + plan.deadline_s) + SLACK_S
        if now_s - self._mark_s > bound_s:
            self._violate("progress", None, f"nothing has happened for {now_s - self._mark_s:.1f} s")

    def _costs(self, names: Collection[NodeId]) -> None:
        """Take note that a round has waited for these in vain."""
        for name in names:
            self._missed[name] = self._missed.get(name, (0, 0))[0] + 1, 0

    def _round_ended(self, ended: RoundEnded, now_s: float) -> None:
        asking, plan, round = self._asking, self._plan, self.round
        self.looked |= {"ends", "used", "records", "finite", "mean"}
        if asking is None or ended.round != round:
            self._violate("rounds", None, f"round {ended.round} ends; round {round} is under way")
            return
        waiting = [n for n in asking.numbers if n in self._open]
        wanted = asking.wants(waiting)
        enough = not wanted or (plan.quorum and asking.heard >= plan.quorum)
        since_s = asking.half_s if asking.late and asking.half else asking.at_s
        if waiting and not enough and now_s < since_s + plan.deadline_s - 0.02:
            self._violate("ends", None, f"round {round} ends with {asking.heard} answers, before its deadline")
        if not enough:
            self._costs(wanted & asking.relied_on)
        good = {
            n: a.frame for n, (a, _) in asking.answers.items() if isinstance(a, BoardAnswer) and n not in self._refused
        }
        away = {n for n, (a, _) in asking.answers.items() if isinstance(a, Failure) and a.away}
        left = set(asking.answers) - self._refused - away
        if set(ended.used) != left or len(ended.used) != len(left) or set(good) != left:
            self._violate("used", None, f"round {round} is made of {list(ended.used)}, not of {sorted(left)}")
            return
        if ended.values["server/used"] != len(left) or ended.values["server/answers"] != len(asking.answers):
            self._violate("records", None, f"the record of round {round} counts {ended.values}")
        shares = {n: self._share(n, frame, asking.answers[n][1]) for n, frame in sorted(good.items())}
        if None in shares.values():
            return
        self._holds = {n: (note.node, round) for n, (a, note) in asking.answers.items() if isinstance(a, BoardAnswer)}
        self._next({n: s for n, s in shares.items() if s is not None}, ended.model)
        for name in sorted(self._refused) if ended.used else ():
            self._suspend(name, round)
        for name in ended.used:
            self._suspension(name).in_a_row = 0
        self._asking, self._mark_s = None, now_s

    def _suspend(self, name: NodeId, round: Round) -> None:
        """Take note of a refusal: two in a row cost rounds, the next one after them more."""
        sentence = self._suspension(name)
        sentence.in_a_row += 1
        if sentence.in_a_row >= 2:
            sentence.until = round + 1 + min(FEW * 2**sentence.times, MANY)
            sentence.times, sentence.in_a_row = sentence.times + 1, 1

    def _share(self, name: NodeId, data: Any, note: Note) -> tuple[Frame, Vec] | None:
        """Read an update that was used, as strictly as the rules promise; None where it must not
        have been."""
        plan, round = self._plan, self.round
        try:
            frame = wire.parse(data, self._limits)
            wire.expect(frame, run_id=plan.run_id, layout_hash=plan.layout.hash, codec=plan.codec)
            values = plan.codec.decode(frame.body, plan.layout)
        except (EdgegossipError, TypeError) as error:
            self._violate("accepted", name, f"an update that cannot be read is used: {error}")
            return None
        aux, why = frame.aux, ""
        if frame.kind != Kind.UPDATE or frame.round != round:
            why = f"a {frame.kind.name.lower()} of round {frame.round}"
        elif (
            not 1 <= aux.get(Aux.EXAMPLES, 0) <= 1e12
            or not abs(aux.get(Aux.LOSS, math.inf)) <= 1e25
            or not 0 <= aux.get(Aux.LEARNING_RATE, 0.0) <= 1e6
            or (self._levelled and aux[Aux.LOSS] < 0)
        ):
            why = f"claims of {dict(aux)}"
        elif not np.isfinite(values).all():
            why = "values that are not finite"
        elif self._controlled and not note.lie and note.corrected != zlib.crc32(self._corrections[name].data):
            self._violate("control", name, "its update was not corrected by what it was sent")
        if why:
            self._violate("accepted", name, f"{why} are part of round {round}" + (f" ({note.lie})" if note.lie else ""))
            return None
        return frame, values

    def _next(self, shares: Mapping[NodeId, tuple[Frame, Vec]], model: Vec) -> None:
        """Compare the next model with what these updates make of the one before."""
        plan, link, round = self._plan, self.chain[-1], self.round
        self.used_updates += len(shares)
        if not np.isfinite(model).all():
            self._violate("finite", None, f"the model after round {round} is not finite")
            return
        claims = {n: f.aux[Aux.EXAMPLES] for n, (f, _) in shares.items()}
        self._check_proportion(claims, shares)
        for name, (frame, _) in shares.items():
            self._claims[name, round] = frame.aux
        velocity, meant = link.velocity, link.model.astype(np.float64)
        if shares:
            weights = claims if plan.weighting == "examples" else dict.fromkeys(claims, 1.0)
            total = sum(weights.values())
            moved = np.zeros(model.size)
            for name, (_, x) in shares.items():
                moved += weights[name] / total * x
            velocity = moved + MOMENTUM * velocity if self._momentum else moved
            meant = meant + velocity
        terms: list[NDArray[Any]] = [meant, link.model, velocity, *(x for _, x in shares.values())]
        scale = max(1.0, *(float(np.abs(t).max(initial=0.0)) for t in terms))
        worst = float(np.abs(model - meant).max(initial=0.0))
        if not worst <= NEAR * scale or (not shares and model.tobytes() != link.model.tobytes()):
            names = ", ".join(shares) or "nobody"
            self._violate("mean", None, f"the model after round {round} is {worst:.3g} off what {names} make of it")
        before = link.model.tobytes() + link.velocity.tobytes() if self._momentum else link.model.tobytes()
        key = (round, zlib.crc32(before), *((n, zlib.crc32(f.body)) for n, (f, _) in shares.items()))
        if not self.lied and self._made.setdefault(key, zlib.crc32(model.data)) != zlib.crc32(model.data):
            self._violate("mean", None, f"the same updates made another model after round {round} than before")
        if self._momentum and shares:  # what the engine has, rounded as it is
            velocity = model.astype(np.float64) - link.model
        levels = self._levels_after(link.levels, [f for f, _ in shares.values()])
        if self._controlled:
            link, self._corrections = self._control(link, shares), {}
        self.chain.append(
            replace(link, model=model, velocity=velocity, levels=levels, claimed={**link.claimed, **claims})
        )

    def _check_proportion(self, claims: Mapping[NodeId, float], shares: Mapping[NodeId, tuple[Frame, Vec]]) -> None:
        known = sorted({**self.chain[-1].claimed, **claims}.values())
        if self._plan.weighting == "examples" and len(known) >= 3 and claims:
            name = max(claims, key=claims.__getitem__)
            if claims[name] > 1000 * median_low(known):
                self._violate("accepted", name, f"{claims[name]:g} examples count, {median_low(known):g} are typical")
        lengths = {n: float(np.linalg.norm(x.astype(np.float64))) for n, (_, x) in shares.items()}
        if len(lengths) >= 3:
            name = max(lengths, key=lengths.__getitem__)
            if lengths[name] > 1e4 * (median := median_low(sorted(lengths.values()))) > 0.0:
                self._violate(
                    "accepted", name, f"an update {lengths[name] / median:.3g} times as long as others is used"
                )

    def _levels_after(self, before: LevelState, frames: list[Frame]) -> LevelState:
        if not self._levelled or not before.known or not frames:
            return before
        losses = [f.aux[Aux.LOSS] for f in frames]
        typical = median_low(losses)
        if len(frames) < 3 or typical <= 0 or not all(typical / 10 <= loss <= typical * 10 for loss in losses):
            return replace(before, known=False)
        examples = [f.aux[Aux.EXAMPLES] for f in frames]
        weights = [min(n, 1000.0 * median_low(examples)) for n in examples]
        mean = sum(w / sum(weights) * loss for w, loss in zip(weights, losses, strict=True))
        lr = median_high([f.aux.get(Aux.LEARNING_RATE, 0.0) for f in frames])
        codec: Any = self._plan.codec
        if lr <= 0 or (before.loss is not None and not before.loss / 10 <= typical <= before.loss * 10):
            return replace(before, known=False)
        loss = smooth_loss(before.loss, mean, codec.smoothing)
        eta0, f0 = (lr, loss) if before.loss is None else before.first
        return LevelState(True, loss, (eta0, f0), levels_for(LevelRule(codec.s0, eta0, f0), loss, lr))

    def _save(self, progress: Progress) -> None:
        if progress.round != self.round or progress.model.tobytes() != self.chain[-1].model.tobytes():
            self._violate("saved", None, f"what is saved is round {progress.round}, and {self.round} comes next")
        self._saved = progress.round
        self._alike[progress.round] = next(iter(self._data.values()), self._before)

    # Evaluations, records and the end

    def _record(self, record: Record) -> None:
        if record.node != "coordinator":
            aux = self._claims.get((record.node, record.round))
            if aux is None and (self.durable or self._resumed):
                return  # of a round that an earlier process played
            said = {} if aux is None else {"train/loss": aux[Aux.LOSS], "train/examples": int(aux[Aux.EXAMPLES])}
            wrong = [k for k, v in said.items() if record.values.get(k) != v]
            if aux is None or wrong or (record.node, record.round) in self._recorded:
                self._violate("records", record.node, f"round {record.round}: {dict(record.values)}")
            self._recorded.add((record.node, record.round))
        elif "eval/loss" in record.values:
            self._evaluated(record.round, float(record.values["eval/loss"] or 0.0))

    def _evaluated(self, step: Round, loss: float) -> None:
        self.looked.add("evaluated")
        if step in self._evaluations or step >= self.round or not math.isfinite(loss):
            self._violate("evaluated", None, f"a loss of {loss:g} after round {step}, and {self.round} comes next")
        self._evaluations.add(step)
        if self._evaluation_lies or step >= self.round:
            return
        models = [self.chain[step + 1].model]
        if self._reference is not None and self._compresses:
            models.append(self._reference[1])
        if self._compresses and step + 1 < self.round:
            return  # it is of an encoded model of some rounds ago
        right = [self._evaluate(x) for x in models]
        if not any(abs(loss - found) <= 1e-5 * max(1.0, abs(found)) for found in right):
            self._violate("evaluated", None, f"the model after round {step} has a loss of {right}, not of {loss:g}")

    def _check_final(self, now_s: float) -> None:
        last = self._plan.rounds - 1
        if last in self._evaluations:
            return
        if last not in self._not_evaluated:
            self._violate("evaluated", None, "nothing is said about the final model")
        long_calm = now_s > self._calm_s + 30.0 or not self._faults
        if long_calm and self._idle() and not self.lied and "leave" not in self._faults:
            self._violate("evaluated", None, f"the final model is not evaluated, and {list(self.up)} are there")

    def _finished(self, error: EdgegossipError | None, now_s: float) -> None:
        self._over = True
        self.looked.add("goodbye")
        if missing := set(self.up) - self._byes:
            self._violate("goodbye", None, f"{sorted(missing)} never hear that it is over")
        if error is None and not self.stopped and not (self.completed and self.round == self._plan.rounds):
            self._violate("rounds", None, f"the run ends well after {self.round} of {self._plan.rounds} rounds")
        whole = self.completed and self._plan.records_boards and not self._resumed
        if whole and (lost := set(self._claims) - self._recorded):
            self._violate("records", None, f"there is no record of {sorted(lost)}")
        if error is not None and not self._leaving:
            self._check_reason(str(error), now_s)

    def _check_reason(self, error: str, now_s: float) -> None:
        self.looked.add("failed")
        if fault := self._unfounded(error, now_s):
            self._violate("failed", None, f"{fault}: {error}")

    def _unfounded(self, error: str, now_s: float) -> str:
        """Say why a run had no reason to fail so; empty where it had."""
        if "of the" in error and "that server.min_nodes asks for are left" in error:
            if self._short_s is None:
                return f"{len(self.up)} boards are there"
            back = [name for name in self._lost if name not in self._ended]
            joining = len(self._not_joined()) if self._gathering else 0
            hopeless = len(self.up) + joining + len(back) < self._least
            early = now_s < self._short_s + self._plan.return_s - 0.01
            return "boards may still come back" if early and not hopeless else ""
        if error.startswith("too few boards answer") or "nobody answered" in error or "all boards went away" in error:
            return "" if self._faults & CAUSES_SILENCE else "nothing keeps boards from answering"
        if error.startswith("no usable update for 3 rounds"):
            guilty = self.lied or "error" in self._faults
            return "" if guilty else "nobody lies"
        return "no such reason is known"


def _relied_on(missed: int, since: int) -> bool:
    """Tell whether a board may cost a wait, after so many that it cost, and so many answers since
    then."""
    return missed < 2 or since >= 2 ** (missed - 2)
