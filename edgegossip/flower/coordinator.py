"""Runs a whole Flower server: starts the SuperLink and a run, trains, and takes everything down
again.

`Coordinator` is what a caller holds; `Driver` is the loop within it, which carries out the server
engine's effects over Flower's SuperLink: messages out, answers in, records, checkpoints, the clock.

The SuperLink is the only other process. What Flower would run in two more (SuperExec and the
ServerApp) is a thread here, so that records and errors need no detour and nothing can be left
behind.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.engine.combine import with_control, with_outer
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_events import (
    Answered,
    Arriving,
    Ask,
    Better,
    Completed,
    Delivering,
    Effect,
    Evaluated,
    EvaluateHere,
    Event,
    EventBatch,
    Finished,
    Forget,
    Instruction,
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
from edgegossip.engine.server_frames import COORDINATOR, Channel
from edgegossip.engine.server_records import Progress
from edgegossip.flower._private.runtime import RunLink, is_away, register_key, start_run
from edgegossip.flower.admission import AdmissionController
from edgegossip.flower.checkpoints import CoordinatorCheckpointer
from edgegossip.flower.combine import check_enough, combiner, make_strategy
from edgegossip.flower.connection import LinkError, ServerCredentials
from edgegossip.flower.messages import question_content, question_type, read_answer
from edgegossip.flower.superlink import SuperLink, launch
from edgegossip.frame import HEADER_BYTES, Limits
from edgegossip.gossip import outer
from edgegossip.layout import Layout
from edgegossip.memory import Spool
from edgegossip.recipe import Recipe
from edgegossip.telemetry.records import Sink, Value
from edgegossip.telemetry.run_folder import SUPERLINK_LOG
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training.schedule import learning_rate
from edgegossip.types import EdgegossipError, HostError, Metrics, NodeId, PeerError, Round, RunError, Vec

JOIN_S = 120.0  # slow boards import torch and read their data in well under this
STOP_S = 8.0  # for the thread to say goodbye to every board
CLAIM_S = 10.0
SEEN_S = 0.5  # between two looks at who is there
LOOK_S = 0.25  # between two looks for answers, should nobody say that there are any
SAVE_S = 3600.0  # for somebody to make room for the final model
AGAIN_S = 5.0  # between two tries, each of which is logged

Evaluate = Callable[[Vec, int | None], Metrics]  # model float32[n], number of test examples (None: all)


def plan_of(recipe: Recipe, layout: Layout, boards: Sequence[NodeId], run_id: bytes) -> ServerPlan:
    """Return what a recipe says of a server run; the rest of the plan is as it is by default."""
    server, rounds = recipe.server, recipe.run.rounds
    return ServerPlan(
        boards=tuple(boards),
        rounds=rounds,
        layout=layout,
        run_id=run_id,
        codec=codecs.get(recipe.codec.name, **recipe.codec.params),
        downlink=codecs.get(server.downlink, **server.downlink_params),
        seed=recipe.run.seed,
        fraction=server.fraction,
        min_nodes=server.min_nodes,
        quorum=server.quorum,
        deadline_s=server.deadline_s,
        weighting=server.weighting,
        evaluate_after=recipes.evaluation_rounds(recipe),
        evaluation_examples=recipe.evaluation.examples,
        better=recipe.evaluation.better,
        patience=recipe.evaluation.patience,
        keeps_best=recipe.checkpoint.best,
        evaluates_everywhere=recipes.tests_by_board(recipe),
        # the rate of a plateau is each board's own matter
        learning_rate=None
        if recipe.training.schedule == "plateau"
        else lambda round: learning_rate(recipe.training, round, rounds),
    )


class Coordinator:
    """Holds one server run on this machine.

    Use as a context manager, or call `stop` whatever happens.

        with Coordinator(recipe, layout, initial, ["pi-01", "pi-02"], sink, folder) as coordinator:
            address = coordinator.start()  # boards: NodeClient(name, address, ...).run()
            coordinator.wait()
            model = coordinator.model

    - `boards`: the names that may join. They reach it at the address that `start` returns.
    - `sink`: gets records of the server itself, under the node name "coordinator". Flower's own log
      is `folder`/logs/superlink.log.
    - `record_boards`: also a record a board and round, of what its update says (loss, examples,
      payload) and of the profile that the board sends of it, for boards that keep their own records
      elsewhere.
    - `evaluate`: the coordinator evaluates, not the boards.
    - `agreement`: what every board must have alike, as far as it is known here.
    - `checkpointer`: it goes on from the last round that an earlier process kept; boards that do
      not come back within a minute are then gone on without.
    - `credentials`: it speaks TLS, and boards take part under the names in their certificates.
    - `return_s`: how long it waits for boards to come back when fewer than server.min_nodes are
      left, unless `lose` has said that they do not.
    - `on_model`: gets the final model before it is evaluated, and again every few seconds for an
      hour while it raises HostError, as on a full disk.
    - `on_better`: gets a model that was evaluated as better than all before, with checkpoint.best;
      the rounds that it has had, and by what it is better (`Metrics.merit`).
    - `on_over`: is called before boards hear that the run is over, so that no moment is left in
      which both model and checkpoints could be lost.
    - `superlink`: one that has been launched with these settings already; it is this coordinator's
      from then on.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout,
        initial: Vec,
        boards: Sequence[NodeId],
        sink: Sink,
        folder: Path,
        *,
        port: int | None = None,
        run_id: bytes | None = None,
        join_s: float = JOIN_S,
        record_boards: bool = False,
        evaluate: Evaluate | None = None,
        agreement: Agreement = Agreement({}),
        checkpointer: CoordinatorCheckpointer | None = None,
        credentials: ServerCredentials | None = None,
        return_s: float = 0.0,
        on_model: Callable[[Vec], None] = lambda model: None,
        on_better: Callable[[Vec, Round, float], None] = lambda model, rounds, merit: None,
        on_over: Callable[[], None] = lambda: None,
        superlink: SuperLink | None = None,
    ) -> None:
        layout.check(initial)
        server = recipe.server
        self._outer = outer.make(**asdict(recipe.outer))
        strategy = make_strategy(server.strategy, server.strategy_params, self._outer)
        check_enough(strategy, server, len(boards))
        self._progress = None if checkpointer is None else checkpointer.load()
        self._recipe, self._evaluate, self._strategy = recipe, evaluate, strategy
        self._plan = replace(
            plan_of(recipe, layout, boards, run_id or recipes.run_id(recipe)),
            join_s=server.join_s or join_s,
            return_s=return_s,
            evaluates_itself=evaluate is not None,
            certified=credentials is not None,
            records_boards=record_boards,
            hands_out_model=bool(recipe.run.script),
            agreement=agreement,
            instance=os.urandom(8).hex() if self._progress is None else self._progress.instance,
        )
        self._initial: Vec | None = initial
        self._boards, self._sink, self._folder = tuple(boards), sink, folder
        self._port = recipe.network.port if port is None else port
        self._checkpointer, self._credentials = checkpointer, credentials
        self._on_model, self._on_better, self._on_over = on_model, on_better, on_over
        self._over = threading.Event()  # not Thread.join: interrupted by Ctrl-C, that takes a live thread for dead
        self._superlink = superlink
        self._driver: Driver | None = None
        self._admission: AdmissionController | None = None
        self._thread: threading.Thread | None = None
        self._model: Vec | None = None
        self._error: EdgegossipError | None = None

    def start(self) -> str:
        """Start; return HOST:PORT for the boards. Returns as soon as they can join.

        Call it from a thread that lives as long as the run: the kernel ends the SuperLink when that
        thread ends. Raises ConfigError, HostError (port in use) or RunError, with nothing left
        running.
        """
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what matters is in our own events
        if self._superlink is None:
            log = self._folder / SUPERLINK_LOG
            self._superlink = launch(self._recipe.network.host, self._port, log, credentials=self._credentials)
        try:
            self._superlink.await_ready()
            link = self._claim(self._superlink)
        except BaseException:
            self.stop()
            raise
        self._admission = self._make_admission(self._superlink, link)
        self._driver = self._make_driver(link, self._superlink, self._admission)
        self._admission.start(HEADER_BYTES + Limits.of(self._plan.layout).max_body_bytes)
        self._thread = threading.Thread(target=self._serve, args=(link, self._driver), daemon=True, name="rounds")
        self._thread.start()
        address = self._superlink.address
        text, round = f"coordinator listens on {address}", self.resumed or 0
        self._sink.event(COORDINATOR, "listening", text, address=address, round=round)
        return address

    def poll(self) -> bool:
        """Return whether the run is over. Raises what it failed with."""
        if not self._over.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; return whether it is over.

        Raises what the run failed with, such as RunError."""
        self._over.wait(timeout_s)
        return self.poll()

    @property
    def resumed(self) -> int | None:
        """The round in which it goes on for an earlier process; None when it begins."""
        return None if self._progress is None else self._progress.round

    @property
    def round(self) -> Round:
        """The round in progress, or to be played next: how many the model has had."""
        return 0 if self._driver is None else self._driver.round

    @property
    def model(self) -> Vec:
        """The final model, float32[n]. Raises RunError before the end."""
        if self._model is None:
            raise RunError("the run has no final model yet")
        return self._model

    @property
    def lost(self) -> dict[NodeId, str]:
        """Boards that are down at this moment, and why."""
        return {} if self._driver is None else self._driver.lost

    def lose(self, board: NodeId, reason: str) -> None:
        """Take note that a board's process has ended: go on without it now instead of when it has
        been silent for long."""
        if self._driver is not None:
            self._driver.lose(board, reason)

    def stop(self) -> None:
        """End the run if it is not over, and every process of it.

        Idempotent; no process is left when it returns."""
        if self._driver is not None:
            self._driver.stop.set()
        if self._thread is not None:
            self._over.wait(STOP_S)
        if self._admission is not None:
            self._admission.close()
        if self._superlink is not None:
            self._superlink.stop()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def _claim(self, superlink: SuperLink) -> RunLink:
        config = {"edgegossip-run": self._plan.run_id.hex()}
        run = start_run(superlink.address, superlink.context, config, token=superlink.token)
        link = RunLink(superlink.address, superlink.context, superlink.secret, superlink.token, Spool(self._folder))
        if link.claim(CLAIM_S) != run:
            raise RunError("the SuperLink handed out another run than the one that was started")
        return link

    def _make_admission(self, superlink: SuperLink, link: RunLink) -> AdmissionController:
        return AdmissionController(
            superlink.line,
            None if self._credentials is None else self._credentials.admission,
            self._boards,
            partial(register_key, superlink.address, superlink.context, superlink.token),
            lambda refusal: self._sink.event(COORDINATOR, "refused", str(refusal), **refusal.fields),
            self.lose,
            link.news.set,
            recipes.shared_toml(self._recipe),
            link.taken.set,
        )

    def _serve(self, link: RunLink, driver: Driver) -> None:
        """Play the run: everything between the first board and the last. A thread of its own."""
        error: str | None = None
        try:
            driver.run(self._progress)
        except LinkError as gone:
            words = f"the coordinator lost Flower's SuperLink: {gone}; see its log in {self._folder}/logs"
            self._error, error = RunError(words), str(gone)
            driver.abandon(words)
        except EdgegossipError as failure:
            self._error, error = failure, str(failure)
            driver.abandon(f"the run failed: {failure}")
        except Exception as bug:  # ours or a strategy's; the boards must not wait for ever
            logging.getLogger(__name__).exception("the coordinator failed")
            self._error, error = RunError(f"the coordinator failed: {type(bug).__name__}: {bug}"), str(bug)
            driver.abandon(str(self._error))
        finally:
            try:
                link.finish(error)
                if self._checkpointer is not None:
                    self._checkpointer.close(over=False)
            finally:
                self._over.set()  # or who waits would do so for ever

    def _make_driver(self, link: RunLink, superlink: SuperLink, admission: AdmissionController) -> Driver:
        plan, checkpointer = self._plan, self._checkpointer
        clock = RoundClock()
        channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        uniform = plan.weighting == "uniform"
        server = self._recipe.server
        combine = combiner(self._strategy, channel, uniform, server.malicious_nodes)
        combine = with_outer(combine, self._outer, plan.layout)
        combine = with_control(combine, server.strategy, channel, len(plan.boards), uniform=uniform)
        hooks = Hooks(
            check=superlink.check,
            identity=admission.name_of,
            save=checkpointer.save if checkpointer is not None else lambda progress: None,
            flush=checkpointer.flush if checkpointer is not None else lambda: None,
            meter=admission.sockets,
            evaluate=self._evaluate,
            on_model=self._trained,
            on_better=self._on_better,
            on_over=self._on_over,
        )
        assert self._initial is not None
        engine = ServerEngine(plan, self._initial, combine, clock.span)
        self._initial = None  # a model that is no longer needed after the first round
        return Driver(engine, plan, link, self._sink, clock, hooks, Spool(self._folder))

    def _trained(self, model: Vec) -> None:
        self._on_model(model)
        self._model = model


# -- the loop


class Stopped(RunError):
    """Says that the run was told to stop."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Names what the driver calls besides the link and the sink.

    `check` raises RunError when Flower's server has ended; `identity` says whose certificate a
    board has shown, by its number; `save` hears how far the run is, `flush` returns when that is
    safe; `meter` has more values for the record of the round that just ended; `evaluate` evaluates
    float32[n] on so many examples (None: all); `on_model` takes the final model and may raise
    HostError, after which it is tried again; `on_better` takes one that was evaluated as better
    than all before, with how many rounds it has had; `on_over` is called before boards hear that
    the run is over."""

    check: Callable[[], None] = lambda: None
    identity: Callable[[int], NodeId | None] = lambda node: None
    save: Callable[[Progress], None] = lambda progress: None
    flush: Callable[[], None] = lambda: None
    meter: Callable[[], Mapping[str, Value]] = dict
    evaluate: Callable[[Vec, int | None], Metrics] | None = None
    on_model: Callable[[Vec], None] = lambda model: None
    on_better: Callable[[Vec, Round, float], None] = lambda model, rounds, merit: None
    on_over: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Pending:
    """Notes a question that is under way, without its frame, which is as large as the model."""

    number: int
    node: int
    instruction: type[Instruction]


class Driver:
    """Runs one engine over a link. `clock` is the one that the engine's spans are of, `spool` where
    large frames go.

    Not thread-safe, except for `lose` and `stop`."""

    def __init__(
        self,
        engine: ServerEngine,
        plan: ServerPlan,
        link: RunLink,
        sink: Sink,
        clock: RoundClock,
        hooks: Hooks = Hooks(),
        spool: Spool = Spool(),
    ) -> None:
        self._engine, self._plan, self._link, self._sink = engine, plan, link, sink
        self._clock, self._hooks, self._spool = clock, hooks, spool
        self._pending: dict[str, _Pending] = {}  # by Flower's id of the message
        self._internal: deque[Event] = deque()  # what carrying out effects led to
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

    @property
    def round(self) -> Round:
        """The round in progress, or to be played next."""
        return self._engine.round

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
        with suppress(EdgegossipError):  # nobody can be told any more
            self._handle(Stop(words))
            self._leave()

    def _leave(self) -> None:
        """Wait until every board has said goodbye, or has had its time."""
        try:
            while not self._engine.over:
                self._handle(EventBatch((*self._internal_events(), *self._answers())))
                self._link.wait(0.05)
        except EdgegossipError:
            self._skip_goodbyes()

    def _skip_goodbyes(self) -> None:
        """Tell the engine that boards have had their time to say goodbye: nobody can be reached any
        more."""
        self._carry_out(self._engine.handle(TimePassed(), max(time.monotonic(), self._engine.wake_s)))

    def _handle(self, event: Event) -> None:
        self._carry_out(self._engine.handle(event, time.monotonic()))

    # -- events

    def _next_event(self) -> Event:
        """Wait until something happens, or the engine wants to be called; return it."""
        now_s = time.monotonic()
        with self._clock.span("wait"):
            if not self._internal and now_s < self._engine.wake_s:
                self._link.wait(min(LOOK_S, self._engine.wake_s - now_s))
        if self.stop.is_set():
            self._error = Stopped("the run was stopped")
            return Stop()
        if self._unsafe is not None and time.monotonic() >= self._again_s:
            self._hand_over(self._unsafe)
        with self._clock.span("wait"):
            return EventBatch((*self._internal_events(), *self._observed(), *self._answers()))

    def _internal_events(self) -> Iterator[Event]:
        while self._internal:
            yield self._internal.popleft()

    def _observed(self) -> Iterator[Event]:
        self._hooks.check()
        now_s = time.monotonic()
        while not self._ended.empty():
            yield self._ended.get()
        if now_s - self._seen_s >= SEEN_S:
            self._seen_s = now_s
            yield PresenceReport(tuple(self._link.nodes()))

    def _answers(self) -> Iterator[Event]:
        for reply in self._link.pull(list(self._pending)) if self._pending else ():
            asked = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                identity = self._hooks.identity(asked.node)
                yield Answered(asked.number, read_answer(asked.instruction, reply, is_away(reply), identity))
        if self._link.delivering():
            yield Delivering()
        if moved := self._link.arriving():
            yield Arriving(frozenset(asked.number for i, asked in self._pending.items() if i in moved))

    # -- effects

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
                        self._internal.append(Evaluated(self._hooks.evaluate(model, examples)))
                case Better(model, rounds, merit):
                    with self._clock.span("wait"):  # for the disk
                        self._hooks.on_better(model, rounds, merit)
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
                    question_content(q.instruction, self._plan, models, self._spool),
                    dst_node_id=q.address,
                    message_type=question_type(q.instruction),
                )
                for q in questions
            ]
        with self._clock.span("wait"):
            if any(isinstance(q.instruction, Train) for q in questions):
                self._hooks.flush()  # what is asked twice after kill -9 is this round and no earlier one
            ids = self._link.push(messages)
        for message_id, question in zip(ids, questions, strict=True):
            if message_id:
                self._pending[message_id] = _Pending(question.number, question.address, type(question.instruction))
            else:
                self._internal.append(Undelivered(question.number))

    def _forget(self, number: int) -> None:
        for message_id in [i for i, asked in self._pending.items() if asked.number == number]:
            del self._pending[message_id]
            self._link.forget(message_id)

    def _log(self, event: str, text: str, fields: Mapping[str, Any]) -> None:
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
            self._internal.append(ModelKept())
        except HostError as error:
            self._unsafe = None
            if time.monotonic() >= self._until_s:
                raise
            self._unsafe, self._again_s = model, time.monotonic() + AGAIN_S
            text = f"{error}: free some space there or mend it; the coordinator holds the trained model and tries again"
            self._sink.event(COORDINATOR, "waiting", f"{text} every {AGAIN_S:g} s")
