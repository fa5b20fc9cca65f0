"""Runs through a coordinator, which is this process with Flower's SuperLink as its child: of `run`,
whose boards are children of it, too, and of `coordinator`, whose boards are started elsewhere with
`edgegossip node --coordinator`."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgegossip import training
from edgegossip.choices import did_you_mean
from edgegossip.fleet.launch.fork_server import ForkServer
from edgegossip.fleet.launch.gossip import LocalRun, spawn_board, start_fork_server
from edgegossip.fleet.launch.identities import credentials, find_fleet
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.fleet.launch.preflight import FLEET, check_exposure, preflight_server, tell, wait_for_port
from edgegossip.fleet.launch.run_folders import (
    conclude,
    has_checkpoints,
    make_folder,
    shown_when_it_fails,
    unfinished,
)
from edgegossip.fleet.launch.supervisor import BoardProcess, Message, Supervisor, stop_all
from edgegossip.fleet.store import boards_of
from edgegossip.flower import Coordinator, CoordinatorCheckpointer
from edgegossip.flower.connection import ServerCredentials
from edgegossip.flower.superlink import SuperLink, launch
from edgegossip.modelfile import BEST
from edgegossip.node.spec import check_names, default_members
from edgegossip.node.storage import BestModels, DiskFull, about_model, save_model
from edgegossip.recipe import Recipe, run_id
from edgegossip.telemetry.run_folder import SUPERLINK_LOG, RunFolder
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.telemetry.verdict import causes
from edgegossip.training.data import Board
from edgegossip.types import ConfigError, NodeId, Round, RunError, UsageError, Vec

RETURN_S = 600.0  # boards look for their coordinator as long
FINAL_MODEL = "model"


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Holds the command line of `edgegossip coordinator`."""

    host: str
    port: int
    boards: tuple[NodeId, ...]
    insecure: bool
    runs_dir: Path
    plots: bool
    as_json: bool
    fresh: bool = False  # begin anew although an earlier process left a run unfinished
    fleet: Path | None = None  # folder of `edgegossip fleet init`
    identity: Path | None = None  # folder of `edgegossip fleet add --role coordinator`
    outputs: Outputs = Outputs()


def run_coordinator(recipe: Recipe, options: CoordinatorOptions) -> int:
    """Serve one run from start to end. Returns the exit code; raises an EdgegossipError when
    nothing was trained."""
    identity = find_fleet(options.fleet, options.identity, options.insecure)
    if identity is not None and options.identity is None:
        options = _with_names(recipe, options)
    members = _named(recipe, options.boards)
    preflight_server(recipe, members)
    tell(recipe)
    check_exposure(options.host, options.insecure or identity is not None)
    secure = None if identity is None else credentials(identity)
    if options.port:
        wait_for_port(options.host, options.port)
    folder, resumed = _folder(recipe, options, members)
    try:
        with shown_when_it_fails(folder, as_json=options.as_json), _superlink(options, folder, secure) as superlink:
            _serve(recipe, members, options, folder, resumed, secure, superlink)
        return conclude(folder, plots=options.plots, as_json=options.as_json)
    finally:
        folder.close()


def _with_names(recipe: Recipe, options: CoordinatorOptions) -> CoordinatorOptions:
    """Return the options with the names of the fleet's boards. Raises ConfigError when it has other
    boards than those that are asked for."""
    folder = options.fleet or Path(FLEET)
    known = boards_of(folder)
    if not options.boards and len(known) != recipe.run.nodes:
        count = f"{folder} has {len(known)} boards ({', '.join(known) or 'none'}), but run.nodes = {recipe.run.nodes}"
        cure = (
            "name those of this run with --boards" if len(known) > recipe.run.nodes else "add boards with `fleet add`"
        )
        without = "" if options.fleet else "; --insecure goes without this fleet"
        raise ConfigError(f"{count}: {cure}, or --set run.nodes={max(2, len(known))}{without}")
    for name in options.boards:
        if name not in known:
            cure = f"edgegossip fleet add --fleet {folder} {name}"
            raise ConfigError(
                f"--boards: {name} is not a board of {folder}{did_you_mean(name, known)}: add it with `{cure}`"
            )
    return replace(options, boards=options.boards or known)


def _folder(recipe: Recipe, options: CoordinatorOptions, members: tuple[NodeId, ...]) -> tuple[RunFolder, bool]:
    """Return the folder of a run that an earlier process of this command did not finish, or a new
    one; and which it is."""
    before = None if options.fresh else unfinished(options.runs_dir, run_id(recipe), members, COORDINATOR)
    if before is not None:
        click.echo(f"going on with {before}; --fresh begins anew", err=True)
        return RunFolder.reopen(before), True
    folder = make_folder(recipe, options.runs_dir, members)
    folder.write_run(run_id(recipe), members)
    return folder, False


