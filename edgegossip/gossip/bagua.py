"""`bagua-lp`: low-precision decentralised SGD, as Bagua's.

Bagua, "Low precision decentralized SGD"; Tang et al. (2018), "Communication compression for decentralized training",
algorithm 1 (DCD-PSGD): every node and all of its neighbours hold the same replica of its model. With L and R the replicas of
the two neighbours on a ring: z = x_after_step + (L + R) / 3 - (5/3) x; x <- x + Q(z), and the same at both neighbours.

Here for any symmetric W: z = delta + eta sum_j W_ij (x_j - x_i), which on a ring with weights 1/3 is the same. The model moves
by what was sent only, so it is its own replica. The codec is the run's; Bagua's is minmax8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgegossip.gossip import suitable
from edgegossip.gossip.changed import changed
from edgegossip.gossip.here import Here
from edgegossip.gossip.params import check_eta
from edgegossip.gossip.publish import Difference
from edgegossip.gossip.scheme import Full, Published
from edgegossip.gossip.symmetric import Mixing, Symmetric, after
from edgegossip.types import LocalUpdate, Vec


@dataclass(frozen=True, slots=True)
class Bagua(Symmetric):
    """Mixes before it publishes, with the replicas as they were when the round began (`Mixing.past`): a neighbour's message
    of this round may be here already, and must not count in it."""

    def init(self, x: Vec, here: Here) -> Mixing:
        m = Symmetric.init(self, x, here)
        return changed(m, past=m.copies)

    def publish(self, m: Mixing, local: LocalUpdate, here: Here, to: Sequence[int]) -> tuple[Mixing, Published]:
        v = m.x + local.delta
        for j in to:  # who is up; W is symmetric, so these are the in-neighbours too
            copy = m.past.get((j, here.phase), m.start)
            v += np.float32(m.eta * here.around.weights[j]) * (copy - m.x)
        memory, said = self.publisher.publish(m.memory, v, local, here)
        m = changed(m, memory=memory, base=said.public, public=said.public)
        return m, Published(said.body, {}, said.relative_error)

    def pulled(self, m: Mixing, pull: Vec, here: Here, fresh: Sequence[int]) -> Mixing:
        """The model is what was made known of it; the neighbours' news counts from the next round on."""
        return changed(Symmetric.pulled(self, m, pull, here, fresh), x=m.base, past=m.copies)

    def settle(self, m: Mixing, model: Vec | None, here: Here) -> Mixing:
        return changed(Symmetric.settle(self, m, model, here), past=m.copies)

    def adopt(self, m: Mixing, sender: int, phase: int, full: Full, here: Here) -> Mixing:
        m = Symmetric.adopt(self, m, sender, phase, full, here)
        return changed(m, past={**m.past, (sender, phase): full.vectors[0]})


def bagua_lp(eta: float = 1.0) -> Bagua:
    """eta: averaging rate. The codec must be fine: what it loses is lost until a later difference makes up for it."""
    check_eta("bagua-lp", eta)
    return Bagua("bagua-lp", Difference(), after, eta, suitable.symmetric)
