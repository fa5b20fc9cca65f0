"""`dpsgd`: decentralised parallel SGD.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (2017), algorithm 1:
x_i <- sum_j W_ij x_j - gamma g_i(x_i), gradient at the model before mixing, W symmetric and doubly stochastic.

Deviations. (1) It is computed as x_i + eta sum_j W_ij (xhat_j - xhat_i) + delta_i with xhat = decode(encode(x)), which
is the same for a lossless codec and eta = 1, and keeps the mean of the models for any codec: what i adds, j takes off.
(2) delta_i, the local update, may be several optimiser steps. (3) W may be directed if it is doubly stochastic in every
round."""

from __future__ import annotations

from edgegossip.gossip import suitable
from edgegossip.gossip.params import check_number
from edgegossip.gossip.publish import Plain
from edgegossip.gossip.symmetric import Symmetric, before


def dpsgd(eta: float = 1.0, keeps: bool = False) -> Symmetric:
    """eta: averaging rate, (0, 1]. Whole models travel, so a coarse codec makes them coarse: see `choco_sgd`."""
    check_number("eta of dpsgd", eta, 0.0, 1.0)
    return Symmetric("dpsgd", Plain(), before, eta, suitable.doubly_stochastic, keeps)
