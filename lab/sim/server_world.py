"""What a server run is made of in the simulator: the coordinator's driver, boards, and the
transport between them.

The engine is the one that ships, and so are a board's two ends of the protocol (Replica, Uplink),
frames, codecs and the checkpoint files. What is simulated stands around them: the driver's process,
which can be killed between any two of its steps; the transport, which hands each question to a
board at most once and in order, and sees boards by their heartbeats; boards that train a vector.
Nothing in a board's part of the protocol reads a clock, so that clocks of boards cannot jump."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgegossip import frame as wire
from edgegossip.agreement import Agreement, difference
from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Store
from edgegossip.engine.combine import Mean, with_control, with_outer
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_boards import BoardPresence
from edgegossip.engine.server_events import (
    Answer,
    Answered,
    Ask,
    BoardAnswer,
    Bye,
    Completed,
    Effect,
    Evaluate,
    Evaluated,
    EvaluateHere,
    Event,
    EventBatch,
    Failure,
    Finished,
    Hello,
    Joining,
    Log,
    ModelKept,
    PresenceReport,
    ProcessEnded,
    Question,
    RoundEnded,
    Save,
    ServerPlan,
    TimePassed,
    Train,
    Trained,
    Undelivered,
)
from edgegossip.engine.server_frames import Channel, Replica, Uplink
from edgegossip.engine.server_records import Progress
from edgegossip.frame import Aux, Frame
from edgegossip.gossip.outer import OuterOptimizer
from edgegossip.types import EdgegossipError, LocalUpdate, Metrics, NodeId, PeerError, Round, UsageError, Vec
from lab.sim import naming
from lab.sim.byzantine import Byzantine
from lab.sim.checkers import Violation
from lab.sim.disk import FakeDisk
from lab.sim.faults import Fault
from lab.sim.network import Clock, Network
from lab.sim.schedule import layout_of, of
from lab.sim.server_checkers import AWAY, MOMENTUM, SERVER_RULES, Ledger, Note
from lab.sim.server_schedule import ServerSchedule
from lab.sim.trace import Say, Trace, describe

COORDINATOR = 0  # on the network; board i is i + 1
SEEN_S = 0.5  # between two looks of the transport
AWAY_S = 3.0  # of silence, after which the transport may answer in a board's place
DROP_S = 30.0  # of silence, after which the transport has forgotten a board
RETRY_S = 0.3  # between two tries of a board to reach its coordinator
RESTART_S = 3.0  # until a board that was sent away tries again
KEPT_S = 0.2  # until the final model is safe
EVALUATES_S = 0.3
POLL_S = 0.25  # between two looks for answers, at most
WRITE_S = 0.002, 0.08  # until a checkpoint is durable
BYE_S = 2.0  # after the end, for goodbyes under way
LR = 0.1
FOLDER = "/coordinator"
SEND, TAKE, LOG, ROUND, BOOT, DIE, FAULT, WRITE = range(8)  # in the trace's hash


class Sent(NamedTuple):
    """Is a question on its way to a board, with the model as bytes, and which process of the
    coordinator asks."""

    question: Question
    data: bytes
    process: int


class Reply(NamedTuple):
    """Is an answer on its way back, and what is true about it."""

    number: int
    answer: Answer
    process: int
    note: Note


@dataclass(slots=True)
class Saved:
    """Holds what a board's disk does: its codec's memory and its last answer."""

    state: Any
    sequence: int
    answered: tuple[Round, int, bytes, Frame]


class Board:
    """Is one board. `process` counts its processes; the transport knows each by `node`."""

    def __init__(self, world: World, index: int) -> None:
        rng = of(world.schedule.seed, f"board-{index}")
        self.index, self.name = index, world.plan.boards[index]
        self.takes_s = 0.2 + 0.7 * rng.random()
        self.slow, self.liar = 1.0, False
        self.lies: list[tuple[str, float]] = []
        self.hang = self.error = 0.0
        self.up = self.paused = self.busy = False
        self.process = self.away = 0
        self.node: int | None = None
        self.disk: Saved | None = None
        self.alias = self.name  # by which it joins
        self.data = ""  # "other-layout" or "other-labels" while it comes with those
        self.inbox: deque[Sent] = deque()
        self.held: Callable[[], None] | None = None  # what it does when it is no longer paused
        self._world, self._random = world, rng.random
        self._examples = 10 * (index + 1)
        self._target = world.targets[index]
        self._old: list[bytes] = []  # updates of before, for one who lies
        self._numbers: list[tuple[int, int]] = []  # of questions, and of the coordinator's process that asked

    def boot(self) -> None:
        """Begin a new process, which holds no model; its codec's memory comes from its disk."""
        world, self.process = self._world, self.process + 1
        self.up, self.paused, self.busy, self.node, self.held = True, False, False, None, None
        self.inbox.clear()
        self.replica = Replica(world.plan.layout, world.plan.run_id, world.plan.downlink)
        self.uplink = Uplink(world.channel, self.name)
        self.answered: tuple[Round, int, bytes, Frame] | None = None
        if self.disk is not None:
            self.uplink.state, self.uplink.sequence = self.disk.state, self.disk.sequence
            self.answered = self.disk.answered
        world.note(self.index, BOOT, self.process, "starts")

    def take(self, sent: Sent) -> None:
        """Take a question that has come; work on it after those before."""
        self.inbox.append(sent)
        self.go_on()

    def go_on(self) -> None:
        """Begin with the next question."""
        if self.busy or self.paused or not self.up or not self.inbox:
            return
        sent, self.busy = self.inbox.popleft(), True
        wish = sent.question.instruction
        seconds = 0.02
        if isinstance(wish, Train):
            seconds = self.takes_s * self.slow * (0.9 + 0.2 * self._random())
        elif isinstance(wish, Evaluate):
            seconds = 0.1
        self._world.clock.after(seconds, self._done, self.process, sent)

    def _done(self, process: int, sent: Sent) -> None:
        if process != self.process or not self.up:
            return
        if self.paused:
            self.held = lambda: self._done(process, sent)
            return
        self.busy = False
        for answer, lie, number in self._answers(sent):
            if isinstance(sent.question.instruction, Hello | Bye) or not (self.hang and self._random() < self.hang):
                self._world.reply(
                    self,
                    sent,
                    Reply(number, answer, sent.process, self._note(sent, lie)),
                )
            else:
                self._world.seen["hang"] += 1
                self._world.note(self.index, SEND, -1, "never sends its answer")
            if isinstance(answer, Joining) and answer.problem:
                self._world.heard_goodbye(self, Bye(answer.problem, failed=True))
                return
        if isinstance(sent.question.instruction, Bye):
            self._world.heard_goodbye(self, sent.question.instruction)
        else:
            self.go_on()

    def _note(self, sent: Sent, lie: str) -> Note:
        correction = self.replica.correction
        corrected = 0 if correction is None else zlib.crc32(correction.data)
        return Note(self.name, sent.question.address, lie, self.data, corrected)

    def _answers(self, sent: Sent) -> list[tuple[Answer, str, int]]:
        """Return answers to send: the answer, which lie it holds, and to which question."""
        number, wish = sent.question.number, sent.question.instruction
        match wish:
            case Hello():
                lie = "byzantine-name" if self.alias != self.name else ""
                identity = self.name if self._world.plan.certified else None
                mine = agreement_of(self._world.plan, self.data)
                problem = difference(mine, self._world.plan.agreement, "here", "at the coordinator")
                joining = Joining(self.alias, problem, identity, "" if problem else mine.to_json())
                return [(joining, lie, number)]
            case Bye():
                return [(BoardAnswer(profile=self._profile()), "", number)]
        if self.error and self._random() < self.error:
            self._world.seen["error"] += 1
            return [(Failure("training failed"), "error", number)]
        try:
            answer, frame = self._work(sent.data, wish)
        except UsageError as error:
            self._world.seen["error"] += 1
            return [(Failure(str(error)), "error", number)]
        except PeerError as error:
            if not self.liar:
                self._world.violate("reference", self.name, f"cannot read what it is sent: {error}")
            return [(Failure(str(error)), "byzantine-name" if self.liar else "", number)]
        answers: list[tuple[Answer, str, int]] = [(answer, "", number)]
        for kind, share in self.lies:
            if self._random() < share and (lied := self._lie(kind, answer, frame)) is not None:
                self._world.seen[kind] += 1
                answers = [(lied, kind, number)]
                if kind == "byzantine-stale" and self._numbers and self._random() < 0.5:
                    process, before = self._numbers[-1]
                    if process == sent.process:  # else it is the number of another's question by now
                        answers.insert(0, (answer, kind, before))
        self._numbers.append((sent.process, number))
        return answers

    def _work(self, data: bytes, wish: Train | Evaluate) -> tuple[BoardAnswer, Frame | None]:
        """Open the model, evaluate it if asked to, train from it; the same model gets the same
        answer again."""
        world = self._world
        frame, x = self.replica.open(data)
        found = None if wish.examples is None else Metrics(world.loss(x), wish.examples or 100, {"accuracy": 0.5})
        if isinstance(wish, Evaluate):
            return BoardAnswer(evaluation=found), None
        profile, crc, correction = self._profile(), zlib.crc32(x.data), self.replica.correction
        if correction is not None:
            crc = zlib.crc32(correction.data, crc)
        if self.answered is None or self.answered[:2] != (frame.round, crc):
            lr = LR / (1.0 + 0.1 * frame.round)
            gap, steps = self._target - x, 1
            delta = np.float32(lr) * gap
            if correction is not None:  # boards do not all take as many steps
                steps, delta = 1 + self.index % 3, np.zeros_like(x)
                for _ in range(steps):
                    delta += np.float32(lr) * (gap - delta - correction)
            loss = float(np.mean(gap * gap))
            if not math.isfinite(loss):  # a liar led it there: it says so, as a board's workload does
                raise UsageError(f"the training loss became {loss}")
            update = LocalUpdate(delta, lr, loss, self._examples, steps, corrected=correction is not None)
            made = self.uplink.frame(update, frame.round, frame.aux)
            self.answered = (frame.round, crc, b"".join(wire.build(made)), made)
            self.disk = Saved(self.uplink.state, self.uplink.sequence, self.answered)
            self._old.append(self.answered[2])
        return BoardAnswer(self.answered[2], found, profile), self.answered[3]

    def _profile(self) -> tuple[Round, Mapping[str, float]] | None:
        return None if self.answered is None else (self.answered[0], {"time/compute_s": self.takes_s})

    def _lie(self, kind: str, answer: BoardAnswer, frame: Frame | None) -> Answer | None:
        """Return what a liar makes of its answer; None where this kind has nothing to change."""
        choice = int(self._random() * 6)
        if kind == "byzantine-evaluation":
            wild = (math.nan, math.inf, 1e300, -1e300, 1e30, -1e30)[choice]
            return replace(answer, evaluation=Metrics(wild, 1), profile=PeerError("no profile"))
        if kind == "byzantine-answer":
            others: tuple[Answer, ...] = (
                *(Joining(self.name), BoardAnswer(), PeerError("nonsense"), Failure("no")),
                *(BoardAnswer(frame=PeerError("no frame")), BoardAnswer(evaluation=Metrics(1.0, 1))),
            )
            return others[choice]
        if frame is None or kind == "byzantine-name":
            return None
        if kind == "byzantine-stale":
            return replace(answer, frame=self._old[-2]) if len(self._old) > 1 else None
        if kind == "byzantine-examples":
            return self._claiming(answer, frame, {Aux.EXAMPLES: (1e12, 1e10, 1e9, 1e8, 3e7, 1e11)[choice]})
        if kind == "byzantine-claim":
            claims: tuple[dict[int, float], ...] = (
                {Aux.EXAMPLES: 0.0},
                {Aux.EXAMPLES: -5.0},
                {Aux.EXAMPLES: 1e13},
                {Aux.LOSS: 1e30},
                {Aux.LOSS: -1.0, Aux.LEVELS: 3.0},
                {Aux.LEARNING_RATE: -1.0},
            )
            return self._claiming(answer, frame, claims[choice])
        data = self._world.byzantine.tamper(kind, frame)
        return None if data is None else replace(answer, frame=data)

    @staticmethod
    def _claiming(answer: BoardAnswer, frame: Frame, claims: Mapping[int, float]) -> BoardAnswer:
        return replace(answer, frame=b"".join(wire.build(replace(frame, aux={**frame.aux, **claims}))))


