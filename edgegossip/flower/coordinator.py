"""Runs a whole Flower server: starts the SuperLink and a run, trains, and takes everything down
again.

The SuperLink is the only other process. What Flower would run in two more (SuperExec and the
ServerApp) is a thread here, so that records and errors need no detour and nothing can be left
behind.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_events import ServerPlan
from edgegossip.engine.server_frames import COORDINATOR, Channel
from edgegossip.flower._private.link import LinkError
from edgegossip.flower._private.runtime import RunLink, register_key, start_run
from edgegossip.flower.admission import AdmissionController
from edgegossip.flower.combine import check_enough, combiner, make_strategy
from edgegossip.flower.credentials import ServerCredentials
from edgegossip.flower.driver import Driver, Hooks
from edgegossip.flower.keeper import CoordinatorKeeper
from edgegossip.flower.superlink import SUPERLINK_LOG, SuperLink, launch
from edgegossip.layout import Layout
from edgegossip.recipe import Recipe
from edgegossip.spool import Spool
from edgegossip.telemetry.records import Sink
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training.schedule import learning_rate
from edgegossip.types import EdgegossipError, Metrics, NodeId, RunError, Vec

JOIN_S = 120.0  # slow boards import torch and read their data in well under this
STOP_S = 8.0  # for the thread to say goodbye to every board
CLAIM_S = 10.0

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
        evaluates_everywhere=bool(recipe.run.script) or recipe.data.partition == "local",
        # the rate of a plateau is each board's own matter
        learning_rate=None
        if recipe.training.schedule == "plateau"
        else lambda round: learning_rate(recipe.training, round, rounds),
    )


class Coordinator:
    """Holds one server run on this machine.

    Use as a context manager, or call `stop` whatever happens.

    - `boards`: the names that may join. They reach it at the address that `start` returns.
    - `sink`: gets records of the server itself, under the node name "coordinator". Flower's own log
      is `folder`/logs/superlink.log.
    - `record_boards`: also a record a board and round, of what its update says (loss, examples,
      payload) and of the profile that the board sends of it, for boards that keep their own records
      elsewhere.
    - `evaluate`: the coordinator evaluates, not the boards.
    - `agreement`: what every board must have alike, as far as it is known here.
    - `keeper`: it goes on from the last round that an earlier process kept; boards that do not come
      back within a minute are then gone on without.
    - `credentials`: it speaks TLS, and boards take part under the names in their certificates.
    - `return_s`: how long it waits for boards to come back when fewer than server.min_nodes are
      left, unless `lose` has said that they do not.
    - `on_model`: gets the final model before it is evaluated, and again every few seconds for an
      hour while it raises HostError, as on a full disk.
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
        keeper: CoordinatorKeeper | None = None,
        credentials: ServerCredentials | None = None,
        return_s: float = 0.0,
        on_model: Callable[[Vec], None] = lambda model: None,
        on_over: Callable[[], None] = lambda: None,
        superlink: SuperLink | None = None,
    ) -> None:
        layout.check(initial)
        server = recipe.server
        strategy = make_strategy(server.strategy, server.strategy_params)
        check_enough(strategy, server, len(boards))
        self._progress = None if keeper is None else keeper.load()
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
        self._keeper, self._credentials = keeper, credentials
        self._on_model, self._on_over = on_model, on_over
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
        self._admission.start()
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

    def _claim(self, link_to: SuperLink) -> RunLink:
        config = {"edgegossip-run": self._plan.run_id.hex()}
        run = start_run(link_to.address, link_to.context, config, token=link_to.token)
        link = RunLink(link_to.address, link_to.context, link_to.secret, link_to.token, Spool(self._folder))
        if link.claim(CLAIM_S) != run:
            raise RunError("the SuperLink handed out another run than the one that was started")
        return link

    def _make_admission(self, link_to: SuperLink, link: RunLink) -> AdmissionController:
        return AdmissionController(
            link_to.line,
            None if self._credentials is None else self._credentials.admission,
            self._boards,
            partial(register_key, link_to.address, link_to.context, link_to.token),
            lambda refusal: self._sink.event(COORDINATOR, "refused", str(refusal), **refusal.fields),
            self.lose,
            link.news.set,
            recipes.told(self._recipe),
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
                if self._keeper is not None:
                    self._keeper.close(over=False)
            finally:
                self._over.set()  # or who waits would do so for ever

    def _make_driver(self, link: RunLink, link_to: SuperLink, admission: AdmissionController) -> Driver:
        plan, keeper = self._plan, self._keeper
        clock = RoundClock()
        channel = Channel.of(plan.layout, plan.run_id, plan.codec)
        combine = combiner(self._strategy, channel, plan.weighting == "uniform")
        hooks = Hooks(
            check=link_to.check,
            identity=admission.name_of,
            save=keeper.save if keeper is not None else lambda progress: None,
            settle=keeper.settle if keeper is not None else lambda: None,
            meter=admission.sockets,
            evaluate=self._evaluate,
            on_model=self._trained,
            on_over=self._on_over,
        )
        assert self._initial is not None
        engine = ServerEngine(plan, self._initial, combine, clock.span)
        self._initial = None  # a model that is no longer needed after the first round
        return Driver(engine, plan, link, self._sink, clock, hooks, Spool(self._folder))

    def _trained(self, model: Vec) -> None:
        self._on_model(model)
        self._model = model
