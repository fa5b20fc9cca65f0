"""Trains without a server: algorithms as state machines without I/O, topologies and mixing weights.
Pure.

A new algorithm is a scheme, made by one function, and one line in `_SCHEMES` (or in `_OTHERS`, if
it does not go by rounds)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from edgegossip.choices import check_keywords, unknown
from edgegossip.gossip import topologies
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.scheme import Scheme

__all__ = ["get", "names", "topologies"]

# Name -> (file, what makes it). Only the one that a run needs is imported: a board has little
# memory to spare.
_SCHEMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "dpsgd": ("symmetric", "dpsgd"),
        "deep-squeeze": ("symmetric", "deep_squeeze"),
        "choco-sgd": ("symmetric", "choco_sgd"),
        "sgp": ("push", "sgp"),
        "sparse-push": ("push", "sparse_push"),
        "quant-sgp": ("push", "quant_sgp"),
        "bagua-lp": ("symmetric", "bagua_lp"),
        "parallel-sgd": ("parallel", "parallel_sgd"),
        "d2": ("symmetric", "d2"),
    }
)
_OTHERS: Mapping[str, tuple[str, str]] = MappingProxyType({"ad-psgd": ("adpsgd", "AdPsgd")})


def names() -> tuple[str, ...]:
    """Return the names that `get` knows."""
    return (*_SCHEMES, *_OTHERS)


def get(name: str, **params: Any) -> GossipAlgorithm[Any]:
    """Return the algorithm `name` with its parameters fixed: its own, such as eta, and those of its
    rounds (staleness, quorum, linger_s, max_ahead, early_bytes).

    Raises ConfigError on an unknown name or parameter, or a value out of range.

    Example:
        algorithm = gossip.get("dpsgd", quorum=0.5, linger_s=2.0)
    """
    if name in _OTHERS:
        other = cast("Callable[..., GossipAlgorithm[Any]]", _load(*_OTHERS[name]))
        check_keywords(f"algorithm {name!r}", other, params)
        return other(**params)
    if name not in _SCHEMES:
        raise unknown("algorithm", name, names())
    return _by_rounds(name, cast("Callable[..., Scheme[Any]]", _load(*_SCHEMES[name])), params)


def _by_rounds(name: str, make: Callable[..., Scheme[Any]], params: Mapping[str, Any]) -> GossipAlgorithm[Any]:
    from edgegossip.gossip.rounds import Synchronous

    own = set(inspect.signature(make).parameters) - {"keeps"}
    rounds = set(inspect.signature(Synchronous).parameters) - {"scheme"}
    for key in params:
        if key not in own | rounds:
            raise unknown(f"parameter of algorithm {name!r}", key, own | rounds)
    mine = {k: v for k, v in params.items() if k in own}
    if "keeps" in inspect.signature(make).parameters:
        mine["keeps"] = bool(params.get("staleness"))
    return Synchronous(make(**mine), **{k: v for k, v in params.items() if k in rounds})


def _load(file: str, attribute: str) -> Any:
    return getattr(import_module(f"{__name__}.{file}"), attribute)
