"""`coordinator`: the server of a run whose boards are started elsewhere, with
`edgegossip node --coordinator`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgegossip import training
from edgegossip.choices import did_you_mean
from edgegossip.fleet.launch.admission import boards_of, credentials, find_fleet
from edgegossip.fleet.launch.outcome import conclude, shown_when_it_fails
from edgegossip.fleet.launch.preflight import FLEET, check_exposure, preflight_server, wait_for_port
from edgegossip.fleet.launch.run import make_folder
from edgegossip.fleet.launch.server import coordinator_checkpointer, final_saver, hand_over
from edgegossip.fleet.launch.unfinished import unfinished
from edgegossip.node.spec import check_names, default_members
from edgegossip.recipe import Recipe, run_id
from edgegossip.report.live import Live, LiveSink
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.telemetry.tee import Tee
from edgegossip.training.data import Board
from edgegossip.types import ConfigError, NodeId

if TYPE_CHECKING:
    from edgegossip.flower.connection import ServerCredentials
    from edgegossip.flower.superlink import SuperLink

RETURN_S = 600.0  # boards look for their coordinator as long


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The command line of `edgegossip coordinator`."""

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


def run_coordinator(recipe: Recipe, options: CoordinatorOptions) -> int:
    """Serve one run from start to end. Returns the exit code; raises an EdgegossipError when
    nothing was trained."""
    identity = find_fleet(options.fleet, options.identity, options.insecure)
    if identity is not None and options.identity is None:
        options = _with_names(recipe, options)
    members = _named(recipe, options.boards)
    preflight_server(recipe, members)
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
    """With the names of the fleet's boards. Raises ConfigError when it has other boards than those
    that are asked for."""
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
    """The folder of a run that an earlier process of this command did not finish, or a new one; and
    which it is."""
    before = None if options.fresh else unfinished(options.runs_dir, run_id(recipe), members, COORDINATOR)
    if before is not None:
        click.echo(f"going on with {before}; --fresh begins anew", err=True)
        return RunFolder.reopen(before), True
    folder = make_folder(recipe, options.runs_dir, members)
    folder.write_run(run_id(recipe), members)
    return folder, False


@contextmanager
def _superlink(options: CoordinatorOptions, folder: RunFolder, secure: ServerCredentials | None) -> Iterator[SuperLink]:
    """Flower's SuperLink, which loads while this process does."""
    from edgegossip.flower.superlink import SUPERLINK_LOG, launch

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
    from edgegossip.flower import Coordinator

    live = Live(members, recipe.run.rounds, stream=sys.stderr, enabled=not options.as_json)
    sink = Tee(folder, LiveSink(live), start_s=folder.start_s if resumed else None)
    first = training.first_model(recipe, Board(COORDINATOR, -1), partial(sink.event, COORDINATOR, "slow"))
    checkpointer = coordinator_checkpointer(recipe, first.layout, members, run_id(recipe), folder, sink)
    coordinator = Coordinator(
        recipe,
        first.layout,
        first.x,
        members,
        sink,
        folder.path,
        run_id=run_id(recipe),
        join_s=float("inf"),
        record_boards=True,
        evaluate=first.evaluate,
        agreement=first.agreement,
        checkpointer=checkpointer,
        credentials=secure,
        return_s=RETURN_S,
        on_model=final_saver(recipe, folder, first, checkpointer),
        on_over=partial(checkpointer.close, over=True),
        superlink=superlink,
    )
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
    """What to type on a board; a coordinator that listens everywhere is reached by this machine's
    own address."""
    host, _, port = address.rpartition(":")
    where = f"ADDRESS:{port}" if options.host in ("0.0.0.0", "::") else f"{host}:{port}"
    how = "--identity IDENTITY" if secure else "--name NAME --insecure" if options.insecure else "--name NAME"
    script = f" {Path(recipe.run.script).name}" if recipe.run.script else ""
    data = " --set data.dir=DIR" if recipe.data.dir else ""  # each board's own
    return f"edgegossip node{script} --coordinator {where} {how}{data}"


def _named(recipe: Recipe, boards: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """The names of the run's boards. Raises ConfigError when there are two of a name, or not
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
