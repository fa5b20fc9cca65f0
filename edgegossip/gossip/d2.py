"""`d2`: decentralised SGD that does not mind how different the boards' data are.

Tang et al., "D2: decentralized training over decentralized data" (2018), algorithm 1:
x_(t+1) = W (2 x_t - x_(t-1) - gamma g_t + gamma g_(t-1)), first step x_1 = W (x_0 - gamma g_0).

It needs a smallest eigenvalue of W above -1/3, where a ring of an even number of nodes with weights 1/3 is not: mixing with
(1 - eta) I + eta W, eta = 1/2, always does.

Kept of the rounds before is c_t = x_t - x_(t-1) + gamma g_(t-1), what mixing has added so far: c_(t+1) = c_t + what mixing
adds now. That is one vector instead of two, and small: as a difference of models it would be rounded like a model, and D2
repeats in every later round what one round got wrong. Deviations: gamma g is the local update that was made, so the learning
rate may change; a round without mixing goes on from there, and a new model begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgegossip.gossip import suitable
from edgegossip.gossip.changed import changed
from edgegossip.gossip.here import Here
from edgegossip.gossip.params import check_eta
from edgegossip.gossip.publish import Plain
from edgegossip.gossip.symmetric import Mixing, Symmetric
from edgegossip.types import ConfigError, LocalUpdate, Vec

_MARGIN = 1e-6


def extrapolate(m: Mixing, local: LocalUpdate) -> tuple[Vec, Vec, Any]:
    """x_t + delta_t + c_t, which is both published and mixed."""
    step = local.delta if m.past is None else local.delta + m.past
    y = m.x + step
    return y, y, m.past


@dataclass(frozen=True, slots=True)
class D2(Symmetric):
    """The symmetric scheme with an averaging rate that the graph allows."""

    def init(self, x: Vec, here: Here) -> Mixing:
        """Raises ConfigError when eta is too large for the graph."""
        smallest = float(np.linalg.eigvalsh(here.view.topology.matrix(0))[0])
        largest = (4.0 / 3.0) / (1.0 - smallest) if smallest < 1.0 else 1.0
        if self.eta >= largest - _MARGIN and self.eta:
            raise ConfigError(
                f"eta of d2 = {self.eta:g} must be below {largest:.3g} on topology {here.view.topology.name!r}, whose "
                f"smallest eigenvalue is {smallest:.3g}; 0 chooses one"
            )
        m = Symmetric.init(self, x, here)
        return m if self.eta or m.eta < largest - _MARGIN else changed(m, eta=0.5)

    def pulled(self, m: Mixing, pull: Vec, here: Here, fresh: Sequence[int]) -> Mixing:
        past = pull if m.past is None else m.past + pull
        return changed(Symmetric.pulled(self, m, pull, here, fresh), past=past)


def d2(eta: float = 0.0, keeps: bool = False) -> D2:
    """eta: averaging rate; 0: the largest of 1 and 1/2 that the graph allows, less where the codec keeps little.
    Raises ConfigError with bounded staleness, with which it diverges."""
    check_eta("d2", eta)
    if keeps:
        raise ConfigError("staleness of d2 must be 0: with old news its differences grow from round to round")
    return D2("d2", Plain(), extrapolate, eta, suitable.symmetric, keeps)
