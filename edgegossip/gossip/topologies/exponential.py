"""Exponential graphs: Ying et al., "Exponential graph is provably efficient for decentralized deep training" (2021).

Both are circulant, so column-stochastic weights are doubly stochastic on them.
"""

from __future__ import annotations

from edgegossip.gossip.topologies.graph import GraphTopology, build


def exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Static and directed: node i sends to i + 2^k (mod n) for k = 0 .. ceil(log2 n) - 1. The spectral gap is
    2 / (1 + ceil(log2 n)) for even n (proposition 1)."""
    edges = [(i, (i + 2**k) % n) for i in range(n) for k in range(_hops(n))]
    return build("exponential", n, [edges], directed=True, weights=weights)


def one_peer_exponential(n: int, weights: str | None = None) -> GraphTopology:
    """Time-varying and directed: in round t node i sends to i + 2^(t mod p) (mod n) only, p = ceil(log2 n). When n is a
    power of two, one period averages exactly (lemma 1)."""
    rounds = [[(i, (i + 2**k) % n) for i in range(n)] for k in range(_hops(n))]
    return build("one-peer-exponential", n, rounds, directed=True, weights=weights)


def _hops(n: int) -> int:
    """ceil(log2 n)"""
    return (n - 1).bit_length()
