"""A local server run: the coordinator in this process, Flower's SuperLink and N boards as children
of it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from edgegossip import codecs, training
from edgegossip.fleet.launch.admission import credentials
from edgegossip.fleet.launch.child import Child, News, spawn, stop_all
from edgegossip.fleet.launch.gossip import LocalRun, boards_nursery
from edgegossip.fleet.launch.nursery import Nursery
from edgegossip.fleet.launch.watch import Watch
from edgegossip.flower import Coordinator, CoordinatorCheckpointer
from edgegossip.flower.superlink import SUPERLINK_LOG, launch
from edgegossip.layout import Layout
from edgegossip.node.storage import DiskFull, about_model, save_model
from edgegossip.recipe import Recipe
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.training.data import Board
from edgegossip.types import NodeId, RunError, UsageError, Vec

FINAL_MODEL = "model"


def run_server(run: LocalRun) -> Mapping[NodeId, str]:
    """Train through a coordinator; saves the model. Returns the boards that were lost, and why.
    Raises RunError."""
    with ExitStack() as stack:  # SuperLink and boards load while this process does
        secure = credentials(run.identities[COORDINATOR]) if COORDINATOR in run.identities else None
        host, port = run.recipe.network.host, run.recipe.network.port
        superlink = launch(host, port, run.folder.path / SUPERLINK_LOG, credentials=secure)
        stack.callback(superlink.stop)
        nursery = stack.enter_context(boards_nursery(run))
        say = partial(run.sink.event, COORDINATOR, "slow")
        first = training.first_model(run.recipe, Board(run.members[0], 0), say)
        layout = first.layout
        checkpointer = coordinator_checkpointer(run.recipe, layout, run.members, run.run_id, run.folder, run.sink)
        coordinator = Coordinator(
            run.recipe,
            layout,
            first.x,
            run.members,
            run.sink,
            run.folder.path,
            run_id=run.run_id,
            evaluate=first.evaluate,
            agreement=first.agreement,
            checkpointer=checkpointer,
            credentials=secure,
            on_model=final_saver(run.recipe, run.folder, first, checkpointer),
            superlink=superlink,
        )
        over = first.over
        stack.callback(first.abandon)  # of a run that fails: a notebook goes on
        del first  # its vector is as large as the model, and of no use after the first round
        lost = _train(run, coordinator, checkpointer, nursery)
        hand_over(over, coordinator.model)
        return lost


def _train(
    run: LocalRun, coordinator: Coordinator, checkpointer: CoordinatorCheckpointer, nursery: Nursery
) -> Mapping[NodeId, str]:
    """Start the boards, and wait for the end."""
    children: list[Child] = []
    news: queue.Queue[News] = queue.Queue()
    try:
        address = coordinator.start()
        for name in run.members:
            children.append(_spawn(run, nursery, name, address, news))
            if name == run.members[0] and not run.resumed:
                run.sink.begin()
        nursery.close()  # it has nothing more to do
        watch = Watch(children, news, run.sink)
        _follow(coordinator, watch, run)
        checkpointer.close(over=True)
        return watch.lost
    finally:
        coordinator.stop()
        stop_all(children)


def hand_over(over: Callable[[Vec], None], model: Vec) -> None:
    """Give the coordinator's script the final model, and let it end. Raises RunError where that
    fails."""
    try:
        over(model)
    except UsageError as error:
        raise RunError(f"the run is over and its model is kept, but {error}") from error


def coordinator_checkpointer(
    recipe: Recipe, layout: Layout, members: tuple[NodeId, ...], run_id: bytes, folder: RunFolder, sink: RecordSink
) -> CoordinatorCheckpointer:
    """Where the coordinator keeps how far the run is."""
    codec = codecs.get(recipe.codec.name, **recipe.codec.params)
    path = folder.checkpoint_dir / COORDINATOR
    return CoordinatorCheckpointer(path, layout, run_id, members, codec, recipe.checkpoint, sink, COORDINATOR)


def final_saver(
    recipe: Recipe, folder: RunFolder, first: training.FirstModel, checkpointer: CoordinatorCheckpointer
) -> Callable[[Vec], None]:
    """How the model of a finished server run is saved: by the names of its `state_dict`, in
    model.npz or whatever checkpoint.format says. On a full disk older checkpoints give way; then it
    raises HostError."""
    path, arrays = folder.checkpoint_dir / f"{FINAL_MODEL}.{recipe.checkpoint.format}", first.arrays
    about = about_model(COORDINATOR, recipe.run.rounds, len(first.layout.tensors))

    def save(x: Vec) -> None:
        try:
            save_model(path, arrays(x), about)
        except DiskFull:
            if not checkpointer.make_room():
                raise
            save_model(path, arrays(x), about)

    return save


def _follow(coordinator: Coordinator, watch: Watch, run: LocalRun) -> None:
    """Until the coordinator is done and every board has ended. Raises what the run failed with."""
    told: set[NodeId] = set()

    def tell_losses() -> None:
        for name in watch.lost.keys() - told:
            told.add(name)
            coordinator.lose(name, watch.lost[name])

    while not _over(coordinator, watch):
        watch.next(0.1)
        tell_losses()
    watch.until_ended(patience_s=15.0)


def _over(coordinator: Coordinator, watch: Watch) -> bool:
    """Whether the rounds are done. When they failed because the boards did, the boards' reasons are
    the better ones."""
    try:
        return coordinator.poll()
    except RunError as error:
        watch.drain()
        own = {c.name: c.last_error for c in watch.children if c.last_error} or watch.lost
        first = next(iter(own.items()), None)
        raise RunError(f"{first[0]}: {first[1]}" if first else str(error)) from None


def _spawn(run: LocalRun, nursery: Nursery, name: NodeId, address: str, news: queue.Queue[News]) -> Child:
    arguments = ["node", str(run.folder.path / "recipe.toml"), "--managed", "--name", name]
    arguments += ["--boards", ",".join(run.members), "--run-id", run.run_id.hex(), "--coordinator", address]
    arguments += ["--save", str(run.folder.checkpoint_dir / f"{name}.{run.recipe.checkpoint.format}")]
    if name in run.identities:
        arguments += ["--identity", str(run.identities[name])]
    if run.resumed:
        arguments += ["--restarted", f"{run.sink.elapsed_s():.3f}"]
    return spawn(nursery, name, arguments, run.folder.path / "logs" / f"{name}.log", news)
