"""Decentralised training without a server: algorithms as state machines without I/O, topologies and mixing weights.
Pure.

A new algorithm is one file and one line in `_SCHEMES` (or in `_OTHERS`, if it does not go by rounds).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from edgegossip.gossip import topologies
from edgegossip.gossip.adpsgd import AdPsgd
from edgegossip.gossip.bagua import bagua_lp
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.choco import choco_sgd
from edgegossip.gossip.d2 import d2
from edgegossip.gossip.deep_squeeze import deep_squeeze
from edgegossip.gossip.dpsgd import dpsgd
from edgegossip.gossip.parallel import parallel_sgd
from edgegossip.gossip.params import check_keywords, unknown
from edgegossip.gossip.scheme import Scheme
from edgegossip.gossip.sgp import quant_sgp, sgp, sparse_push
from edgegossip.gossip.synchronous import Synchronous

__all__ = ["get", "names", "topologies"]

_SCHEMES: Mapping[str, Callable[..., Scheme[Any]]] = MappingProxyType(
    {
        "dpsgd": dpsgd,
        "deep-squeeze": deep_squeeze,
        "choco-sgd": choco_sgd,
        "sgp": sgp,
        "sparse-push": sparse_push,
        "quant-sgp": quant_sgp,
        "bagua-lp": bagua_lp,
        "parallel-sgd": parallel_sgd,
        "d2": d2,
    }
)
_OTHERS: Mapping[str, Callable[..., GossipAlgorithm[Any]]] = MappingProxyType({"ad-psgd": AdPsgd})


def names() -> tuple[str, ...]:
    """Names that `get` knows."""
    return (*_SCHEMES, *_OTHERS)


def get(name: str, **params: Any) -> GossipAlgorithm[Any]:
    """The algorithm `name` with its parameters fixed: its own, such as eta, and those of its rounds (staleness, quorum,
    linger_s, max_ahead, early_bytes). Raises ConfigError on an unknown name or parameter, or a value out of range."""
    if name in _OTHERS:
        other = _OTHERS[name]
        check_keywords(f"algorithm {name!r}", other, params)
        return other(**params)
    if name not in _SCHEMES:
        raise unknown("algorithm", name, names())
    make = _SCHEMES[name]
    own = set(inspect.signature(make).parameters) - {"keeps"}
    rounds = set(inspect.signature(Synchronous).parameters) - {"scheme"}
    for key in params:
        if key not in own | rounds:
            raise unknown(f"parameter of algorithm {name!r}", key, own | rounds)
    mine = {k: v for k, v in params.items() if k in own}
    if "keeps" in inspect.signature(make).parameters:
        mine["keeps"] = bool(params.get("staleness"))
    return Synchronous(make(**mine), **{k: v for k, v in params.items() if k in rounds})
