"""`choco-sgd`: compressed differences to public copies that all neighbours hold.

Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed communication"
(2019), algorithm 2; Aketi et al. (2021), algorithm 3: x~ = x - gamma g; q = C[x~ - xhat]; everybody: xhat <- xhat + q;
x <- x~ + eta sum_j W_ij (xhat_j - xhat_i).

Deviation: the public copies start at the initial model rather than at zero, which every node knows and which spares the
first rounds from telling it; `zero_start` gives the paper's. Nodes that start from different models notice that."""

from __future__ import annotations

from edgegossip.gossip import suitable
from edgegossip.gossip.params import check_eta, check_flag
from edgegossip.gossip.publish import Difference
from edgegossip.gossip.symmetric import Symmetric, after


def choco_sgd(eta: float = 0.0, zero_start: bool = False, keeps: bool = False) -> Symmetric:
    """eta: averaging rate; 0: by how much the codec keeps."""
    check_eta("choco-sgd", eta)
    check_flag("zero_start of choco-sgd", zero_start)
    return Symmetric("choco-sgd", Difference(), after, eta, suitable.symmetric, keeps, zero_start)
