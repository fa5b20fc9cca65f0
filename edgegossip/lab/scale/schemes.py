"""What `--schemes` names: how boards train together and what their updates travel in.

    sgd                     parallel SGD at full precision: everybody sends everybody its gradient
    4-bit-elastiquant       the same with this codec; any codec of the package
    choco-4-bit-elastiquant gossip on the recipe's graph (a ring unless it says otherwise) with this codec
    dpsgd                   the same at full precision
    server-co3              through a coordinator, with this codec up and down; server-sgd at full
                            precision

parallel SGD is the setting of ElastiQuant and QSGD (gossip/parallel.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgegossip import codecs, gossip
from edgegossip.choices import did_you_mean
from edgegossip.recipe import Recipe, with_settings
from edgegossip.types import ConfigError

DEFAULT = ("sgd", "8-bit-elastiquant", "4-bit-elastiquant", "e-elastiquant", "co3", "choco-4-bit-elastiquant")
PARALLEL = "parallel-sgd"
_SHORT = {"choco": "choco-sgd", "bagua": "bagua-lp"}
_GRAPH = "ring"


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    codec: str
    algorithm: str  # of gossip; "" through a coordinator

    @property
    def server(self) -> bool:
        return not self.algorithm

    def settings(self, recipe: Recipe) -> Mapping[str, Any]:
        """What it sets in a recipe. Parameters of the codec and of the algorithm stay when the
        recipe names the same one."""
        wanted: dict[str, Any] = {"codec.name": self.codec}
        if recipe.codec.name != self.codec:
            wanted["codec.params"] = {}
        if self.server:
            return {**wanted, "run.mode": "server", "server.downlink": self.codec, "server.weighting": "uniform"}
        wanted |= {"run.mode": "gossip", "gossip.algorithm": self.algorithm}
        if recipe.gossip.algorithm != self.algorithm:
            wanted["gossip.params"] = {}
        if self.algorithm == PARALLEL:
            return {**wanted, "gossip.topology": "complete", "gossip.topology_params": {}}
        if recipe.gossip.topology == "complete":
            return {**wanted, "gossip.topology": _GRAPH, "gossip.topology_params": {}}
        return wanted

    def of(self, recipe: Recipe, devices: int) -> Recipe:
        """The recipe for so many boards. Raises ConfigError."""
        return with_settings(recipe, {**self.settings(recipe), "run.nodes": devices})


def parse(names: str) -> tuple[Scheme, ...]:
    """`sgd,co3,...`, each once, in that order. Raises ConfigError."""
    found = tuple(parse_one(name) for name in dict.fromkeys(part.strip() for part in names.split(",")) if name)
    if not found:
        raise ConfigError(
            f"--schemes {names}: names none; say them with commas between, such as {','.join(DEFAULT[:2])}"
        )
    return found


def parse_one(name: str) -> Scheme:
    if name == "sgd":
        return Scheme(name, "fp32", PARALLEL)
    if name in codecs.names():
        return Scheme(name, name, PARALLEL)
    for head, algorithm in _algorithms().items():
        if name == head:
            return Scheme(name, "fp32", algorithm)
        codec = name.removeprefix(f"{head}-")
        if codec != name and codec in (*codecs.names(), "sgd"):
            return Scheme(name, "fp32" if codec == "sgd" else codec, algorithm)
    for head in _algorithms():
        if name.startswith(f"{head}-"):
            codec = name.removeprefix(f"{head}-")
            raise ConfigError(
                f"--schemes {name}: there is no codec {codec!r}{did_you_mean(codec, [*codecs.names(), 'sgd'])}"
            )
    known = ["sgd", *codecs.names(), *_algorithms()]
    raise ConfigError(
        f"--schemes: there is no {name!r}{did_you_mean(name, known)}: say sgd, a codec ({', '.join(codecs.names()[:4])}, ...), "
        f"or one of {', '.join(_algorithms())} and a codec, such as choco-4-bit-elastiquant"
    )


def _algorithms() -> dict[str, str]:
    """How a scheme's name may begin -> the algorithm; longer ones first."""
    own = {name: name for name in gossip.names()} | _SHORT | {"server": ""}
    return dict(sorted(own.items(), key=lambda item: -len(item[0])))
