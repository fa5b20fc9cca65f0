"""Reads and writes NAME[:KEY=VALUE,...] for algorithms, codecs and topologies, as the command
line has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgegossip import codecs, gossip
from edgegossip.files import text_of
from edgegossip.gossip import outer, topologies
from edgegossip.gossip.base import GossipAlgorithm, Topology
from edgegossip.gossip.momentum import with_momentum
from edgegossip.gossip.order import with_order
from edgegossip.gossip.robust import with_robust_mixing
from edgegossip.types import ConfigError

OUTER = "outer-"


@dataclass(frozen=True, slots=True)
class Named:
    """Names something of a registry with its parameters; hashable."""

    name: str
    params: tuple[tuple[str, str], ...] = ()  # values as JSON

    @classmethod
    def of(cls, name: str, params: Mapping[str, Any] | None = None) -> Named:
        """Make one of a name and parameters that JSON can hold."""
        return cls(name, tuple(sorted((k, json.dumps(v, separators=(",", ":"))) for k, v in (params or {}).items())))

    @property
    def values(self) -> dict[str, Any]:
        """Return the parameters as Python values."""
        return {k: json.loads(v) for k, v in self.params}

    def __str__(self) -> str:
        plain = (f"{k}={_bare(v)}" for k, v in self.params)
        return self.name + (":" + ",".join(plain) if self.params else "")


def parse(option: str, text: str) -> Named:
    """Read NAME[:KEY=VALUE,...]. Raises ConfigError that names the option."""
    name, _, rest = text.partition(":")
    params: dict[str, Any] = {}
    for item in _items(rest):
        key, equals, value = item.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{option} {text}: write it as NAME or NAME:KEY=VALUE,..., such as topk:ratio=0.1")
        params[key] = _value(value)
    return Named.of(name, params)


def _items(text: str) -> list[str]:
    """Split at commas that are not within brackets or quotes."""
    items, depth, start, quoted = [], 0, 0, False
    for k, c in enumerate(text):
        quoted ^= c == '"'
        depth += (c in "[{") - (c in "]}")
        if c == "," and depth == 0 and not quoted:
            items.append(text[start:k])
            start = k + 1
    return [i for i in (*items, text[start:]) if i]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _bare(value: str) -> str:
    """JSON without the quotes of a word that is plainly one."""
    word = json.loads(value)
    return word if isinstance(word, str) and _value(word) == word and not set(word) & set(",[]{}") else value


@lru_cache(maxsize=4096)
def topology_of(named: Named, nodes: int) -> Topology:
    """Return the topology. Made once: building one takes longer than a schedule's round. Raises
    ConfigError, or DataError for a topology file."""
    if named.name == "file":
        members = tuple(member_names(nodes))
        values = named.values
        if unknown := sorted(set(values) - {"path", "weights"}):
            raise ConfigError(f"a topology file takes the parameter weights only, not {unknown[0]}")
        if "path" not in values:
            raise ConfigError("a topology file needs its path: write it as file:path=edges.txt")
        text, source = text_of(str(values["path"]), "topology file")
        return topologies.from_text(text, members, values.get("weights"), source)
    return topologies.get(named.name, nodes, **named.values)


def member_names(nodes: int) -> list[str]:
    """Return board-0, board-1, ..., padded so that they sort in order, as a local fleet's."""
    width = len(str(nodes - 1))
    return [f"board-{k:0{width}}" for k in range(nodes)]


@lru_cache(maxsize=4096)
def codec_of(named: Named) -> Any:
    """Return the codec. Raises ConfigError."""
    return codecs.get(named.name, **named.values)


@lru_cache(maxsize=4096)
def algorithm_of(named: Named) -> GossipAlgorithm[Any]:
    """Return the algorithm of `name`, `name+momentum` or `name+outer-optimizer`; the parameter
    `momentum_factor` is the momentum's, `outer_lr` and so on the outer optimiser's,
    `malicious_nodes` and `malicious_rule` those of robust mixing, `order` that of step and mixing.
    Raises ConfigError."""
    name, plus, kind = named.name.partition("+")
    values = named.values
    if kind.startswith(OUTER):
        keys = [key for key in values if key.startswith("outer_")]
        around = outer.make(kind.removeprefix(OUTER), **{key.removeprefix("outer_"): values.pop(key) for key in keys})
        return outer.with_outer(algorithm_of(Named.of(name, values)), around)
    factor = values.pop("momentum_factor", 0.9) if plus else 0.9
    malicious, rule = int(values.pop("malicious_nodes", 0)), str(values.pop("malicious_rule", "nearest"))
    order = str(values.pop("order", "auto"))
    algorithm = with_robust_mixing(with_order(gossip.get(name, **values), order), malicious, rule)
    return with_momentum(algorithm, kind, factor) if plus else algorithm


def streams(algorithm: Any) -> bool:
    """Tell whether exchanges overlap, or are of fragments."""
    return bool(algorithm.listens and not algorithm.asynchronous) or param_of(algorithm, "fragments", 1) > 1


def param_of(algorithm: Any, name: str, default: float) -> float:
    """Return a parameter of an algorithm, of the scheme that it runs or of the algorithm inside
    a wrapper."""
    for part in (algorithm, getattr(algorithm, "scheme", None)):
        value = getattr(part, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    inner = getattr(algorithm, "algorithm", None)
    return default if inner is None else param_of(inner, name, default)
