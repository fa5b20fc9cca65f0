"""The cells of a scalability run: a scheme on so many boards. Each is a recipe of its own and
has a key by which it is resumed.

What `--schemes` names is how boards train together and what their updates travel in:

    sgd                      parallel SGD at full precision: everybody sends everybody its gradient
    4-bit-elastiquant        the same with this codec; any codec of the package
    choco-4-bit-elastiquant  gossip on the recipe's graph (a ring unless it says otherwise)
    dpsgd                    the same at full precision
    server-co3               through a coordinator, with this codec up and down; server-sgd at full
                             precision

Parallel SGD is the setting of ElastiQuant and QSGD (gossip/parallel.py)."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgegossip import codecs, gossip
from edgegossip import recipe as recipes
from edgegossip.choices import did_you_mean
from edgegossip.gossip.base import Says
from edgegossip.gossip.registry import having
from edgegossip.recipe import Recipe, with_settings
from edgegossip.types import ConfigError

DEFAULT_SCHEMES = ("sgd", "8-bit-elastiquant", "4-bit-elastiquant", "e-elastiquant", "co3", "choco-4-bit-elastiquant")
_GRAPH = "ring"
WARM_UP = 2  # rounds that are not counted: memory is allocated, connections come up, and time dilation is found
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class CellScheme:
    """Names an algorithm and a codec that go together."""

    name: str
    codec: str
    algorithm: str  # of gossip; "" through a coordinator

    @property
    def server(self) -> bool:
        """Tell whether it goes through a coordinator."""
        return not self.algorithm

    def settings(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return what it sets in a recipe. Parameters of the codec and of the algorithm stay
        when the recipe names the same one."""
        wanted: dict[str, Any] = {"codec.name": self.codec}
        if recipe.codec.name != self.codec:
            wanted["codec.params"] = {}
        if self.server:
            return {**wanted, "run.mode": "server", "server.downlink": self.codec, "server.weighting": "uniform"}
        wanted |= {"run.mode": "gossip", "gossip.algorithm": self.algorithm}
        if recipe.gossip.algorithm != self.algorithm:
            wanted["gossip.params"] = {}
        if gossip.get(self.algorithm).says is Says.UPDATES:  # everybody's have to reach everybody
            return {**wanted, "gossip.topology": "complete", "gossip.topology_params": {}}
        if recipe.gossip.topology == "complete":
            return {**wanted, "gossip.topology": _GRAPH, "gossip.topology_params": {}}
        return wanted

    def of(self, recipe: Recipe, devices: int) -> Recipe:
        """Return the recipe for so many boards. Raises ConfigError."""
        return with_settings(recipe, {**self.settings(recipe), "run.nodes": devices})


def parse_schemes(names: str) -> tuple[CellScheme, ...]:
    """Read `sgd,co3,...`, each once, in that order. Raises ConfigError."""
    found = tuple(parse_scheme(name) for name in dict.fromkeys(part.strip() for part in names.split(",")) if name)
    if not found:
        raise ConfigError(
            f"--schemes {names}: names none; say them with commas between, such as {','.join(DEFAULT_SCHEMES[:2])}"
        )
    return found


def parse_scheme(name: str) -> CellScheme:
    """Read the name of one scheme. Raises ConfigError, which says what is nearest."""
    if name in ("sgd", *codecs.names()):  # of updates that everybody adds up
        return CellScheme(name, "fp32" if name == "sgd" else name, having(lambda of: of.says is Says.UPDATES)[0])
    for head, algorithm in _algorithms().items():
        if name == head:
            return CellScheme(name, "fp32", algorithm)
        codec = name.removeprefix(f"{head}-")
        if codec != name and codec in (*codecs.names(), "sgd"):
            return CellScheme(name, "fp32" if codec == "sgd" else codec, algorithm)
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
    """How a scheme's name may begin -> the algorithm; longer ones first. The first word of one does
    where no other begins so."""
    first = Counter(name.partition("-")[0] for name in gossip.names())
    short = {word: name for name in gossip.names() if first[word := name.partition("-")[0]] == 1}
    own = {name: name for name in gossip.names()} | short | {"server": ""}
    return dict(sorted(own.items(), key=lambda item: -len(item[0])))


