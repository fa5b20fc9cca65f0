"""Finds gossip algorithms by their names. A new one is a scheme, made by one function, or a
`GossipAlgorithm`, if it does not go by rounds, and one line in `MADE_BY`; of another package, an
entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from edgegossip import plugins
from edgegossip.choices import check_keywords, check_values, choose, keywords_of, unknown
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.scheme import Scheme

# Name -> (file, what makes it). Only the one that a run needs is imported: a board has little
# memory to spare.
MADE_BY: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "dpsgd": ("dpsgd", "dpsgd"),
        "deep-squeeze": ("symmetric", "deep_squeeze"),
        "choco-sgd": ("symmetric", "choco_sgd"),
        "sgp": ("push", "sgp"),
        "sparse-push": ("push", "sparse_push"),
        "quant-sgp": ("push", "quant_sgp"),
        "bagua-lp": ("symmetric", "bagua_lp"),
        "parallel-sgd": ("parallel", "parallel_sgd"),
        "d2": ("symmetric", "d2"),
        "gt-dsgd": ("tracking", "gt_dsgd"),
        "k-gt": ("tracking", "k_gt"),
        "motef": ("tracking", "motef"),
        "ad-psgd": ("adpsgd", "AdPsgd"),
    }
)


def names() -> tuple[str, ...]:
    """Return the names that `get` knows, those of other packages last."""
    return (*MADE_BY, *plugins.names("algorithms"))


def get(name: str, **params: Any) -> GossipAlgorithm[Any]:
    """Return the algorithm `name` with its parameters fixed: its own, such as eta, and those of its
    rounds (staleness, quorum, linger_s, max_ahead).

    Raises ConfigError on an unknown name or parameter, or a value out of range.

    Example:
        algorithm = gossip.get("dpsgd", quorum=0.5, linger_s=2.0)
    """
    make = maker(name)
    if not hasattr(make, "receive"):  # it makes a scheme
        return _by_rounds(name, make, params)
    check_keywords("algorithm", name, make, params)
    return cast("GossipAlgorithm[Any]", make(**params))


def having(holds: Callable[[GossipAlgorithm[Any]], bool]) -> tuple[str, ...]:
    """Return the names of the algorithms of this package that are so."""
    return tuple(name for name in MADE_BY if holds(get(name)))


def maker(name: str) -> Callable[..., Any]:
    """Return what makes the algorithm, or its scheme, with its own parameters as keywords. Raises
    ConfigError on an unknown name."""
    if name not in MADE_BY and (found := plugins.find("algorithms", name)):
        return cast("Callable[..., Any]", found.what)
    file, attribute = choose("algorithm", name, MADE_BY)
    return cast("Callable[..., Any]", getattr(import_module(f"{__package__}.{file}"), attribute))


def _by_rounds(name: str, make: Callable[..., Scheme[Any]], params: Mapping[str, Any]) -> GossipAlgorithm[Any]:
    from edgegossip.gossip.rounds import Synchronous

    own, rounds = keywords_of(make).keys() - {"keeps"}, keywords_of(Synchronous).keys() - {"scheme"}
    for key in params:
        if key not in own | rounds:
            raise unknown(f"parameter of algorithm {name!r}", key, own | rounds)
    mine = {k: v for k, v in params.items() if k in own}
    others = {k: v for k, v in params.items() if k in rounds}
    check_values(name, make, mine)
    check_values(name, Synchronous, others)
    if "keeps" in keywords_of(make):
        mine["keeps"] = bool(params.get("staleness"))
    return Synchronous(make(**mine), **others)