def agreement_of(plan: ServerPlan, data: str = "") -> Agreement:
    """Return what a board with these data must have alike. Its coordinator knows the size of the
    model."""
    values = plan.layout.size + (data == "other-layout")
    return Agreement({"values": values, "labels": "8" if data == "other-labels" else "10"})


class Coordinator:
    """Drives one ServerEngine: it carries out effects one by one, and can die between any two of
    them."""

    def __init__(self, world: World) -> None:
        self._world, self._random = world, of(world.schedule.seed, "coordinator").random
        self.disk = FakeDisk()
        self.process, self.alive, self.paused = 0, False, False
        self.fuse: tuple[int, Fault] | None = None  # steps until it dies, and of what
        self._polls = self._random() < 0.4  # looks for answers now and then; else it hears of each
        self._inbox: list[tuple[Event, Note | None]] = []
        self._todo: deque[Effect] = deque()

    def boot(self) -> None:
        """Begin a process: read the newest file, and go on from there."""
        world = self._world
        self.process, self.alive, self.paused = self.process + 1, True, False
        self._inbox.clear()
        self._todo.clear()
        self._writing: Progress | None = None
        self._settling = False
        self._wake_s = math.inf
        self._store = Store(Path(FOLDER), {"run": world.plan.run_id}, keep=2, files=self.disk)
        found = self._store.load(RunContext(layout=world.plan.layout))
        progress = None
        if found is not None:
            progress = found.value
            progress.check(world.plan.layout)
        world.note(None, BOOT, 0 if progress is None else progress.round, "the coordinator starts")
        world.ledger.began(progress, world.clock.now)
        uniform, kind = world.plan.weighting == "uniform", world.schedule.settings.combiner
        optimizer = OuterOptimizer("heavy-ball", lr=1.0, momentum=MOMENTUM) if kind == "momentum" else None
        combiner = with_outer(Mean(world.channel, uniform=uniform), optimizer, world.channel.layout)
        combiner = with_control(combiner, kind, world.channel, len(world.boards), uniform=uniform)
        self.engine = ServerEngine(world.plan, world.initial, combiner)
        self._carry(self.engine.start(world.clock.now, progress), looked=False)
        world.clock.after(0.0, self._look, self.process)

    def feed(self, event: Event, note: Note | None = None) -> None:
        """Take an event; those that come while it is busy, or before it looks for more, are taken
        together."""
        if not self.alive:
            return
        self._inbox.append((event, note))
        if not self._polls or isinstance(event, TimePassed):
            self._pump()
        elif len(self._inbox) == 1:
            self._world.clock.after(POLL_S * self._random(), self._pump_of, self.process)

    def pause(self) -> None:
        """Stand still."""
        self.paused = True

    def unpause(self) -> None:
        """Go on as if nothing had happened."""
        self.paused = False
        self._pump()

    def die(self, fault: Fault) -> None:
        """End the process; what its disk holds then depends on the fault."""
        world, kind = self._world, fault.kind
        self.alive, self.fuse = False, None
        world.seen[kind] += 1
        if self._writing is not None:  # in the middle of that, at one of its operations
            left = [int(self._random() * 8)]

            def before(operation: str, path: str) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise InterruptedError

            self.disk.before = before
            with contextlib.suppress(InterruptedError):
                self._store.save(self._writing, round=self._writing.round)
        files = sorted(n for n in self.disk.names(FOLDER) if n.endswith(".ckpt"))
        cut = kind == "coordinator-power-cut"
        self.disk = self.disk.after_power_cut(of(world.schedule.seed, "power")) if cut else self.disk.after_kill()
        if files and kind == "coordinator-torn-write":
            path = f"{FOLDER}/{files[-1]}"
            self.disk.damage(path, self.disk.open(path).size // 2)
            world.ledger.broken = True
        if files and kind == "coordinator-lost-write":
            self.disk.remove(f"{FOLDER}/{files[-1]}")
            self.disk.sync_folder(FOLDER)  # or a later power cut would bring it back
            world.ledger.broken = True
        world.note(None, DIE, fault.strength, f"the coordinator dies ({kind})")
        world.coordinator_died(max(0.3, fault.end - fault.start))

    def _pump(self) -> None:
        while self.alive and not self.paused and not self._settling:
            if self._todo:
                self._step()
            elif self._inbox and not self.engine.over:
                self._handle()
            else:
                return

    def _pump_of(self, process: int) -> None:
        if process == self.process:
            self._pump()

    def _handle(self) -> None:
        world, now = self._world, self._world.clock.now
        events = []
        for event, note in self._inbox:
            world.ledger.event(event, note, now)
            events.append(event)
        self._inbox.clear()
        effects = self.engine.handle(events[0] if len(events) == 1 else EventBatch(tuple(events)), now)
        self._carry(effects, any(isinstance(e, PresenceReport) for e in events))

    def _carry(self, effects: list[Effect], looked: bool) -> None:
        world = self._world
        self._todo.extend(effects)
        world.ledger.effects(effects, looked, world.clock.now)
        wake_s = self.engine.wake_s
        if wake_s < math.inf and wake_s != self._wake_s:
            self._wake_s = wake_s
            world.clock.at(wake_s, self._woken, self.process, wake_s)
        self._pump()

    def _woken(self, process: int, wake_s: float) -> None:
        if process == self.process and self.alive and self._wake_s == wake_s:
            self._wake_s = math.inf
            if self.engine.wake_s <= self._world.clock.now:
                self.feed(TimePassed())

    def _look(self, process: int) -> None:
        if process == self.process and self.alive and not self.engine.over:
            if not self.paused:
                self.feed(PresenceReport(self._world.seen_boards()))
            self._world.clock.after(SEEN_S, self._look, process)

    def _step(self) -> None:
        """Carry out the next effect; of questions one at a time."""
        world, effect = self._world, self._todo[0]
        if self.fuse is not None:
            steps, fault = self.fuse
            if steps <= 0:
                self.die(fault)
                return
            self.fuse = (steps - 1, fault)
        if isinstance(effect, Ask):
            if self._writing is not None:
                self._settling = True  # until what was saved is durable
                return
            first, *rest = effect.questions
            if rest:
                self._todo[0] = Ask(tuple(rest))
            else:
                self._todo.popleft()
            world.ask(first, self.process)
            return
        self._todo.popleft()
        match effect:
            case Save(progress):
                self._writing = progress
                low, high = WRITE_S
                world.clock.after(low + (high - low) * self._random(), self._written, self.process, progress)
            case Trained(model):
                world.clock.after(KEPT_S, self._kept, self.process, model)
            case EvaluateHere(model, examples):
                found = Metrics(world.loss(model), examples or 100, {"accuracy": 0.5})
                world.clock.after(EVALUATES_S, self._feed_of, self.process, Evaluated(found))
            case RoundEnded(round, model):
                world.trace.model(model)
                world.note(None, ROUND, round, f"round {round} ends with {', '.join(effect.used) or 'nobody'}")
            case Log(event, text):
                world.note(None, LOG, zlib.crc32(text.encode()), f"{event}: {text}")
            case Completed():
                self._store.clear()
            case Finished(error):
                world.over(error)

    def _feed_of(self, process: int, event: Event) -> None:
        if process == self.process:
            self.feed(event)

    def _kept(self, process: int, model: Vec) -> None:
        if process == self.process and self.alive:
            self._world.ledger.final = model
            self.feed(ModelKept())

    def _written(self, process: int, progress: Progress) -> None:
        if process != self.process or not self.alive:
            return
        self._store.save(progress, round=progress.round)
        self._world.ledger.durable = progress.round
        self._world.note(None, WRITE, progress.round, f"what comes before round {progress.round} is durable")
        if self._writing is progress:
            self._writing = None
        self._settling = False
        self._pump()


class World:
    """Holds everything in one run, by its clock."""

    def __init__(self, schedule: ServerSchedule, say: Say | None) -> None:
        seed, n, s = schedule.seed, schedule.nodes, schedule.settings
        self.schedule, self.clock, self.trace = schedule, Clock(), Trace(say)
        self.seen: Counter[str] = Counter()
        self.violations: list[Violation] = []
        rng = np.random.default_rng(seed)
        layout = layout_of(schedule.values)
        center = rng.normal(size=schedule.values)
        self.targets = (center + 0.5 * rng.normal(size=(n, schedule.values))).astype(np.float32)
        self._center = center.astype(np.float32)
        self.initial: Vec = rng.normal(size=schedule.values).astype(np.float32)
        rounds = range(s.every - 1, schedule.rounds, s.every) if s.every else ()
        self.plan = ServerPlan(
            boards=tuple(naming.member_names(n)),
            rounds=schedule.rounds,
            layout=layout,
            run_id=seed.to_bytes(16, "big"),
            codec=naming.codec_of(schedule.codec),
            downlink=naming.codec_of(naming.parse("downlink", s.downlink)),
            seed=seed,
            fraction=s.fraction,
            min_nodes=s.min_nodes,
            quorum=s.quorum,
            deadline_s=s.deadline_s,
            join_s=s.join_s,
            return_s=s.return_s,
            weighting=s.weighting,
            evaluate_after=frozenset(rounds),
            evaluates_itself=s.evaluates == "coordinator",
            certified=s.certified,
            records_boards=s.records,
            agreement=Agreement({"values": layout.size}),
        )
        self.channel = Channel.of(layout, self.plan.run_id, self.plan.codec)
        limits = wire.Limits.of(layout)
        self.byzantine = Byzantine(of(seed, "byzantine"), self.plan.codec, layout, limits)
        kinds = frozenset(f.kind for f in schedule.faults)
        self.ledger = Ledger(
            self.plan, s.combiner, self.initial, kinds, schedule.seconds, self.loss, lambda *what: self.violate(*what)
        )
        self.boards = [Board(self, i) for i in range(n)]
        self.down = Network(self.clock, of(seed, "down"), n + 1, self._reached, self.seen)
        self.up = Network(self.clock, of(seed, "up"), n + 1, self._came_back, self.seen)
        self.coordinator = Coordinator(self)
        self.error: EdgegossipError | None = None
        self.finished = False
        self._random = of(seed, "world").random
        self._stock = self._random() < 0.15  # board 0 beats so seldom that silence means nothing
        self._slots: dict[int, tuple[Board, int]] = {}  # processes, by the transport's numbers
        self._silent: dict[int, float] = {}  # since when
        self._last_number = 100
        self.cut: Counter[int] = Counter()  # by board: splits that keep it from its coordinator
        self._unchanged: tuple[BoardPresence, ...] | None = None
        self._bytes: tuple[Frame, bytes] | None = None

    def loss(self, x: Vec) -> float:
        """Return the loss of a model on test data."""
        gap = (x - self._center).astype(np.float64)
        return float(gap @ gap) / gap.size

    def note(self, board: int | None, what: int, number: float, text: str) -> None:
        """Put something into the trace and its hash."""
        now = self.clock.now
        self.trace.event(now, -1 if board is None else board, what, float(number))
        if self.trace.say is not None:
            self.trace.line(now, board, text)

    def violate(self, rule: str, name: NodeId | None, text: str) -> None:
        """Take note of a broken promise; the run ends with it."""
        index = self.plan.boards.index(name) if name in self.plan.boards else None
        self.violations.append(Violation(rule, index, round(self.clock.now, 3), text))
        self.trace.line(self.clock.now, index, f"VIOLATION of {rule} ({SERVER_RULES[rule]}): {text}")
        self.clock.stop()

    # The transport

    def reachable(self, board: Board) -> bool:
        """Tell whether a board's heartbeats arrive."""
        return board.up and not board.paused and not self.cut[board.index]

    def join(self, board: Board, process: int) -> None:
        """Give a process of a board a number, as soon as it reaches its coordinator."""
        if process != board.process or not board.up or board.node is not None or self.finished:
            return
        if not self.coordinator.alive or not self.reachable(board):
            self.clock.after(RETRY_S, self.join, board, process)
            return
        self._last_number += 1 + int(self._random() * 5)
        board.node = self._last_number
        self._slots[board.node] = (board, process)
        self._unchanged = None

    def changed(self, board: Board) -> None:
        """Look anew whether a board's heartbeats arrive."""
        self._unchanged = None
        for node, (who, process) in self._slots.items():
            if who is board:
                if self.reachable(board) and process == board.process:
                    self._silent.pop(node, None)
                else:
                    self._silent.setdefault(node, self.clock.now)
        if board.up and board.node is not None and board.node not in self._slots:
            board.node = None  # the transport has forgotten it
            self.join(board, board.process)

    def seen_boards(self) -> tuple[BoardPresence, ...]:
        """Return all boards that the transport sees now."""
        if self._unchanged is not None:
            return self._unchanged
        now = self.clock.now
        for node in [n for n, since in self._silent.items() if now - since > DROP_S]:
            del self._silent[node], self._slots[node]
        seen = tuple(
            BoardPresence(node, now - self._silent.get(node, now), not (self._stock and board.index == 0))
            for node, (board, _) in self._slots.items()
        )
        self._unchanged = None if self._silent else seen
        return seen

    def ask(self, question: Question, process: int) -> None:
        """Send a question; its answer, or what stands for one, comes back to the coordinator."""
        slot = self._slots.get(question.address)
        wish = question.instruction
        number = float(question.number)
        if slot is None:
            self.note(None, SEND, number, f"-> number {question.address}, which is gone: {type(wish).__name__}")
            self.clock.after(
                0.0, self._return, Reply(question.number, Failure(""), process, Note("", question.address))
            )
            return
        board, data = slot[0], b""
        if isinstance(wish, Train | Evaluate):
            if self._bytes is None or self._bytes[0] is not wish.frame:
                self._bytes = (wish.frame, b"".join(wire.build(wish.frame)))
            data = self._bytes[1]
        if self.trace.say is not None:
            what = describe(wish.frame) if isinstance(wish, Train | Evaluate) else ""
            text = f"-> {board.index}: {type(wish).__name__.lower()}, question {question.number} {what}"
            self.trace.line(self.clock.now, None, text)
        self.trace.event(self.clock.now, -1, SEND, number)
        silent_s = self.clock.now - self._silent.get(question.address, self.clock.now)
        if silent_s > AWAY_S and self._random() < 0.5:
            away = Failure(AWAY, away=True)
            note = Note(board.name, question.address)
            self.clock.after(0.5, self._return, Reply(question.number, away, process, note))
        else:
            self.down.send(COORDINATOR, board.index + 1, Sent(question, data, process))

    def _reached(self, receiver: int, sent: Sent) -> None:
        board = self.boards[receiver - 1]
        if board.up and board.node == sent.question.address and sent.process == self.coordinator.process:
            self.trace.event(self.clock.now, board.index, TAKE, sent.question.number)
            board.take(sent)

    def reply(self, board: Board, sent: Sent, reply: Reply) -> None:
        """Send an answer."""
        fate = self.up.send(board.index + 1, COORDINATOR, reply)
        lie = f", a lie ({reply.note.lie})" if reply.note.lie else ""
        what = type(reply.answer).__name__.lower()
        text = f"answers question {reply.number}: {what}{lie}" + (f", {fate}" if fate else "")
        self.note(board.index, SEND, reply.number, text)

    def _came_back(self, receiver: int, reply: Reply) -> None:
        self._return(reply)

    def _return(self, reply: Reply) -> None:
        if reply.process != self.coordinator.process or not self.coordinator.alive:
            return  # the process that asked is gone
        self.trace.event(self.clock.now, -1, TAKE, reply.number)
        if reply.note.name:
            self.coordinator.feed(Answered(reply.number, reply.answer), reply.note)
        else:
            self.coordinator.feed(Undelivered(reply.number))

    # Processes

    def start(self, board: Board) -> None:
        """Begin a process of a board, unless something keeps it away."""
        if not board.up and not board.away and not self.finished:
            board.boot()
            self.changed(board)
            self.clock.after(0.02, self.join, board, board.process)

    def kill(self, board: Board, why: str) -> None:
        """End a board's process without a goodbye; the coordinator finds out as the schedule
        says."""
        if not board.up:
            return
        node, notices = board.node, self.schedule.settings.notices
        board.up, board.node = False, None
        self.note(board.index, DIE, board.process, why)
        self.changed(board)
        if node is not None and notices == "leave":
            self._slots.pop(node, None)
            self._silent.pop(node, None)
        if notices == "launcher":
            process = self.coordinator.process
            self.clock.after(0.2, self._ended, process, board.name)

    def _ended(self, process: int, name: NodeId) -> None:
        if process == self.coordinator.process:
            self.coordinator.feed(ProcessEnded(name, "its process has ended"))

    def heard_goodbye(self, board: Board, bye: Bye) -> None:
        """End a board's process; one that was sent away before the end tries again."""
        self.note(board.index, DIE, board.process, f"leaves: {bye.words}")
        node, board.up, board.node = board.node, False, None
        self._unchanged = None
        if node is not None:
            self._slots.pop(node, None)
            self._silent.pop(node, None)
        if not self.coordinator.engine.over and not self.ledger.completed:
            self.clock.after(RESTART_S, self.start, board)

    def coordinator_died(self, seconds: float) -> None:
        """Let boards lose their connections, and the coordinator come back, unless all was done."""
        self._slots.clear()
        self._silent.clear()
        self._unchanged = None
        for board in self.boards:
            board.node = None
            board.inbox.clear()
            if board.up:
                self.clock.after(RETRY_S + 2.0 * self._random(), self.join, board, board.process)
        if self.ledger.completed:
            self.finished = True
            self.clock.stop()
        else:
            self.clock.after(seconds, self._restart)

    def _restart(self) -> None:
        if not self.coordinator.alive:
            self.coordinator.boot()

    def over(self, error: EdgegossipError | None) -> None:
        """End the run; what is under way may still arrive."""
        self.error, self.finished = error, True
        self.note(None, LOG, 0, f"the run is over{f': {error}' if error is not None else ''}")
        self.clock.after(BYE_S, self.clock.stop)
