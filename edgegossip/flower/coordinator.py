"""One command, a whole Flower server: starts the SuperLink and a run, trains, and takes everything down again.

The SuperLink is the only other process. What Flower would run in two more (SuperExec and the ServerApp) is a thread here, so
that records and errors need no detour and nothing can be left behind.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.flower._private import LinkError, RunLink, register_key, start_run
from edgegossip.flower.admission import AdmissionController
from edgegossip.flower.combine import make_strategy
from edgegossip.flower.credentials import ServerCredentials
from edgegossip.flower.exchange import COORDINATOR, Exchange, Stopped
from edgegossip.flower.keeper import CoordinatorKeeper
from edgegossip.flower.plan import Evaluate, Plan
from edgegossip.flower.roster import Roster
from edgegossip.flower.rounds import Rounds
from edgegossip.flower.strategy_rules import check_enough
from edgegossip.flower.superlink import SUPERLINK_LOG, SuperLink, launch
from edgegossip.layout import Layout
from edgegossip.profiling.records import Sink
from edgegossip.recipe import Recipe
from edgegossip.types import EdgegossipError, HostError, NodeId, RunError, Vec

JOIN_S = 120.0  # slow boards import torch and read their data in well under this
REJOIN_S = 60.0  # boards of a run that goes on ask for their coordinator all the time
STOP_S = 8.0  # for the thread to say goodbye to every board
CLAIM_S = 10.0
SAVE_S = 3600.0  # for somebody to make room for the final model
AGAIN_S = 5.0  # between two tries, each of which is told


class Coordinator:
    """One server run on this machine. Use as a context manager, or call `stop` whatever happens.

    `boards` are the names that may join. Boards reach it at the address that `start` returns. Records of the server itself go
    to `sink` under the node name "coordinator"; Flower's own log is `folder`/logs/superlink.log. With `record_boards` there
    is also a record a board and round, of what its update says (loss, examples, payload) and of the profile that the board sends
    of it: for boards that keep their own records elsewhere. `strategy` stands in for the recipe's; with `evaluate`
    the coordinator evaluates, not the boards. With `keeper` it goes on from the last round that an earlier process kept; boards
    that do not come back within REJOIN_S are then gone on without. With `credentials` it speaks TLS, and boards take part under
    the names in their certificates. `return_s`: how long it waits for boards to come back when fewer than server.min_nodes are
    left, unless `lose` has said that they do not. `on_model` gets the final model before it is evaluated, and again every
    AGAIN_S for SAVE_S while it raises HostError, as on a full disk; `on_over` is called before boards are told that the run is
    over, so that no moment is left in which both model and checkpoints could be lost. `superlink`: one that has been launched
    with these settings already; it is this coordinator's from then on.
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
        host: str | None = None,
        port: int | None = None,
        run_id: bytes | None = None,
        insecure: bool = False,
        join_s: float = JOIN_S,
        strategy: Strategy | None = None,
        record_boards: bool = False,
        evaluate: Evaluate | None = None,
        keeper: CoordinatorKeeper | None = None,
        credentials: ServerCredentials | None = None,
        return_s: float = 0.0,
        on_model: Callable[[Vec], None] = lambda model: None,
        on_over: Callable[[], None] = lambda: None,
        superlink: SuperLink | None = None,
    ) -> None:
        layout.check(initial)
        server = recipe.server
        check_enough(strategy or make_strategy(server.strategy, server.strategy_params), server, len(boards))
        self._progress = None if keeper is None else keeper.load()
        self._plan = Plan(
            recipe,
            layout,
            run_id or recipes.run_id(recipe),
            codecs.get(recipe.codec.name, **recipe.codec.params),
            evaluate,
            strategy,
            record_boards,
            os.urandom(8).hex() if self._progress is None else self._progress.instance,
        )
        self._initial, self._boards, self._sink, self._folder = initial, tuple(boards), sink, folder
        self._host = recipe.network.host if host is None else host
        self._port = recipe.network.port if port is None else port
        self._insecure, self._keeper, self._credentials = insecure, keeper, credentials
        self._join_s = recipe.server.join_s or join_s
        self._return_s, self._on_model, self._on_over = return_s, on_model, on_over
        self._stop = threading.Event()
        self._over = threading.Event()  # not Thread.join: interrupted by Ctrl-C, that takes a live thread for dead
        self._superlink = superlink
        self._exchange: Exchange | None = None
        self._admission: AdmissionController | None = None
        self._thread: threading.Thread | None = None
        self._model: Vec | None = None
        self._error: EdgegossipError | None = None

    def start(self) -> str:
        """Start; HOST:PORT for the boards. Returns as soon as they can join.

        Call it from a thread that lives as long as the run: the kernel ends the SuperLink when that thread ends.
        Raises ConfigError, HostError (port in use) or RunError, with nothing left running.
        """
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what matters is in our own events
        if self._superlink is None:
            log = self._folder / SUPERLINK_LOG
            self._superlink = launch(self._host, self._port, log, self._insecure, self._credentials)
        try:
            self._superlink.await_ready()
            link = self._claim(self._superlink)
        except BaseException:
            self.stop()
            raise
        self._admission = self._make_admission(self._superlink, link.news.set)
        self._exchange = self._make_exchange(link, self._superlink, self._admission)
        self._admission.start()
        self._thread = threading.Thread(target=self._serve, args=(link, self._exchange), daemon=True, name="rounds")
        self._thread.start()
        address = self._superlink.address
        text, round = f"coordinator listens on {address}", self.resumed or 0
        self._sink.event(COORDINATOR, "listening", text, address=address, round=round)
        return address

    def poll(self) -> bool:
        """Whether the run is over. Raises what it failed with."""
        if not self._over.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it is over. Raises what the run failed with, such as RunError."""
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
        return {} if self._exchange is None else dict(self._exchange.lost)

    def lose(self, board: NodeId, reason: str) -> None:
        """A board's process is known to have ended: go on without it now instead of when it has been silent for long."""
        if self._exchange is not None:
            self._exchange.lose(board, reason)

    def stop(self) -> None:
        """End the run if it is not over, and every process of it. Idempotent; no process is left when it returns."""
        self._stop.set()
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
        link = RunLink(link_to.address, link_to.context, link_to.secret, link_to.token)
        if link.claim(CLAIM_S) != run:
            raise RunError("the SuperLink handed out another run than the one that was started")
        return link

    def _make_admission(self, link_to: SuperLink, news: Callable[[], None]) -> AdmissionController:
        return AdmissionController(
            link_to.line,
            None if self._credentials is None else self._credentials.admission,
            self._boards,
            partial(register_key, link_to.address, link_to.context, link_to.token),
            lambda text: self._sink.event(COORDINATOR, "refused", text),
            self.lose,
            news,
            recipes.to_toml(recipes.with_settings(self._plan.recipe, {"data.dir": ""})),
        )

    def _make_exchange(self, link: RunLink, link_to: SuperLink, admission: AdmissionController) -> Exchange:
        plan = self._plan
        least = min(plan.recipe.server.min_nodes, len(self._boards))
        names = admission.name_of if self._credentials is not None else None
        roster = Roster(self._boards)
        return Exchange(
            link,
            roster,
            plan.hello(),
            least,
            self._sink,
            self._stop,
            link_to.check,
            names,
            self._return_s,
            plan.recipe.server.deadline_s,
        )

    def _serve(self, link: RunLink, exchange: Exchange) -> None:
        """The thread."""
        try:
            self._train(link, exchange)
        finally:
            if self._keeper is not None:
                self._keeper.close(over=False)
            self._over.set()

    def _train(self, link: RunLink, exchange: Exchange) -> None:
        """Everything between the first board and the last."""
        try:
            start = self._progress
            exchange.round = 0 if start is None else start.round
            exchange.gather(self._join_s if start is None else min(self._join_s, REJOIN_S))
            names = ", ".join(m.name for m in exchange.roster.up())
            begins = "training starts" if start is None else f"training goes on in round {start.round}"
            self._sink.event(COORDINATOR, "started", f"{begins} with {names}", unix_s=time.time())
            rounds = self._rounds(exchange)
            rounds.run(self._initial, start)
            self._on_over()
            self._end(link, exchange, "the run is complete", None)
            if rounds.records is not None:
                rounds.records.end(exchange.farewells)
            self._sink.event(COORDINATOR, "finished", "coordinator finished")
        except LinkError as error:
            self._error = RunError(
                f"the coordinator lost Flower's SuperLink: {error}; see its log in {self._folder}/logs"
            )
            self._end(link, exchange, str(self._error), str(error))
        except EdgegossipError as error:
            self._error = error
            words = "the run was stopped" if isinstance(error, Stopped) else f"the run failed: {error}"
            self._end(link, exchange, words, str(error))
        except Exception as error:  # a bug, ours or a strategy's; the boards must not wait for ever
            logging.getLogger(__name__).exception("the coordinator failed")
            self._error = RunError(f"the coordinator failed: {type(error).__name__}: {error}")
            self._end(link, exchange, str(self._error), str(error))

    def _rounds(self, exchange: Exchange) -> Rounds:
        assert self._admission is not None
        meter = self._admission.sockets
        trained = partial(self._trained, exchange)
        if self._keeper is None:
            return Rounds(self._plan, exchange, self._sink, meter=meter, trained=trained)
        return Rounds(self._plan, exchange, self._sink, self._keeper.save, self._keeper.settle, meter, trained)

    def _trained(self, exchange: Exchange, model: Vec) -> None:
        """Hand over the final model, however long the disk has no room for it; boards wait meanwhile. Raises HostError."""
        until_s = time.monotonic() + SAVE_S
        while True:
            try:
                self._on_model(model)
                break
            except HostError as error:
                if time.monotonic() >= until_s:
                    raise
                text = f"{error}: free some space there or mend it; the coordinator holds the trained model and tries again"
                self._sink.event(COORDINATOR, "waiting", f"{text} every {AGAIN_S:g} s")
                exchange.rest(AGAIN_S)
        self._model = model

    def _end(self, link: RunLink, exchange: Exchange, words: str, error: str | None) -> None:
        try:
            exchange.dismiss(words, failed=error is not None)
        except EdgegossipError:
            pass  # nobody can be told any more
        link.finish(error)
