"""The board of a server run: one process that is a client of the coordinator from the first round to the last."""

from __future__ import annotations

from edgegossip import codecs
from edgegossip.flower import NodeClient
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec
from edgegossip.profiling.records import Sink
from edgegossip.training import build_workload


def run_client(spec: NodeSpec, coordinator: str, sink: Sink) -> None:
    """Take part until the coordinator says that the run is over. torch is imported once it has answered.

    Raises PeerError when the coordinator refuses this board or stays out of reach, DataError and ConfigError when the
    workload cannot be built, LocalError when training diverges."""
    codec = codecs.get(spec.recipe.codec.name, **spec.recipe.codec.params)
    client = NodeClient(
        spec.name,
        coordinator,
        lambda: build_workload(spec.recipe, spec.index),
        codec,
        sink,
        meters=[NodeMeters()],
        run_id=spec.run_id,
        downlink=codecs.get(spec.recipe.server.downlink, **spec.recipe.server.downlink_params),
    )
    client.run()
