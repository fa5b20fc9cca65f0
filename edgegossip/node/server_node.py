"""The board of a server run: one process that is a client of the coordinator from the first round
to the last."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.flower import BoardCheckpointer, NodeClient
from edgegossip.flower.connection import BoardCredentials
from edgegossip.layout import Layout
from edgegossip.memory import Spool
from edgegossip.node.guard import GuardedWorkload
from edgegossip.node.meters import NodeMeters
from edgegossip.node.notify import service
from edgegossip.node.spec import NodeSpec
from edgegossip.node.storage import about_model, save_model
from edgegossip.telemetry.records import Sink
from edgegossip.training import build_workload
from edgegossip.training.base import Workload

if TYPE_CHECKING:
    from edgegossip.security.identity import Identity

PATIENCE_S = 600.0  # for a coordinator that is away: it may be started again


def run_client(
    spec: NodeSpec,
    coordinator: str,
    sink: Sink,
    checkpoints: Path | None,
    patience_s: float,
    identity: Identity | None,
) -> None:
    """Take part until the coordinator says that the run is over. torch is imported once it has
    answered. `checkpoints` is this board's folder of them. With `identity` over TLS, to a
    coordinator of its fleet.

    Raises PeerError when the coordinator refuses this board or stays out of reach, DataError and
    ConfigError when the workload cannot be built, UsageError when training diverges, HostError when
    the board's own part of the model cannot be saved."""
    codec = codecs.get(spec.recipe.codec.name, **spec.recipe.codec.params)
    meters = NodeMeters()

    made: list[Workload] = []  # the one that is in use last

    def make_workload() -> Workload:
        meters.begin()
        made.clear()  # before the next one is made: there may be no room for two
        workload = build_workload(spec.recipe, spec.index, spec.name, sink)
        made.append(GuardedWorkload.of(workload, spec.recipe.guard, spec.name, meters.readings, sink))
        return made[0]

    def make_checkpointer(folder: Path, layout: Layout, run_id: bytes) -> BoardCheckpointer:
        return BoardCheckpointer(spec.name, folder, layout, run_id, spec.members, spec.recipe.checkpoint, sink)

    client = NodeClient(
        spec.name,
        coordinator,
        make_workload,
        codec,
        sink,
        meters=[meters],
        run_id=spec.run_id,
        patience_s=patience_s,
        credentials=None if identity is None else BoardCredentials.of(identity),
        on_turn=service().alive,
        make_checkpointer=None if checkpoints is None else partial(make_checkpointer, checkpoints),
        spool=Spool(None if checkpoints is None else checkpoints.parent),
        downlink=codecs.get(spec.recipe.server.downlink, **spec.recipe.server.downlink_params),
        own_test=recipes.tests_by_board(spec.recipe),
    )
    client.run()
    # What of the model is this board's own, such as a personal head: the coordinator keeps only
    # what travels.
    if checkpoints is not None and made and (stays := made[0].state(None)):
        path = checkpoints.with_name(f"{spec.name}.stays.{spec.recipe.checkpoint.format}")
        save_model(path, stays, about_model(spec.name, spec.recipe.run.rounds, 0))
