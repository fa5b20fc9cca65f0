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
from pathlib import Path

from edgegossip.fleet.launch.child import Child, Ended, News, Said, spawn, stop_all
from edgegossip.fleet.launch.nursery import MODULES, OF_SCRIPTS, Nursery
from edgegossip.fleet.launch.watch import Watch
from edgegossip.node.spec import make_topology
from edgegossip.node.storage import vector_of
from edgegossip.recipe import Recipe
from edgegossip.report.models import FoundModel, RunModels
from edgegossip.telemetry.lines import EventRecord
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import EdgegossipError, NodeId, RunError

START_S = 120.0  # a slow board imports numpy and grpc in under 20 s
LOOK_CLOSER = 0.05  # in lengths of the average: how far from it no board is whose fleet agrees


@dataclass(frozen=True, slots=True)
class Machines:
    """A network namespace for each board in place of this machine's own network, and who conducts
    them."""

    hosts: Mapping[NodeId, str]  # the board's address there
    namespaces: Mapping[NodeId, str]
    pace: Path | None  # socket of the conductor
    nursery: Nursery | None = None  # where boards come from; it is not closed. None: one of this run's own


@dataclass(frozen=True, slots=True)
class LocalRun:
    """What starting a fleet needs to know."""

    recipe: Recipe
    members: tuple[NodeId, ...]
    run_id: bytes
    folder: RunFolder
    sink: RecordSink
    resumed: bool = False  # an earlier process began it
    identities: Mapping[NodeId, Path] = field(default_factory=dict)  # folders; none: without TLS
    machines: Machines | None = None  # gossip only


def run_gossip(run: LocalRun) -> Mapping[NodeId, str]:
    """Train peer to peer. Returns the boards that were lost, with the reason. Raises RunError when
    it cannot start."""
    run.folder.write_topology(make_topology(run.recipe, run.members).to_json(run.members))
    news: queue.Queue[News] = queue.Queue()
    children: list[Child] = []
    age_s = run.sink.elapsed_s() if run.resumed else 0.0
    given = None if run.machines is None else run.machines.nursery
    nursery = given or boards_nursery(run)
    try:
        for k, name in enumerate(run.members):
            port = run.recipe.network.port
            more = ("--restarted", f"{age_s:.3f}") if run.resumed else ()
            host = run.machines.hosts[name] if run.machines else run.recipe.network.host
            children.append(_spawn(run, nursery, name, f"{host}:{port + k if port else 0}", news, *more))
            if k == 0:  # it runs: whoever it comes from has loaded
                run.sink.begin(age_s)
                began_s = time.monotonic() - age_s
        if not run.recipe.network.restarts and given is None:
            nursery.close()  # it has nothing more to do
        watch = Watch(children, news, run.sink)
        addresses = _addresses(watch)
        for child in children:
            _introduce(child, addresses)
        watch.restarts = run.recipe.network.restarts
        watch.has_checkpoint = lambda name: _kept(run, name)
        watch.start_again = lambda name: _again(run, nursery, name, addresses, time.monotonic() - began_s, news)
        watch.until_ended()
        compare_models(run, [name for name in run.members if name not in watch.lost])
        if not watch.lost:
            _drop_checkpoints(run)
        return watch.lost
    finally:
        if given is None:
            nursery.close()
        stop_all(children)


def boards_nursery(run: LocalRun) -> Nursery:
    """Where this run's boards come from. Raises HostError."""
    section = run.recipe.run
    modules = (*MODULES[section.mode], *(OF_SCRIPTS if section.script else ()))
    return Nursery(modules, section.threads, run.folder.path / "logs" / "nursery.log")


