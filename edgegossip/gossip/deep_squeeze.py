"""`deep-squeeze`: what compression loses of the model is said later.

Tang et al., "DeepSqueeze: decentralization meets error-compensated compression" (2019), algorithm 1; Aketi et al. (2021),
algorithm 2: x~ = x - gamma g; v = x~ + e; send C[v]; e <- v - C[v]; x <- x~ + eta sum_j (W_ij - I_ij) C[v_j]."""

from __future__ import annotations

from edgegossip.gossip import suitable
from edgegossip.gossip.params import check_eta
from edgegossip.gossip.publish import Compensated
from edgegossip.gossip.symmetric import Symmetric, after


def deep_squeeze(eta: float = 0.0, keeps: bool = False) -> Symmetric:
    """eta: averaging rate; 0: by how much the codec keeps."""
    check_eta("deep-squeeze", eta)
    return Symmetric("deep-squeeze", Compensated(), after, eta, suitable.doubly_stochastic, keeps)