@dataclass(frozen=True, slots=True)
class Cell:
    """Is one scheme on so many boards. `recipe` has all rounds, the uncounted ones included;
    `epoch_rounds` is how many rounds an epoch has."""

    scheme: CellScheme
    devices: int
    on: str
    recipe: Recipe
    epoch_rounds: float
    how: Mapping[str, Any]  # whatever else decides the result, such as the rate of the link

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.scheme.name} on {self.devices}"

    @property
    def key(self) -> str:
        """Return 16 hex digits of all that decides the result."""
        text = json.dumps([recipes.canonical_toml(self.recipe), self.on, dict(self.how)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_devices(text: str) -> tuple[int, ...]:
    """Read `2,4,7,18`, each once, from few to many. Raises ConfigError."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--boards {text}: write counts with commas between them, such as 2,4,7,18") from None
    for count in counts:
        if not 2 <= count <= MOST_DEVICES:
            nearest = 2 if count < 2 else MOST_DEVICES
            raise ConfigError(f"--boards {count}: a run has 2 to {MOST_DEVICES} boards; the nearest is {nearest}")
    return tuple(counts)


def make_cells(
    base: Recipe,
    schemes: Sequence[CellScheme],
    devices: Sequence[int],
    on: str,
    how: Mapping[str, Any],
    examples: int,
    max_rounds: int,
) -> list[Cell]:
    """Make cells scheme by scheme, from few boards to many. `examples`: of an epoch;
    `max_rounds`: so many are counted at most, 0: the whole epoch. Raises ConfigError."""
    return [
        _cell(scheme.of(base, count), scheme, on, how, examples, max_rounds) for scheme in schemes for count in devices
    ]


def _cell(recipe: Recipe, scheme: CellScheme, on: str, how: Mapping[str, Any], examples: int, max_rounds: int) -> Cell:
    training = recipe.training
    epoch_rounds = examples / (recipe.run.nodes * training.batch_size * training.local_steps)
    counted = max(1, round(epoch_rounds))
    counted = min(counted, max_rounds) if max_rounds else counted
    wanted = {"run.rounds": counted + WARM_UP, "evaluation.every": counted + WARM_UP, "checkpoint.every": 0}
    recipe = with_settings(recipe, wanted)
    network = replace(recipe.network, grace_s=max(recipe.network.grace_s, 120.0), restarts=0)
    gossip = replace(recipe.gossip, deadline_s=max(recipe.gossip.deadline_s, 1800.0))
    server = replace(recipe.server, deadline_s=max(recipe.server.deadline_s, 1800.0))
    recipe = replace(recipe, network=network, gossip=gossip, server=server)
    if "boards" in how:  # the first ones are in it: one that is added later makes no other cell of this one
        how = {**how, "boards": how["boards"][: recipe.run.nodes]}
    return Cell(scheme, recipe.run.nodes, on, recipe, epoch_rounds, how)


class Backend(ABC):
    """Runs cells: a model, the boards of a fleet, or namespaces of one machine (lab/netns)."""

    @abstractmethod
    def check(self, cell: Cell) -> None:
        """Raise ConfigError, DataError or HostError when the cell cannot run here."""

    @abstractmethod
    def run(self, cell: Cell) -> dict[str, Any]:
        """Run a cell; return {"row": ..., "curve": ..., "marks": ...}.

        `row` is one of `summary`, without what compares it with others; the others are for plots.
        Raises EdgegossipError when the cell failed.
        """

    @abstractmethod
    def close(self, over: bool) -> None:
        """Let go of what is open; `over` tells that every cell had its turn."""
