"""`sgp`, `sparse-push`, `quant-sgp`: push-sum on directed and time-varying graphs, with the three ways to publish.

sgp: stochastic gradient push, Assran et al. (2019), algorithm 1, whole models. sparse-push: with error compensation, Aketi
et al. (2021), algorithm 4. quant-sgp: with differences to public copies, Taheri et al. (2020); Aketi et al. (2021),
algorithm 5, in the form that conserves mass on every graph (see `push`).

Deviations: gradients are added at x, taken at z, as in those papers; the public copies of quant-sgp start at the initial
model unless `zero_start`; on a time-varying graph every phase of the period has copies of its own, since receivers change."""

from __future__ import annotations

from edgegossip.gossip import suitable
from edgegossip.gossip.params import check_eta, check_flag
from edgegossip.gossip.publish import Compensated, Difference, Plain
from edgegossip.gossip.push import Push


def sgp(eta: float = 1.0) -> Push:
    """eta: averaging rate. What compression loses is lost to the receivers only: mass is conserved for any codec."""
    check_eta("sgp", eta)
    return Push("sgp", Plain(), eta, suitable.column_stochastic)


def sparse_push(eta: float = 0.0) -> Push:
    """eta: averaging rate; 0: by how much the codec keeps."""
    check_eta("sparse-push", eta)
    return Push("sparse-push", Compensated(), eta, suitable.column_stochastic)


def quant_sgp(eta: float = 0.0, zero_start: bool = False) -> Push:
    """eta: averaging rate; 0: by how much the codec keeps."""
    check_eta("quant-sgp", eta)
    check_flag("zero_start of quant-sgp", zero_start)
    return Push("quant-sgp", Difference(), eta, suitable.column_stochastic, zero_start)
