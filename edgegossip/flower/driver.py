"""Carries out the server engine's effects over Flower's SuperLink: messages out, answers in,
records, checkpoints, the clock."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message, RecordDict

from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_boards import BoardSeen
from edgegossip.engine.server_events import (
    Answered,
    Arriving,
    Ask,
    Completed,
    Delivering,
    Effect,
    Evaluated,
    EvaluateHere,
    Event,
    Finished,
    Forget,
    Log,
    ModelKept,
    ProcessEnded,
    Question,
    Record,
    RoundEnded,
    Save,
    Seen,
    ServerPlan,
    Stop,
    TimePassed,
    Together,
    Train,
    Trained,
    Undelivered,
    Wish,
)
from edgegossip.engine.server_frames import COORDINATOR
from edgegossip.engine.server_records import Progress
from edgegossip.flower._private.runtime import is_away
from edgegossip.flower.messages import question_content, question_type, read_answer
from edgegossip.spool import Spool
from edgegossip.telemetry.records import Sink, Value
from edgegossip.telemetry.spans import RoundClock
from edgegossip.types import EdgegossipError, HostError, Metrics, NodeId, PeerError, RunError, Vec

SEEN_S = 0.5  # between two looks at who is there
LOOK_S = 0.25  # between two looks for answers, should nobody say that there are any
SAVE_S = 3600.0  # for somebody to make room for the final model
AGAIN_S = 5.0  # between two tries, each of which is logged


class Stopped(RunError):
    """The run was told to stop."""


class Link(Protocol):
    """What `RunLink` offers; tests have another one."""

    def nodes(self) -> list[BoardSeen]: ...
    def push(self, messages: list[Message]) -> list[str]: ...
    def pull(self, message_ids: list[str]) -> list[Message]: ...
    def wait(self, timeout_s: float) -> None: ...
    def arriving(self) -> frozenset[str]: ...
    def delivering(self) -> bool: ...
    def forget(self, message_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the driver calls besides the link and the sink.

    `check` raises RunError when Flower's server has ended; `identity` says whose certificate a
    board has shown, by its number; `save` hears how far the run is, `settle` returns when that is
    safe; `meter` has more values for the record of the round that just ended; `evaluate` evaluates
    float32[n] on so many examples (None: all); `on_model` takes the final model and may raise
    HostError, after which it is tried again; `on_over` is called before boards hear that the run is
    over."""

    check: Callable[[], None] = lambda: None
    identity: Callable[[int], NodeId | None] = lambda node: None
    save: Callable[[Progress], None] = lambda progress: None
    settle: Callable[[], None] = lambda: None
    meter: Callable[[], Mapping[str, Value]] = dict
    evaluate: Callable[[Vec, int | None], Metrics] | None = None
    on_model: Callable[[Vec], None] = lambda model: None
    on_over: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that is under way, without its frame, which is as large as the model."""

    number: int
    node: int
    wish: type[Wish]


class Driver:
    """The loop around one engine. `clock` is the one that the engine's spans are of, `spool` where
    large frames go.

    Not thread-safe, except for `lose` and `stop`."""

    def __init__(
        self,
        engine: ServerEngine,
        plan: ServerPlan,
        link: Link,
        sink: Sink,
        clock: RoundClock,
        hooks: Hooks = Hooks(),
        spool: Spool = Spool(),
    ) -> None:
        self._engine, self._plan, self._link, self._sink = engine, plan, link, sink
        self._clock, self._hooks, self._spool = clock, hooks, spool
        self._asked: dict[str, _Asked] = {}  # by Flower's id of the message
        self._here: deque[Event] = deque()  # what carrying out effects led to
        self._ended: queue.SimpleQueue[ProcessEnded] = queue.SimpleQueue()  # from other threads
        self.stop = threading.Event()
        self._seen_s = -SEEN_S
        self._unsafe: Vec | None = None  # the final model, while it could not be kept
        self._again_s = self._until_s = 0.0
        self._error: EdgegossipError | None = None

    @property
    def lost(self) -> dict[NodeId, str]:
        """Boards that are down at this moment, and why."""
        return self._engine.lost

    def lose(self, name: NodeId, reason: str) -> None:
        """Take note that a board's process has ended. May be called from any thread."""
        self._ended.put(ProcessEnded(name, reason))

    def run(self, progress: Progress | None = None) -> None:
        """Play the run to its end.

        Raises what it failed with; boards have heard of it when the engine failed or `stop` was
        set, and not yet when the link or anything else did: then call `abandon`."""
        self._carry_out(self._engine.start(time.monotonic(), progress))
        while not self._engine.leaving:
            try:
                self._handle(self._next_event())
            except EdgegossipError as error:
                if self._engine.leaving and isinstance(error, PeerError):
                    self._skip_goodbyes()
                    break
                if self._unsafe is None:
                    raise
                time.sleep(LOOK_S)  # what is wrong with Flower's server can wait until the model is safe
        self._leave()
        if self._error is not None:
            raise self._error

    def abandon(self, words: str) -> None:
        """Tell boards, as far as they can be reached, that the run has failed."""
        try:
            self._handle(Stop(words))
            self._leave()
        except EdgegossipError:
            pass  # nobody can be told any more

    def _leave(self) -> None:
        """Wait until every board has said goodbye, or has had its time."""
        try:
            while not self._engine.over:
                self._handle(Together((*self._from_here(), *self._answers())))
                self._link.wait(0.05)
        except EdgegossipError:
            self._skip_goodbyes()

    def _skip_goodbyes(self) -> None:
        """Nobody can be reached any more: for the engine their time to say goodbye is over."""
        self._carry_out(self._engine.handle(TimePassed(), max(time.monotonic(), self._engine.wake_s)))

    def _handle(self, event: Event) -> None:
        self._carry_out(self._engine.handle(event, time.monotonic()))

    # Events

    def _next_event(self) -> Event:
        """Wait until something happens, or the engine wants to be called; return it."""
        now_s = time.monotonic()
        with self._clock.span("wait"):
            if not self._here and now_s < self._engine.wake_s:
                self._link.wait(min(LOOK_S, self._engine.wake_s - now_s))
        if self.stop.is_set():
            self._error = Stopped("the run was stopped")
            return Stop()
        if self._unsafe is not None and time.monotonic() >= self._again_s:
            self._hand_over(self._unsafe)
        with self._clock.span("wait"):
            return Together((*self._from_here(), *self._looked(), *self._answers()))

    def _from_here(self) -> Iterator[Event]:
        while self._here:
            yield self._here.popleft()

    def _looked(self) -> Iterator[Event]:
        self._hooks.check()
        now_s = time.monotonic()
        while not self._ended.empty():
            yield self._ended.get()
        if now_s - self._seen_s >= SEEN_S:
            self._seen_s = now_s
            yield Seen(tuple(self._link.nodes()))

    def _answers(self) -> Iterator[Event]:
        for reply in self._link.pull(list(self._asked)) if self._asked else ():
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                identity = self._hooks.identity(asked.node)
                yield Answered(asked.number, read_answer(asked.wish, reply, is_away(reply), identity))
        if self._link.delivering():
            yield Delivering()
        if moved := self._link.arriving():
            yield Arriving(frozenset(asked.number for i, asked in self._asked.items() if i in moved))

    # Effects

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(questions):
                    self._send(questions)
                case Forget(number):
                    self._forget(number)
                case Save(progress):
                    self._hooks.save(progress)
                case RoundEnded(round, _, values):
                    metered = {**values, **self._hooks.meter()}
                    self._sink.metrics(COORDINATOR, round, metered | self._clock.finish_round().metrics(round))
                case Record(node, round, values):
                    self._sink.metrics(node, round, values)
                case Log(event, text, fields):
                    self._log(event, text, fields)
                case EvaluateHere(model, examples):
                    assert self._hooks.evaluate is not None
                    with self._clock.span("other"):
                        self._here.append(Evaluated(self._hooks.evaluate(model, examples)))
                case Trained(model):
                    self._until_s = time.monotonic() + SAVE_S
                    self._hand_over(model)
                case Completed():
                    self._hooks.on_over()
                case Finished(error):
                    self._error = self._error or error

    def _send(self, questions: tuple[Question, ...]) -> None:
        with self._clock.span("encode"):
            models: dict[int, RecordDict] = {}
            messages = [
                Message(
                    question_content(q.wish, self._plan, models, self._spool),
                    dst_node_id=q.node,
                    message_type=question_type(q.wish),
                )
                for q in questions
            ]
        with self._clock.span("wait"):
            if any(isinstance(q.wish, Train) for q in questions):
                self._hooks.settle()  # what is asked twice after kill -9 is this round and no earlier one
            ids = self._link.push(messages)
        for message_id, question in zip(ids, questions, strict=True):
            if message_id:
                self._asked[message_id] = _Asked(question.number, question.node, type(question.wish))
            else:
                self._here.append(Undelivered(question.number))

    def _forget(self, number: int) -> None:
        for message_id in [i for i, asked in self._asked.items() if asked.number == number]:
            del self._asked[message_id]
            self._link.forget(message_id)

    def _log(self, event: str, text: str, fields: Mapping[str, str]) -> None:
        if event == "started":
            self._sink.event(COORDINATOR, event, text, **fields, unix_s=time.time())
            self._clock.finish_round()  # what came before belongs to no round
        else:
            self._sink.event(COORDINATOR, event, text, **fields)

    def _hand_over(self, model: Vec) -> None:
        """Hand over the final model, however long the disk has no room for it; boards wait
        meanwhile. Raises HostError."""
        try:
            self._hooks.on_model(model)
            self._unsafe = None
            self._here.append(ModelKept())
        except HostError as error:
            self._unsafe = None
            if time.monotonic() >= self._until_s:
                raise
            self._unsafe, self._again_s = model, time.monotonic() + AGAIN_S
            text = f"{error}: free some space there or mend it; the coordinator holds the trained model and tries again"
            self._sink.event(COORDINATOR, "waiting", f"{text} every {AGAIN_S:g} s")
