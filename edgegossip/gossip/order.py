"""Says in which order a round's local step and its mixing go, for algorithms that are used in both.
- `adapt-with-combine`: models travel as they are before the step, which is added to what mixing
  made of them. Messages and training need not wait for each other.
- `adapt-then-combine`: models travel after the step. Boards end a round closer together, by what
  mixing takes off the steps of that round.

`dpsgd`: x <- sum_j W_ij x_j - gamma g(x_i) (Lian et al. 2017, algorithm 1; its own), or x <- sum_j
W_ij (x_j - gamma g(x_j)) (Lin et al. 2021, "Quasi-global momentum", algorithm 1; what most programs
call D-PSGD). `choco-sgd`: its own is adapt-then-combine (Koloskova et al. 2019, algorithm 2); the
other is what the authors' deep learning code does (`ParallelCHOCO`): q = C[x - xhat]; xhat <- xhat
+ q; x <- x - gamma g(x) + eta sum_j W_ij (xhat_j - xhat_i).

Where a round has many steps, `adapt-with-combine` overshoots: W - s, s the share of the way to its
own optimum that a board goes in a round, has eigenvalues below -1 already for s < 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from edgegossip.choices import choose, either
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.registry import having
from edgegossip.gossip.traits import THEN, WITH
from edgegossip.types import ConfigError

ORDERS = ("auto", WITH, THEN)


def mixes_before_steps(algorithm: GossipAlgorithm[Any]) -> bool:
    """Return whether models travel as they are before a round's steps, and need not."""
    from edgegossip.gossip.symmetric import before

    return getattr(getattr(algorithm, "scheme", None), "rule", None) is before


def with_order(algorithm: GossipAlgorithm[Any], order: str, many_steps: bool = False) -> GossipAlgorithm[Any]:
    """Return `algorithm` with local step and mixing in one of ORDERS; for "auto" itself, or
    adapt-then-combine where a round has many steps and the algorithm has both. Raises ConfigError
    for another, and where the algorithm does not have it.

    Example:
        algorithm = with_order(gossip.get("dpsgd"), "adapt-then-combine")
    """
    choose("gossip.order", order, dict.fromkeys(ORDERS))
    own = algorithm.traits.orders
    both = len(own) > 1
    if order == "auto" and not (both and many_steps):
        return algorithm
    if both:
        from edgegossip.gossip.symmetric import after, before

        rounds = cast("Any", algorithm)  # `rounds.Synchronous` around a `Symmetric`
        scheme = replace(rounds.scheme, rule=before if order == WITH else after, ordered=True)
        ordered: GossipAlgorithm[Any] = replace(rounds, scheme=scheme)
        return ordered
    if order not in own:
        cure = f"auto, which is {own[0]} there" if own else "auto"
        raise ConfigError(
            f"gossip.order = {order} is not for {algorithm.name}: {algorithm.traits.one_order}; say {cure}, or use "
            f"gossip.algorithm = {either(having(lambda of: len(of.traits.orders) > 1))}"
        )
    return algorithm
