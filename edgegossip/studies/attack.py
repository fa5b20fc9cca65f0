"""Boards of a study that lie: the last `attack.boards` of a run poison what it learns.

They know all: the honest boards' models and updates of the round, before they send. What they send
is encoded and framed as everybody's, so it is their numbers that lie and nothing else. With y_k =
x_k + delta_k what honest board k has after its local update, y and delta without an index the mean
over the honest boards, and s = `attack.scale`:

- sign-flip, s = 1: y - (1 + s) delta, a step of s updates backwards from where the honest began
- scaled: the same, s = 10
- ipm: the same, s = 0.5: shorter than what is honest, so that it hides, and yet the mean's inner
  product with where training leads becomes smaller (Xie, Koyejo, Gupta, "Fall of empires", 2019)
- claims: the same, s = 1, and says that it holds CLAIMED times the examples of the first honest
  board, which is below what a coordinator refuses outright (plausible.py)
- alie: y - s std(y_k), value by value, s = 1.5: as far as an honest board might be (Baruch, Baruch,
  Goldberg, "A little is enough", 2019, algorithm 1, with the 1.5 of its experiments. Its formula
  gives 0 for 2 attackers of 8, who cannot hide so.)
- label-flip: trains as everybody does, on labels c - 1 - label of c classes

All but the last are deaf: they stay where the attack has put them and mix nothing, in gossip; of a
run with a coordinator they send the way from its model. Accuracy is that of honest boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.gossip.base import Neighbours, Topology
from edgegossip.options import REQUIRED, filled, option
from edgegossip.recipe import Recipe
from edgegossip.studies.lanes import Lanes
from edgegossip.training.base import Workload
from edgegossip.training.data.base import Batch
from edgegossip.types import ConfigError, LocalUpdate, NodeId, Round, Vec

PREFIX = "attack."  # of the keys of a study's case that are no recipe's, as they come to `of` without it
_SCALES = {"sign-flip": 1.0, "scaled": 10.0, "ipm": 0.5, "claims": 1.0, "alie": 1.5, "label-flip": 1.0}
CLAIMED = 900


@dataclass(frozen=True, slots=True)
class Attack:
    """Says how many boards of a run lie, and how."""

    kind: str = option(REQUIRED, "what they do", choices=("none", *_SCALES))
    boards: int = option(1, "how many", low=1)
    scale: float = option(0.0, "how far they go; 0: as far as the kind does by itself", low=0.0, high=1e6)

    @classmethod
    def of(cls, settings: Mapping[str, Any], recipe: Recipe) -> Attack | None:
        """Read the keys attack.kind, attack.boards and attack.scale; None without, or for kind =
        none. Raises ConfigError."""
        asked = filled(cls, settings, PREFIX) if settings else None
        if asked is None or asked.kind == "none":
            return None
        if asked.boards >= recipe.run.nodes:
            most = recipe.run.nodes - 1
            raise ConfigError(f"attack.boards = {asked.boards}: one of the boards is honest; the nearest is {most}")
        return replace(asked, scale=asked.scale or _SCALES[asked.kind])


class AttackedBoards:
    """Trains the boards of a run, of whom the last ones may lie."""

    def __init__(self, workloads: Sequence[Workload], attack: Attack | None = None, lanes: Lanes | None = None) -> None:
        """`lanes`: those of the workloads. Raises ConfigError for labels that cannot be flipped."""
        self._workloads, self._attack, self._lanes = workloads, attack, lanes or Lanes()
        self.honest = len(workloads) - (attack.boards if attack else 0)
        self._begun: dict[int, Future[LocalUpdate]] = {}  # the boards' last
        self._trained: dict[int, tuple[Vec, Vec, LocalUpdate]] = {}  # y_k, delta_k of honest boards' last round
        if attack is not None and attack.kind == "label-flip":
            for workload in workloads[self.honest :]:
                _flip_labels(workload)

    def lies(self, board: int) -> bool:
        """Tell whether this board steers by what the honest ones did, after they did it."""
        return board >= self.honest and self._attack is not None and self._attack.kind != "label-flip"

    def take_share(self, board: int, share: float) -> float:
        """Have a board take this share of its steps; return the share that it takes."""
        return self._workloads[board].take_share(share)

    def local_update(self, board: int, x: Vec, round: Round, correction: Vec | None = None) -> Future[LocalUpdate]:
        """Begin what makes a board say that it learnt something from x; of a liar it is what leads
        it where the attack wants, by what the others have begun."""
        if self.lies(board):
            return Lanes().submit(board, self._lie, x)
        update = self._lanes.submit(
            board, self._train, board, (x, round) if correction is None else (x, round, correction)
        )
        self._begun[board] = update
        return update

    def _train(self, board: int, given: tuple[Any, ...]) -> LocalUpdate:
        update = self._workloads[board].local_update(*given)
        if self._attack is not None and board < self.honest:
            self._trained[board] = (given[0] + update.delta, update.delta.copy(), update)
        return update

    def _lie(self, x: Vec) -> LocalUpdate:
        assert self._attack is not None
        for update in self._begun.values():
            update.result()
        known = [self._trained[board] for board in sorted(self._trained)]
        after = np.stack([y for y, _, _ in known])
        if self._attack.kind == "alie":
            away = self._attack.scale * after.std(axis=0)
        else:
            away = (1.0 + self._attack.scale) * np.mean([delta for _, delta, _ in known], axis=0)
        target = (after.mean(axis=0) - away).astype(np.float32)
        honest = known[0][2]  # what it says of loss and rate is what an honest board says
        holds = honest.weight * (CLAIMED if self._attack.kind == "claims" else 1)
        return replace(honest, delta=target - x, holds=holds, consumable=False, metrics={}, stages_s={})


@dataclass(frozen=True, slots=True)
class Deaf(Topology):
    """Shows a board the topology of its run with weights by which it mixes nothing."""

    of: Topology

    @property
    @override
    def name(self) -> str:  # type: ignore[override]
        return self.of.name

    @property
    @override
    def n(self) -> int:  # type: ignore[override]
        return self.of.n

    @property
    @override
    def period(self) -> int:  # type: ignore[override]
        return self.of.period

    @override
    def neighbours(self, node: int, round: Round) -> Neighbours:
        edges = self.of.neighbours(node, round)
        return replace(edges, weights={**dict.fromkeys(edges.weights, 0.0), node: 1.0})

    @override
    def matrix(self, round: Round) -> NDArray[np.float64]:
        return self.of.matrix(round)

    @override
    def to_json(self, members: Sequence[NodeId]) -> dict[str, Any]:
        return self.of.to_json(members)

    @override
    def spectral_gap(self) -> float:
        return self.of.spectral_gap()


class _FlippedLabels:
    """Draws the batches of a loader with other labels."""

    def __init__(self, loader: Any, classes: int) -> None:
        self._loader, self._classes = loader, classes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def batch(self, step: int) -> Batch:
        inputs, targets = self._loader.batch(step)
        return Batch(inputs, None if targets is None else self._classes - 1 - targets)


def _flip_labels(workload: Any) -> None:
    """Have a workload of a recipe train on wrong labels. Raises ConfigError where examples have
    none."""
    if workload.about.target != "class":
        raise ConfigError("attack.kind = label-flip needs data with a class for each example")
    workload.loader = _FlippedLabels(workload.loader, workload.about.classes)
