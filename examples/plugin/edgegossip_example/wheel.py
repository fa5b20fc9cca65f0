"""A topology: a ring with a hub in its middle."""

from edgegossip.gossip.topologies import GraphTopology, build


def wheel(n: int, weights: str | None = None) -> GraphTopology:
    """Join node 0 with all others, and these in a ring."""
    rim = range(1, n)
    edges = [(0, i) for i in rim] + [(i, i + 1) for i in rim[:-1]] + [(n - 1, 1)] * (n > 3)
    return build("wheel", n, [edges], directed=False, weights=weights)