@contextmanager
def _superlink(options: CoordinatorOptions, folder: RunFolder, secure: ServerCredentials | None) -> Iterator[SuperLink]:
    """Yield Flower's SuperLink, which loads while this process does."""
    superlink = launch(options.host, options.port, folder.path / SUPERLINK_LOG, options.insecure, secure)
    try:
        yield superlink
    finally:
        superlink.stop()


def _serve(
    recipe: Recipe,
    members: tuple[NodeId, ...],
    options: CoordinatorOptions,
    folder: RunFolder,
    resumed: bool,
    secure: ServerCredentials | None,
    superlink: SuperLink,
) -> None:
    start_s = folder.start_s if resumed else None
    sink = options.outputs.open(folder, recipe, members, quiet=options.as_json, start_s=start_s)
    first = training.first_model(recipe, Board(COORDINATOR, -1), partial(sink.event, COORDINATOR))
    coordinator, _ = _make(recipe, run_id(recipe), first, members, folder, sink, secure, superlink, elsewhere=True)
    over, abandon = first.over, first.abandon
    del first  # its vector is as large as the model, and of no use after the first round
    try:
        command = _join_command(recipe, options, coordinator.start(), secure is not None)
        sink.event(COORDINATOR, "notice", f"boards join with: {command}")
        while not coordinator.wait(0.2):
            pass
        for name in members:
            if name in coordinator.lost:
                sink.event(name, "lost", f"lost {name}: {coordinator.lost[name]}")
            else:
                sink.event(name, "finished", f"{name} finished")
        hand_over(over, coordinator.model)
    finally:
        coordinator.stop()
        abandon()  # the script of a run that failed
        sink.close()  # what was written is in the folder then


def _join_command(recipe: Recipe, options: CoordinatorOptions, address: str, secure: bool) -> str:
    """Say what to type on a board; a coordinator that listens everywhere is reached by this
    machine's own address."""
    host, _, port = address.rpartition(":")
    where = f"ADDRESS:{port}" if options.host in ("0.0.0.0", "::") else f"{host}:{port}"
    how = "--identity IDENTITY" if secure else "--name NAME --insecure" if options.insecure else "--name NAME"
    script = f" {Path(recipe.run.script).name}" if recipe.run.script else ""
    data = " --set data.dir=DIR" if recipe.data.dir else ""  # each board's own
    return f"edgegossip node{script} --coordinator {where} {how}{data}"


