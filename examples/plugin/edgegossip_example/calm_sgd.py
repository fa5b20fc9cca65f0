"""A gossip algorithm: D-PSGD whose boards go half of the way to their neighbours."""

from edgegossip.gossip.publish import Plain
from edgegossip.gossip.requirements import require_doubly_stochastic
from edgegossip.gossip.symmetric import Symmetric, after
from edgegossip.gossip.traits import THEN, Traits


def calm_sgd(eta: float = 0.5, keeps: bool = False) -> Symmetric:
    """Return x <- y + eta sum_j W_ij (y_j - y_i), where y is the model after the local steps."""
    traits = Traits(orders=(THEN,), one_order="boards would go apart before they go half of the way", plain=True)
    return Symmetric("calm-sgd", traits, Plain(), after, eta, require_doubly_stochastic, keeps)
