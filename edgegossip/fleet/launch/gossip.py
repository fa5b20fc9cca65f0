"""A local gossip fleet: N board processes that are told each other's addresses and left to
themselves."""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgegossip.fleet.launch.fork_server import MODULES, OF_SCRIPTS, ForkServer
from edgegossip.fleet.launch.run_folders import has_checkpoints
from edgegossip.fleet.launch.supervisor import (
    BoardExited,
    BoardProcess,
    BoardRecord,
    Message,
    Supervisor,
    spawn,
    stop_all,
)
from edgegossip.gossip.topologies import NOBODY
from edgegossip.modelfile import write_model
from edgegossip.node.spec import make_topology
from edgegossip.recipe import Recipe
from edgegossip.report.models import AVERAGED, RunModels
from edgegossip.telemetry.records import EventRecord
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import EdgegossipError, NodeId, RunError

START_S = 120.0  # a slow board imports numpy and grpc in under 20 s


@dataclass(frozen=True, slots=True)
class Machines:
    """Gives each board a network namespace in place of this machine's own network, and names what
    it runs on."""

    hosts: Mapping[NodeId, str]  # the board's address there
    namespaces: Mapping[NodeId, str]
    runtime: str  # module:class,path of a `node.main.Runtime` for each
    fork_server: ForkServer | None = None  # where boards come from; it is not closed. None: one of this run's own


@dataclass(frozen=True, slots=True)
class LocalRun:
    """Holds what starting a fleet needs to know."""

    recipe: Recipe
    members: tuple[NodeId, ...]
    run_id: bytes
    folder: RunFolder
    sink: RecordSink
    resumed: bool = False  # an earlier process began it
    age_s: float = 0.0  # where its clock goes on once a board runs; what is loaded before does not count
    identities: Mapping[NodeId, Path] = field(default_factory=dict)  # folders; none: without TLS
    machines: Machines | None = None  # gossip only
    averages: bool = False  # gossip only: at the end each board tests the average of all models on its own data


def run_gossip(run: LocalRun) -> Mapping[NodeId, str]:
    """Train peer to peer. Returns the boards that were lost, with the reason. Raises RunError when
    it cannot start."""
    run.folder.write_topology(make_topology(run.recipe, run.members).to_json(run.members))
    messages: queue.Queue[Message] = queue.Queue()
    boards: list[BoardProcess] = []
    given = None if run.machines is None else run.machines.fork_server
    fork_server = given or start_fork_server(run)
    try:
        for k, name in enumerate(run.members):
            port = run.recipe.network.port
            more = ("--restarted", f"{run.age_s:.3f}") if run.resumed else ()
            host = run.machines.hosts[name] if run.machines else run.recipe.network.host
            listen = f"{host}:{port + k if port else 0}"
            boards.append(spawn_board(run, fork_server, name, messages, "--listen", listen, *more))
            if k == 0:  # it runs: whoever it comes from has loaded
                run.sink.begin(run.age_s)
                began_s = time.monotonic() - run.age_s
        if not run.recipe.network.restarts and given is None:
            fork_server.close()  # it has nothing more to do
        kept = partial(has_checkpoints, run.folder.path)
        alone = run.recipe.gossip.topology == NOBODY
        supervisor = Supervisor(boards, messages, run.sink, has_checkpoint=kept, alone=alone)
        addresses = _addresses(supervisor)
        for board in boards:
            _send_addresses(run, board, addresses)
        supervisor.restarts = run.recipe.network.restarts
        supervisor.start_again = lambda name: _restart(
            run, fork_server, name, addresses, time.monotonic() - began_s, messages
        )
        if run.averages:
            supervisor.until_ended(or_trained=True)
            _hand_out_average(run, supervisor)
        supervisor.until_ended()
        compare_models(run, [name for name in run.members if name not in supervisor.lost])
        if not supervisor.lost:
            _drop_checkpoints(run)
            if run.recipe.checkpoint.best:
                with suppress(EdgegossipError):  # each board kept others: then all stay
                    RunModels([run.folder.path]).drop_all_but_best()
        return supervisor.lost
    finally:
        if given is None:
            fork_server.close()
        stop_all(boards)


def start_fork_server(run: LocalRun) -> ForkServer:
    """Start what this run's boards are forked from. Raises HostError."""
    section = run.recipe.run
    modules = (*MODULES[section.mode], *(OF_SCRIPTS if section.script else ()))
    return ForkServer(modules, section.threads, run.folder.path / "logs" / "fork-server.log")


