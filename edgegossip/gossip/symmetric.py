"""Mixing with symmetric weights: x_i <- x~_i + eta sum_j W_ij (p_j - p_i), p what the nodes made public.

The receiver weighs. A neighbour of whom there is no news is left out and its weight stays with the node itself: the row
still sums to 1. What i adds of the pair (i, j), j takes off, so the mean of the models moves by local updates only, except
in a round in which one of the two leaves the other out.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip.frame import Frame, Kind
from edgegossip.gossip import edges, kinds
from edgegossip.gossip.averaging import default_eta
from edgegossip.gossip.base import Audit, NodeView
from edgegossip.gossip.changed import changed
from edgegossip.gossip.here import Here
from edgegossip.gossip.later import Later
from edgegossip.gossip.mixing import Gathered
from edgegossip.gossip.publish import Publisher, moved
from edgegossip.gossip.scheme import Full, Published
from edgegossip.types import LocalUpdate, Round, Vec

_NONE: Mapping[tuple[int, int], Vec] = {}


@dataclass(frozen=True, eq=False)
class Mixing:
    """State of a symmetric scheme. Immutable; arrays in it are never written to once they are there."""

    x: Vec  # float32[n], the model at the start of the round
    memory: Any  # the publisher's
    start: Vec  # what replicas start from
    fingerprint: int  # of that
    eta: float
    base: Vec | None = None  # x~, from the local update until the round ends
    public: Vec | None = None  # p of this round
    past: Any = None  # what the local rule remembers
    gathered: Gathered = field(default_factory=Gathered)
    copies: Mapping[tuple[int, int], Vec] = field(default_factory=lambda: _NONE)  # p_j, where they are kept
    row: Mapping[int, float] = field(default_factory=dict)  # weights of the last round


Rule = Callable[[Mixing, LocalUpdate], tuple[Vec, Vec, Any]]  # -> what to publish, x~, what to remember


def before(m: Mixing, local: LocalUpdate) -> tuple[Vec, Vec, Any]:
    """The model is published as it was before the local update (D-PSGD)."""
    return m.x, m.x + local.delta, None


def after(m: Mixing, local: LocalUpdate) -> tuple[Vec, Vec, Any]:
    """The local update comes first: x~ = x - gamma g."""
    moved_ = m.x + local.delta
    return moved_, moved_, None


@dataclass(frozen=True, slots=True)
class Symmetric:
    """Implements `scheme.Scheme[Mixing]`."""

    name: str
    publisher: Publisher[Any]
    rule: Rule
    eta: float  # averaging rate, (0, 1]; 0: by how much the codec keeps
    suits: Callable[[str, NodeView], None]  # raises ConfigError for a topology that does not do
    keeps: bool = False  # whether news of earlier rounds may be used again
    zero_start: bool = False  # replicas start at zero rather than at the initial model

    kind: Kind = field(init=False)
    streams: bool = field(init=False)
    replicates: bool = field(init=False)
    parts: int = field(init=False)

    totals = False

    def __post_init__(self) -> None:
        replicates = self.publisher.replicates
        kind = kinds.DIFFERENCE if replicates else kinds.MODEL
        for name, value in (
            ("kind", kind),
            ("streams", replicates),
            ("replicates", replicates),
            ("parts", int(replicates)),
        ):
            object.__setattr__(self, name, value)

    def check(self, view: NodeView) -> None:
        self.suits(self.name, view)

    def init(self, x: Vec, here: Here) -> Mixing:
        x = x.copy()
        start = np.zeros_like(x) if self.zero_start else x
        eta = self.eta or default_eta(here.view.codec)
        return Mixing(x, self.publisher.init(start, here), start, zlib.crc32(start.tobytes()) + 1, eta)

    def fingerprint(self, m: Mixing) -> int:
        return m.fingerprint

    def publish(self, m: Mixing, local: LocalUpdate, here: Here, to: Sequence[int]) -> tuple[Mixing, Published]:
        v, base, past = self.rule(m, local)
        memory, said = self.publisher.publish(m.memory, v, local, here)
        m = changed(m, memory=memory, base=base, public=said.public, past=past)
        return m, Published(said.body, {}, said.relative_error)

    def take(self, m: Mixing, sender: int, frame: Frame, here: Here) -> Mixing:
        key, name = (sender, self._phase(here.view, frame.round)), here.name(sender)
        if self.publisher.replicates:
            copy = moved(m.copies.get(key, m.start), frame.body, here)
        elif self.keeps:
            copy = here.view.codec.decode(frame.body, here.view.layout)
        else:
            weight = here.around.weights[sender]
            return changed(m, gathered=m.gathered.add(here.view, sender, frame.body, weight, m.x))
        edges.squared_norm(name, copy, m.x)
        return changed(m, copies={**m.copies, key: copy})

    def mix(self, m: Mixing, here: Here, fresh: Sequence[int]) -> tuple[Mixing, float]:
        """x~ + eta sum_j W_ij (p_j - p_i) over the fresh neighbours j; root mean square of ||p_j - x_i||."""
        pull, distance = self.pull(m, here, fresh)
        return self.pulled(m, pull, here, fresh), distance

    def pull(self, m: Mixing, here: Here, fresh: Sequence[int]) -> tuple[Vec, float]:
        """eta sum_j W_ij (p_j - p_i), float32[n]; and the distance."""
        assert m.public is not None
        if self.publisher.replicates or self.keeps:
            total, distance = self._over_copies(m, m.public, here, fresh)
        else:
            total, distance = _gathered(m, m.public), m.gathered.distance
        total *= np.float32(m.eta)
        return total, distance

    def pulled(self, m: Mixing, pull: Vec, here: Here, fresh: Sequence[int]) -> Mixing:
        """The state at the end of the round."""
        assert m.base is not None
        weights = here.around.weights
        row = {j: weights[j] for j in fresh}
        row[here.index] = 1.0 - sum(row.values())
        return changed(self._clean(m), x=m.base + pull, row=row)

    def settle(self, m: Mixing, model: Vec | None, here: Here) -> Mixing:
        if model is None:
            return changed(self._clean(m), x=m.x if m.base is None else m.base)
        fingerprint = zlib.crc32(model.tobytes()) + 1  # what neighbours are taken to be at until they are heard of
        memory = self.publisher.reset(m.memory, model)
        return changed(self._clean(m), x=model, memory=memory, start=model, fingerprint=fingerprint, past=None)

    def public(self, m: Mixing, phase: int) -> Vec | None:
        return self.publisher.public(m.memory, phase)

    def full(self, m: Mixing, to: int, phase: int) -> Full:
        vec = self.public(m, phase)
        return Full([] if vec is None else [vec], {})

    def adopt(self, m: Mixing, sender: int, phase: int, full: Full, here: Here) -> Mixing:
        edges.squared_norm(here.name(sender), full.vectors[0], m.x)
        return changed(m, copies={**m.copies, (sender, phase): full.vectors[0]})

    def forget(self, m: Mixing, to: int, phase: int) -> Mixing:
        return m

    def model(self, m: Mixing) -> Vec:
        return m.x

    def audit(self, m: Mixing, here: Here) -> Audit:
        if not self.publisher.replicates:
            return Audit(row=m.row)
        phases = range(here.view.topology.period)
        public = Later(lambda: {r: (0, vec) for r in phases if (vec := self.public(m, r)) is not None})
        return Audit(public=public, replicas=Later(lambda: {key: (0, vec) for key, vec in m.copies.items()}), row=m.row)

    def _clean(self, m: Mixing) -> Mixing:
        return changed(m, base=None, public=None, gathered=Gathered())

    def _phase(self, view: NodeView, round: Round) -> int:
        """News that stands for itself is kept whatever the phase it came in."""
        return round % view.topology.period if self.publisher.replicates else 0

    def _over_copies(self, m: Mixing, public: Vec, here: Here, fresh: Sequence[int]) -> tuple[Vec, float]:
        total, squares = np.zeros(len(m.x), np.float32), 0.0
        copies, phase, weights = m.copies, self._phase(here.view, here.round), here.around.weights
        for j in fresh:
            copy = copies.get((j, phase), m.start)
            away = copy - m.x
            squares += float(away.dot(away))
            np.subtract(copy, public, out=away)
            away *= weights[j]
            total += away
        return total, math.sqrt(squares / len(fresh)) if fresh else math.nan


def _gathered(m: Mixing, public: Vec) -> Vec:
    """sum_j W_ij (p_j - p_i) from what was gathered relative to x: sum_j W_ij (p_j - x) + (sum_j W_ij) (x - p_i)."""
    total = m.x - public
    total *= np.float32(m.gathered.weight)
    if m.gathered.total is not None:
        total += m.gathered.total
    return total