def compare_models(run: LocalRun, names: Sequence[NodeId]) -> None:
    """Say for the verdict how far each board's final model is from the average of all: an event
    `compared` a board, lengths in values. Where one is far, the average itself is evaluated (that
    takes the data set and torch): an event `averaged`. Nothing where a model is missing.

    It is a look at a run that has ended: whatever cannot be read or evaluated is not said."""
    ending = run.recipe.checkpoint.format
    if len(names) < 2 or not all((run.folder.checkpoint_dir / f"{name}.{ending}").is_file() for name in names):
        return
    with suppress(EdgegossipError):  # two models of different kinds, a torn file: the boards' own story
        average = RunModels([run.folder.path]).average(names)
        for name, away in average.away.items():
            distance, length = away * average.length, average.length
            text = (
                f"{name}'s model is {distance:.3g} from the average of the boards' models, whose length is {length:.3g}"
            )
            run.sink.event(name, "compared", text, distance=distance, length=length)
        if max(average.away.values()) > LOOK_CLOSER:
            _evaluate_average(run, average)


def _evaluate_average(run: LocalRun, average: FoundModel) -> None:
    """How good the average of the boards' models is."""
    recipe, name = run.recipe, run.members[0]
    if recipe.run.script:
        return  # its data and its loss are the script's
    from edgegossip.training import build_workload

    workload = build_workload(recipe, 0, name)
    metrics = workload.evaluate(vector_of(average.arrays, workload.layout))
    if metrics is not None:
        headline, value = metrics.headline or ("loss", metrics.loss)
        known = {"loss": metrics.loss, headline: value}
        run.sink.event(name, "averaged", f"the average of the boards' models: {headline} {value:.4f}", **known)


def _drop_checkpoints(run: LocalRun) -> None:
    """All boards have finished: nobody will go on from them."""
    for name in run.members:
        shutil.rmtree(run.folder.checkpoint_dir / name, ignore_errors=True)


def _kept(run: LocalRun, name: NodeId) -> bool:
    return any((run.folder.checkpoint_dir / name).glob("*.ckpt"))


def _spawn(run: LocalRun, nursery: Nursery, name: NodeId, listen: str, news: queue.Queue[News], *more: str) -> Child:
    arguments = ["node", str(run.folder.path / "recipe.toml"), "--managed", "--name", name, *more]
    arguments += ["--boards", ",".join(run.members), "--run-id", run.run_id.hex(), "--listen", listen]
    arguments += ["--save", str(run.folder.checkpoint_dir / f"{name}.{run.recipe.checkpoint.format}")]
    if name in run.identities:
        arguments += ["--identity", str(run.identities[name])]
    namespace = ""
    if run.machines is not None:
        namespace = run.machines.namespaces[name]
        arguments += ["--insecure"] * (name not in run.identities)
        arguments += ["--pace", str(run.machines.pace)] if run.machines.pace else []
    return spawn(nursery, name, arguments, run.folder.path / "logs" / f"{name}.log", news, namespace)


def _again(
    run: LocalRun,
    nursery: Nursery,
    name: NodeId,
    addresses: Mapping[NodeId, str],
    age_s: float,
    news: queue.Queue[News],
) -> Child:
    """The same board in a new process, where its peers look for it. `age_s`: how long ago its first
    one began."""
    child = _spawn(run, nursery, name, addresses[name], news, "--restarted", f"{age_s:.3f}")
    _introduce(child, addresses)
    return child


def _addresses(watch: Watch) -> dict[NodeId, str]:
    """What every board listens on. Raises RunError when one ends first, or does not come up."""
    found: dict[NodeId, str] = {}
    until = time.monotonic() + START_S
    while len(found) < len(watch.children):
        match watch.next(0.1):
            case Said(node, EventRecord(name="listening", fields=fields)):
                found[node] = str(fields["address"])
            case Ended(node):
                raise RunError(f"the run did not start: {node}: {watch.lost.get(node, 'it ended')}")
        if time.monotonic() > until:
            missing = ", ".join(c.name for c in watch.children if c.name not in found)
            raise RunError(f"the run did not start: {missing} did not come up within {START_S:.0f} s")
    return found


def _introduce(child: Child, addresses: Mapping[NodeId, str]) -> None:
    child.tell(json.dumps({name: a for name, a in addresses.items() if name != child.name}))
