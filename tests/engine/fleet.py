"""Drives a ServerEngine with boards in virtual time: some are late, some lie, some go away, some
never answer."""

from __future__ import annotations

import heapq
import itertools
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.codecs.base import Codec
from edgegossip.engine.combine import Combiner
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_boards import BoardPresence
from edgegossip.engine.server_events import (
    Answer,
    Answered,
    Arriving,
    Ask,
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
    TimePassed,
    Train,
    Trained,
    Undelivered,
)
from edgegossip.engine.server_frames import Channel, Replica, Uplink
from edgegossip.engine.server_records import Progress
from edgegossip.frame import Frame, Limits
from edgegossip.types import EdgegossipError, NodeId, Round, Vec
from tests.engine import toy
from tests.engine.boards import check_subject

RUN_ID = b"r" * 16
SEEN_S = 0.5  # between two looks of the transport
TAKES_S = 0.05  # that an answer takes
FINAL = -1  # in place of a round: the final evaluation

Spoil = Callable[[BoardAnswer], BoardAnswer]


@dataclass
class Board:
    """One board. Rounds in `late`, `lost`, `away` ... are those of its training in which that
    happens, once each.

    late: the answer comes when the next question goes out to anybody; lost: it never comes although
    the board lives on; away: the process vanishes in its middle, and another is there at once
    (after `back_s`); ghost: the same, but the transport takes the old process for alive;
    spoil: what becomes of it. `silent`: (from, until) in seconds without a heartbeat."""

    name: NodeId
    workload: Any
    codec: Codec[Any]
    downlink: Codec[Any]
    takes_s: float = TAKES_S
    hello_s: float = TAKES_S  # before it answers Hello
    joins_s: float = 0.0
    back_s: float = 0.0
    unavailable: int = 0  # hellos that the transport answers in its place
    late: frozenset[Round] = frozenset()
    lost: frozenset[Round] = frozenset()
    away: frozenset[Round] = frozenset()
    ghost: frozenset[Round] = frozenset()
    gone: frozenset[Round] = frozenset()  # the transport answers in its place
    fetches_s: float = 0.0  # of the time that it takes, a large question comes to it piece by piece for so long
    trickles: bool = False  # its answers come in piece by piece all the time that they take
    deaf: bool = False  # never answers who wants an evaluation, although it lives on
    problem: str = ""
    agreement: str = ""
    identity: NodeId | None = None
    spoil: dict[Round, Spoil] = field(default_factory=dict)
    silent: tuple[float, float] = (math.inf, math.inf)
    trained: list[Round] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)
    farewell: str = ""
    parting: Vec | None = None  # the model that came with the goodbye
    failed: bool = False
    ends: Callable[[], tuple[Replica, Uplink]] = field(init=False)
    replica: Replica = field(init=False)
    uplink: Uplink = field(init=False)
    answered: tuple[Round, int, bytes] | None = None

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new process, which holds no model; its codec's memory comes from its checkpoint."""
        self.replica = Replica(toy.LAYOUT, RUN_ID, self.downlink)
        if not hasattr(self, "uplink"):
            self.uplink = Uplink(Channel.of(toy.LAYOUT, RUN_ID, self.codec), self.name)

    def answer(self, instruction: Train | Evaluate) -> tuple[Round, BoardAnswer]:
        data = b"".join(wire.build(instruction.frame))
        frame, x = self.replica.open(data)
        found = None if instruction.examples is None else self.workload.evaluate(x, instruction.examples or None)
        if isinstance(instruction, Evaluate):
            return frame.round, self.spoil.get(FINAL, lambda r: r)(BoardAnswer(evaluation=found))
        self.received_bytes.append(len(data))
        self.trained.append(frame.round)
        model = zlib.crc32(x.data)
        if self.answered is None or self.answered[:2] != (frame.round, model):
            update = self.workload.local_update(x, frame.round)
            if (correction := self.replica.correction) is not None:
                update = replace(update, delta=update.delta - update.lr * correction, corrected=True)
            sent = b"".join(wire.build(self.uplink.frame(update, frame.round, frame.aux)))
            self.answered = (frame.round, model, sent)
        return frame.round, self.spoil.get(frame.round, lambda r: r)(BoardAnswer(self.answered[2], found))