def _named(recipe: Recipe, boards: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Return the names of the run's boards. Raises ConfigError when there are two of a name, or not
    run.nodes of them."""
    if not boards:
        return default_members(recipe.run.nodes)
    check_names("--boards", boards)
    if len(set(boards)) != len(boards) or len(boards) != recipe.run.nodes:
        count = f"--boards names {len(set(boards))} boards, but run.nodes = {recipe.run.nodes}"
        raise ConfigError(
            f"{count}: name each once, or --set run.nodes={max(2, len(set(boards)))} here and on the boards"
        )
    return boards


def run_server(run: LocalRun) -> Mapping[NodeId, str]:
    """Train through a coordinator; saves the model. Returns the boards that were lost, and why.
    Raises RunError."""
    with ExitStack() as stack:  # SuperLink and boards load while this process does
        secure = credentials(run.identities[COORDINATOR]) if COORDINATOR in run.identities else None
        host, port = run.recipe.network.host, run.recipe.network.port
        superlink = launch(host, port, run.folder.path / SUPERLINK_LOG, credentials=secure)
        stack.callback(superlink.stop)
        fork_server = stack.enter_context(start_fork_server(run))
        first = training.first_model(run.recipe, Board(run.members[0], 0), partial(run.sink.event, COORDINATOR))
        coordinator, checkpointer = _make(
            run.recipe, run.run_id, first, run.members, run.folder, run.sink, secure, superlink
        )
        over = first.over
        stack.callback(first.abandon)  # of a run that fails: a notebook goes on
        del first  # its vector is as large as the model, and of no use after the first round
        superlink.await_ready()
        run.sink.begin(run.age_s)  # before anything is said, or this clock would go back; boards are next
        lost = _train(run, coordinator, checkpointer, fork_server)
        hand_over(over, coordinator.model)
        return lost


def _train(
    run: LocalRun, coordinator: Coordinator, checkpointer: CoordinatorCheckpointer, fork_server: ForkServer
) -> Mapping[NodeId, str]:
    """Start the boards, and wait for the end."""
    boards: list[BoardProcess] = []
    messages: queue.Queue[Message] = queue.Queue()
    try:
        address = coordinator.start()
        for name in run.members:
            more = ("--restarted", f"{run.sink.elapsed_s():.3f}") if run.resumed else ()
            boards.append(spawn_board(run, fork_server, name, messages, "--coordinator", address, *more))
        fork_server.close()  # it has nothing more to do
        kept = partial(has_checkpoints, run.folder.path)
        supervisor = Supervisor(boards, messages, run.sink, has_checkpoint=kept)
        _follow(coordinator, supervisor)
        checkpointer.close(over=True)
        return supervisor.lost
    finally:
        coordinator.stop()
        stop_all(boards)


def hand_over(over: Callable[[Vec], None], model: Vec) -> None:
    """Give the coordinator's script the final model, and let it end. Raises RunError where that
    fails."""
    try:
        over(model)
    except UsageError as error:
        raise RunError(f"the run is over and its model is kept, but {error}") from error


def _make(
    recipe: Recipe,
    run_id: bytes,
    first: training.FirstModel,
    members: tuple[NodeId, ...],
    folder: RunFolder,
    sink: RecordSink,
    secure: ServerCredentials | None,
    superlink: SuperLink,
    elsewhere: bool = False,
) -> tuple[Coordinator, CoordinatorCheckpointer]:
    """Return the coordinator, and what keeps how far its run is. `elsewhere`: its boards are
    started there, and it waits for them."""
    layout, path = first.layout, folder.checkpoint_dir / COORDINATOR
    checkpointer = CoordinatorCheckpointer(COORDINATOR, path, layout, run_id, members, recipe.checkpoint, sink)
    over: Callable[[], None] = partial(checkpointer.close, over=True)
    waits: dict[str, Any] = {"join_s": math.inf, "record_boards": True, "return_s": RETURN_S, "on_over": over}
    coordinator = Coordinator(
        recipe,
        layout,
        first.x,
        members,
        sink,
        folder.path,
        run_id=run_id,
        evaluate=first.evaluate,
        agreement=first.agreement,
        checkpointer=checkpointer,
        credentials=secure,
        on_model=_final_saver(recipe, folder, first, checkpointer, lambda: coordinator.round),
        on_better=_best_saver(recipe, folder, first, sink),
        superlink=superlink,
        **(waits if elsewhere else {}),
    )
    return coordinator, checkpointer


def _final_saver(
    recipe: Recipe,
    folder: RunFolder,
    first: training.FirstModel,
    checkpointer: CoordinatorCheckpointer,
    rounds: Callable[[], Round],
) -> Callable[[Vec], None]:
    """Return what saves the model of a finished server run, of so many rounds: by the names of its
    `state_dict`, in model.npz or whatever checkpoint.format says. On a full disk older checkpoints
    give way; then it raises HostError."""
    path, arrays = folder.checkpoint_dir / f"{FINAL_MODEL}.{recipe.checkpoint.format}", first.arrays
    travels = len(first.layout.tensors)

    def save(x: Vec) -> None:
        about = about_model(COORDINATOR, rounds(), travels)
        try:
            save_model(path, arrays(x), about)
        except DiskFull:
            if not checkpointer.make_room():
                raise
            save_model(path, arrays(x), about)

    return save


def _best_saver(
    recipe: Recipe, folder: RunFolder, first: training.FirstModel, sink: RecordSink
) -> Callable[[Vec, Round, float], None]:
    """Return what keeps the model of the best evaluation so far, in place of the one before."""
    best = BestModels(folder.path / BEST, COORDINATOR, recipe, sink, most=1)
    arrays, travels = first.arrays, len(first.layout.tensors)
    return lambda x, rounds, merit: best.keep(merit, rounds, lambda: arrays(x), travels)


def _follow(coordinator: Coordinator, supervisor: Supervisor) -> None:
    """Wait until the coordinator is done and every board has ended. Raises what the run failed
    with."""
    reported: set[NodeId] = set()
    while not _over(coordinator, supervisor):
        supervisor.next(0.1)
        supervisor.require_start()
        for name in supervisor.lost.keys() - reported:
            reported.add(name)
            coordinator.lose(name, supervisor.lost[name])
    supervisor.until_ended(patience_s=15.0)


def _over(coordinator: Coordinator, supervisor: Supervisor) -> bool:
    """Return whether the rounds are done. When they failed because the boards did, the boards'
    reasons are the better ones."""
    try:
        return coordinator.poll()
    except RunError as error:
        supervisor.drain()
        supervisor.require_start()
        own = {c.name: c.last_error for c in supervisor.boards if c.last_error} or supervisor.lost
        raise RunError(causes(own) or str(error)) from None
