"""Who talks to whom, by name. A new topology is one function and one line in `_BUILDERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from edgegossip.gossip.params import check_keywords, choose
from edgegossip.gossip.topologies import file, regular
from edgegossip.gossip.topologies.file import from_file
from edgegossip.gossip.topologies.graph import GraphTopology
from edgegossip.types import ConfigError

__all__ = ["GraphTopology", "from_file", "get", "names"]

_BUILDERS: Mapping[str, Callable[..., GraphTopology]] = MappingProxyType(
    {
        "ring": regular.ring,
        "directed-ring": regular.directed_ring,
        "torus": regular.torus,
        "complete": regular.complete,
        "star": regular.star,
        "random-regular": regular.random_regular,
        "exponential": regular.exponential,
        "one-peer-exponential": regular.one_peer_exponential,
        "file": file.from_file_of,
    }
)


def names() -> tuple[str, ...]:
    """Return the names that `get` knows."""
    return tuple(_BUILDERS)


def get(name: str, n: int, **params: Any) -> GraphTopology:
    """The topology `name` for n >= 2 nodes.

    Every one takes weights = "metropolis", "column" or "uniform" (default: Metropolis-Hastings if
    undirected, else column-stochastic); torus takes rows and cols, random-regular degree and seed,
    file path and members. Raises ConfigError on an unknown name or parameter, a value out of range
    or fewer than two nodes; DataError on a file that cannot be read."""
    build = choose("topology", name, _BUILDERS)
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ConfigError(
            f"topology {name!r} needs at least 2 nodes, not {n!r}: a gossip mesh of one has nobody to talk to"
        )
    check_keywords(f"topology {name!r}", build, params, own=("n",))
    return build(n, **params)
