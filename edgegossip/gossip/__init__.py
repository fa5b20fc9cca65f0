"""Decentralised training without a server: algorithms as state machines without I/O, topologies and mixing weights.
Pure.

A new algorithm is one file and one line in `_ALGORITHMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from edgegossip.gossip import topologies
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.dpsgd import Dpsgd
from edgegossip.gossip.params import check_keywords, choose

__all__ = ["get", "names", "topologies"]

_ALGORITHMS: Mapping[str, Callable[..., GossipAlgorithm[Any]]] = MappingProxyType({"dpsgd": Dpsgd})


def names() -> tuple[str, ...]:
    """Names that `get` knows."""
    return tuple(_ALGORITHMS)


def get(name: str, **params: Any) -> GossipAlgorithm[Any]:
    """The algorithm `name` with its parameters fixed. Raises ConfigError on an unknown name or parameter, or a value
    out of range."""
    make = choose("algorithm", name, _ALGORITHMS)
    check_keywords(f"algorithm {name!r}", make, params)
    return make(**params)
