"""A peer that is a member of its run besides, as every board of `edgegossip node --members` or
`--join` is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from edgegossip.lab.bench.mesh.peers import PATIENCE_S, RUN_ID, MeshPeer
from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh import address as addresses
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.client import Unreachable, request_join
from edgegossip.mesh.membership.protocol import Rows
from edgegossip.types import PeerError


class MemberPeer(MeshPeer):
    """Streams to its neighbours, and the members' probes. The first of `members` founds the run,
    the others join through the one before them."""

    def __init__(self, name: str, members: int) -> None:
        names = tuple(f"p{k:02}" for k in range(members))
        self._me = names.index(name)
        manifest = manifests.make(RUN_ID, names[0], names, "", "")
        self._agent = Agent(manifest, name, lambda event: None, lambda kind, text, peer=None, **_: None)
        super().__init__(
            name,
            GrpcTransport(
                name, RUN_ID, limits=MeshLimits(grace_s=30.0).among_members(), services=[self._agent.service]
            ),
        )

    def connect(self, peers: Mapping[str, str]) -> None:
        """See MeshPeer.connect."""
        known = self._ask(peers[f"p{self._me - 1:02}"]) if self._me else ()
        self._transport.submit(self._agent.start(self.address, known=known)).result(PATIENCE_S)
        super().connect(peers)

    def idle(self, seconds: float) -> float:
        """See MeshPeer.idle. Raises PeerError when it was not a member among all others."""
        cpu_s = super().idle(seconds)
        table = self._agent.detector.table if self._agent.detector else []
        if not table or not all(entry.here for entry in table):
            raise PeerError(f"only {sum(entry.here for entry in table)} members were here; is this machine busy?")
        return cpu_s

    def close(self) -> None:
        self._transport.submit(self._agent.stop()).result(PATIENCE_S)
        super().close()

    def _ask(self, seed: str) -> Rows:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return request_join(addresses.parse(seed, "address"), f"p{self._me:02}", None, RUN_ID).rows
            except Unreachable:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)