class Run:
    """A coordinator and its boards; keyword arguments are those of the ServerPlan."""

    def __init__(
        self, boards: int = 4, rounds: int = 6, codec: str = "fp32", downlink: str = "fp32", **plan: Any
    ) -> None:
        self.codec, self.downlink = codecs.get(codec), codecs.get(downlink)
        every = plan.pop("every", 1)
        names = tuple(f"board-{k}" for k in range(boards))
        values: dict[str, Any] = {
            "join_s": 60.0,
            "deadline_s": 600.0,
            "evaluate_after": frozenset(range(every - 1, rounds, every)),
        }
        self.plan = ServerPlan(
            boards=names,
            rounds=rounds,
            layout=toy.LAYOUT,
            run_id=RUN_ID,
            codec=self.codec,
            downlink=self.downlink,
            **{**values, **plan},
        )
        self.boards = [Board(name, toy.Toy(k), self.codec, self.downlink) for k, name in enumerate(names)]
        self.initial = toy.Toy(0).initial(1)
        self.make_combiner: Callable[[ServerPlan], Combiner | None] = lambda plan: None
        self.evaluate: Callable[[Vec, int | None], Any] = lambda x, examples: None
        self.keeps_after_s = 0.0  # until the final model is on the disk
        self.on_effect: Callable[[Effect], None] = lambda effect: None
        self.now_s = 100.0
        self.saved: list[Progress] = []
        self.logs: list[Log] = []
        self.records: list[tuple[NodeId, Round, Mapping[str, Any]]] = []
        self.rounds: list[RoundEnded] = []
        self.model: Vec | None = None
        self.completed = False
        self._nodes: dict[int, Board] = {}
        self._numbers = itertools.count(10)
        self._due: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._held: list[Event] = []
        self._busy: dict[int, int] = {}  # the question that a board has not answered, by its number
        for board in self.boards:
            self._nodes[next(self._numbers)] = board

    # What a test asks

    def texts(self, event: str) -> list[str]:
        return [log.text for log in self.logs if log.event == event]

    def evaluations(self) -> dict[Round, float]:
        return {step: values["eval/loss"] for _, step, values in self.records if "eval/loss" in values}

    @property
    def used(self) -> list[int]:
        return [len(ended.used) for ended in self.rounds]

    # The driver

    def play(self, start: Progress | None = None) -> Vec:
        """To the end; the final model. Raises what the run failed with."""
        engine = ServerEngine(self.plan, self.initial, self.make_combiner(self.plan))
        self.engine = engine
        self._held, self._busy = [], {}
        self._due = [due for due in self._due if isinstance(due[2], ProcessEnded | Stop)]
        self.at(0.0, PresenceReport(()))
        self._carry_out(engine.start(self.now_s, start))
        error: EdgegossipError | None = None
        for _ in range(200_000):
            at_s = min(engine.wake_s, self._due[0][0] if self._due else math.inf)
            assert at_s < math.inf, "nothing will ever happen"
            self.now_s = max(self.now_s, at_s)
            events: list[Event] = []
            while self._due and self._due[0][0] <= self.now_s:
                event = heapq.heappop(self._due)[2]
                if isinstance(event, PresenceReport):
                    event = PresenceReport(tuple(self._seen()))
                    self.at(SEEN_S, event)
                if isinstance(event, Answered):
                    self._busy = {node: number for node, number in self._busy.items() if number != event.number}
                events.append(event)
            effects = engine.handle(EventBatch(tuple(events)) if events else TimePassed(), self.now_s)
            self._carry_out(effects)
            if engine.over:
                (finished,) = (e for e in effects if isinstance(e, Finished))
                error = finished.error
                break
        else:
            raise AssertionError("the run does not end")
        if error is not None:
            raise error
        return engine.model

    def at(self, after_s: float, event: Event) -> None:
        """Let this happen in so many seconds."""
        heapq.heappush(self._due, (self.now_s + after_s, next(self._order), event))

    def _seen(self) -> list[BoardPresence]:
        seen = []
        for node, board in self._nodes.items():
            if self.now_s >= 100.0 + board.joins_s:
                since, until = board.silent
                silent = since <= self.now_s - 100.0 < until
                seen.append(BoardPresence(node, self.now_s - 100.0 - since if silent else 0.0))
        return seen

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.on_effect(effect)
            match effect:
                case Ask(questions):
                    if any(isinstance(q.instruction, Train | Evaluate) for q in questions):
                        for event in self._held:
                            self.at(0.0, event)
                        self._held = []
                    for question in questions:
                        self._ask(question)
                case Save(progress):
                    self.saved.append(progress)
                case Trained(model):
                    self.model = model
                    self.evaluated_before = set(self.evaluations())
                    self.at(self.keeps_after_s, ModelKept())
                case EvaluateHere(model, examples):
                    self.at(0.0, Evaluated(self.evaluate(model, examples)))
                case Log(event, text, fields):
                    self.logs.append(effect)
                    check_subject(event, text, fields)
                case Record(node, step, values):
                    self.records.append((node, step, values))
                case RoundEnded():
                    self.rounds.append(effect)
                    self.records.append(("coordinator", effect.round, effect.values))
                case Completed():
                    self.completed = True
                case Forget(number):
                    self._busy = {node: busy for node, busy in self._busy.items() if busy != number}
                case Finished():
                    pass

    def _ask(self, question: Question) -> None:
        board = self._nodes.get(question.address)
        if board is None:
            self.at(0.0, Undelivered(question.number))
            return
        answer: Answer
        match question.instruction:
            case Hello():
                answer = Joining(board.name, board.problem, board.identity, board.agreement)
                if board.unavailable > 0:
                    board.unavailable -= 1
                    answer = Failure("Node Unavailable", away=True)
                self.at(board.hello_s, Answered(question.number, answer))
            case Bye(words, failed, frame):
                board.farewell, board.failed = words, failed
                if frame is not None:
                    board.parting = board.replica.open(b"".join(wire.build(frame)))[1]
                self.at(TAKES_S, Answered(question.number, BoardAnswer()))
            case Train() | Evaluate() as instruction:
                assert question.address not in self._busy, f"{board.name} has not answered and is asked again"
                self._busy[question.address] = question.number
                self._work(question, board, instruction)

    def _work(self, question: Question, board: Board, instruction: Train | Evaluate) -> None:
        try:
            round, answer = board.answer(instruction)
        except EdgegossipError as error:
            self.at(board.takes_s, Answered(question.number, Failure(str(error))))
            return
        event = Answered(question.number, answer)
        if not isinstance(instruction, Train):
            round = FINAL
        if round in board.gone:
            event = Answered(question.number, Failure("Node Unavailable", away=True))
        if round in board.lost or (board.deaf and instruction.examples is not None):
            return
        if round in board.away or round in board.ghost:
            if round in board.away:
                del self._nodes[question.address]
            board.away, board.ghost = board.away - {round}, board.ghost - {round}
            board.begin()
            board.joins_s = self.now_s - 100.0 + board.back_s
            self._nodes[next(self._numbers)] = board
        elif round in board.late:
            self._held.append(event)
        else:
            self.at(board.takes_s, event)
            for tenth in range(1, int(10 * board.fetches_s)):
                self.at(tenth / 10, Delivering())
            for tenth in range(1, int(10 * board.takes_s)) if board.trickles else ():
                self.at(tenth / 10, Arriving(frozenset({question.number})))


def with_frame(change: Callable[[Frame], Frame]) -> Spoil:
    """A spoiler that rebuilds the update's frame with `change(frame)`."""

    def spoil(result: BoardAnswer) -> BoardAnswer:
        assert isinstance(result.frame, bytes)
        frame = wire.parse(result.frame, Limits.of(toy.LAYOUT))
        return replace(result, frame=b"".join(wire.build(change(frame))))

    return spoil


def garbage(result: BoardAnswer) -> BoardAnswer:
    return replace(result, frame=b"garbage")