def compare_models(run: LocalRun, names: Sequence[NodeId]) -> None:
    """Say for the verdict how far each board's final model is from the average of all: an event
    `compared` a board, lengths in values. Nothing where a model is missing.

    It is a look at a run that has ended: whatever cannot be read is not said."""
    ending = run.recipe.checkpoint.format
    if run.recipe.gossip.topology == NOBODY:
        return  # they were never to be one
    if len(names) < 2 or not all((run.folder.checkpoint_dir / f"{name}.{ending}").is_file() for name in names):
        return
    with suppress(EdgegossipError):  # two models of different kinds, a torn file: the boards' own story
        average = RunModels([run.folder.path]).average(names)
        for name, away in average.away.items():
            distance, length = away * average.length, average.length
            text = (
                f"{name}'s model is {distance:.3g} from the average of the boards' models, whose length is {length:.3g}"
            )
            known = {"distance": distance, "length": length}
            run.sink.event(name, "compared", text, **known)


def _hand_out_average(run: LocalRun, supervisor: Supervisor) -> None:
    """Give every board that has trained the average of all their models to test; nothing where that
    cannot be made. They have as long for it as the run took until now."""
    path, made = run.folder.checkpoint_dir / f".{AVERAGED}.npz", False
    trained = [name for name in run.members if name not in supervisor.lost]
    if not trained:
        return
    with suppress(EdgegossipError, OSError):
        average = RunModels([run.folder.path]).average(trained)
        write_model(path, average.arrays, average.about)
        made = True
    for board in supervisor.running():
        board.send_line(json.dumps({"average": str(path) if made else None}))
    supervisor.handed_out_s = time.monotonic()
    supervisor.until_ended()
    path.unlink(missing_ok=True)


def _drop_checkpoints(run: LocalRun) -> None:
    """Remove all checkpoints: all boards have finished, so nobody will go on from them."""
    for name in run.members:
        shutil.rmtree(run.folder.checkpoint_dir / name, ignore_errors=True)


def spawn_board(
    run: LocalRun, fork_server: ForkServer, name: NodeId, messages: queue.Queue[Message], *more: str
) -> BoardProcess:
    """Start a board of this run; `more` arguments say how it reaches the others. Raises
    HostError."""
    arguments = ["node", str(run.folder.path / "recipe.toml"), "--managed", "--name", name, *more]
    arguments += ["--boards", ",".join(run.members), "--run-id", run.run_id.hex()]
    arguments += ["--save", str(run.folder.checkpoint_dir / f"{name}.{run.recipe.checkpoint.format}")]
    if run.averages and run.recipe.run.mode == "gossip":
        arguments += ["--test-average"]
    if name in run.identities:
        arguments += ["--identity", str(run.identities[name])]
    namespace = ""
    if run.machines is not None:
        namespace = run.machines.namespaces[name]
        arguments += ["--insecure"] * (name not in run.identities)
        arguments += ["--runtime", run.machines.runtime]
    return spawn(fork_server, name, arguments, run.folder.path / "logs" / f"{name}.log", messages, namespace)


def _restart(
    run: LocalRun,
    fork_server: ForkServer,
    name: NodeId,
    addresses: Mapping[NodeId, str],
    age_s: float,
    messages: queue.Queue[Message],
) -> BoardProcess:
    """Start the same board in a new process, where its peers look for it. `age_s`: how long ago its
    first one began."""
    more = ("--listen", addresses[name], "--restarted", f"{age_s:.3f}")
    board = spawn_board(run, fork_server, name, messages, *more)
    _send_addresses(run, board, addresses)
    return board


def _addresses(supervisor: Supervisor) -> dict[NodeId, str]:
    """Return what every board listens on. Raises RunError when one ends first, or does not come
    up, with the causes of all that do."""
    found: dict[NodeId, str] = {}
    until = time.monotonic() + START_S
    while len(found) < len(supervisor.boards):
        match supervisor.next(0.1):
            case BoardRecord(node, EventRecord(name="listening", fields=fields)):
                found[node] = str(fields["address"])
            case BoardExited(node):
                supervisor.require_start()
                raise RunError(f"the run did not start: {node}: {supervisor.lost.get(node, 'it ended')}")
        if time.monotonic() > until:
            missing = ", ".join(c.name for c in supervisor.boards if c.name not in found)
            raise RunError(f"the run did not start: {missing} did not come up within {START_S:.0f} s")
    return found


def _send_addresses(run: LocalRun, board: BoardProcess, addresses: Mapping[NodeId, str]) -> None:
    alone = run.recipe.gossip.topology == NOBODY
    board.send_line(json.dumps({name: a for name, a in addresses.items() if name != board.name and not alone}))
