"""The board of a server run: one process that is a client of the coordinator from the first round
to the last."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip import codecs
from edgegossip.flower import BoardKeeper, NodeClient
from edgegossip.flower.credentials import BoardCredentials
from edgegossip.layout import Layout
from edgegossip.node.final_model import about_model, save_model
from edgegossip.node.meters import NodeMeters
from edgegossip.node.notify import service
from edgegossip.node.spec import NodeSpec
from edgegossip.spool import Spool
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
    checkpoints: Path | None = None,
    patience_s: float = PATIENCE_S,
    identity: Identity | None = None,
) -> None:
    """Take part until the coordinator says that the run is over. torch is imported once it has
    answered. `checkpoints` is this board's folder of them. With `identity` over TLS, to a
    coordinator of its fleet.

    Raises PeerError when the coordinator refuses this board or stays out of reach, DataError and
    ConfigError when the workload cannot be built, UsageError when training diverges."""
    codec = codecs.get(spec.recipe.codec.name, **spec.recipe.codec.params)
    meters = NodeMeters()

    made: list[Workload] = []  # the one that is in use last

    def make_workload() -> Workload:
        meters.begin()
        made.clear()  # before the next one is made: there may be no room for two
        made.append(build_workload(spec.recipe, spec.index, spec.name, sink))
        return made[0]

    client = NodeClient(
        spec.name,
        coordinator,
        make_workload,
        codec,
        sink,
        meters=[meters],
        run_id=spec.run_id,
        patience_s=patience_s,
        credentials=None if identity is None else board_credentials(identity),
        on_turn=service().alive,
        make_keeper=None if checkpoints is None else partial(_keeper, spec, checkpoints, sink),
        spool=Spool(None if checkpoints is None else checkpoints.parent),
        downlink=codecs.get(spec.recipe.server.downlink, **spec.recipe.server.downlink_params),
    )
    client.run()
    if checkpoints is not None and made:
        _save_what_stays(spec, made[0], checkpoints.parent)


def _save_what_stays(spec: NodeSpec, workload: Workload, folder: Path) -> None:
    """What of the model is this board's own, such as a personal head: the coordinator keeps only
    what travels. Nothing is written where all of it does. Raises HostError."""
    if stays := workload.state(None):
        path = folder / f"{spec.name}.stays.{spec.recipe.checkpoint.format}"
        save_model(path, stays, about_model(spec.name, spec.recipe.run.rounds, 0))


def board_credentials(identity: Identity) -> BoardCredentials:
    from edgegossip.security import tls

    return BoardCredentials(tls.caller_context(identity, "coordinator"), identity.sign)


def _keeper(spec: NodeSpec, folder: Path, sink: Sink, layout: Layout, run_id: bytes) -> BoardKeeper:
    return BoardKeeper(spec.name, folder, layout, run_id, spec.members, spec.recipe.checkpoint, sink)
