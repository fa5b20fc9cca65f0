"""What mixing promises that bears liars (docs/gossip.md, "Boards that lie"): each of them pulls as
far as an honest neighbour may, and no further. So with up to `malicious` of them among those that a
board heard, a round takes its model no farther than

    eta sum_j W_ij max_k ||p_k - p_i||,   over the neighbours j heard and the honest ones k of them,

and nowhere where no more were heard than may lie. The distances are of what boards made public, as
they sent it: what the algorithm makes of distances is not looked at.

Not looked at are rounds in which boards hear of other things than what was made public in them:
with staleness, with exchanges that overlap or are of fragments, with `auto`, whose neighbours each
get another message, and bagua-lp's, which makes public what mixing led to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.frame import Frame, Kind
from edgegossip.gossip.base import Audit, GossipAlgorithm, NodeView, Topology
from edgegossip.types import Round
from lab.sim import naming

TOLERANCE = 1e-4  # of the bound, and of the largest value, for float32's rounding
KEPT = 64  # of what a node made public: so far ahead is nobody


class Bounds:
    """Watches mixing of one run."""

    def __init__(self, algorithm: GossipAlgorithm[Any], topology: Topology) -> None:
        self._topology, self._malicious = topology, int(naming.param_of(algorithm, "malicious", 0))
        self._eta = naming.param_of(algorithm, "eta", 0.0) or 1.0
        # By node, then by process and round: p, float[n].
        self._public: list[dict[tuple[int, Round], NDArray[np.floating]]] = [{} for _ in range(topology.n)]
        self._base: dict[int, tuple[int, Round, NDArray[np.float64]]] = {}  # by node: its model with the local update

    def sent(self, node: int, process: int, frame: Frame, view: NodeView) -> None:
        """Hear what a node meant to send: a model is what it makes public."""
        if frame.kind is Kind.MODEL and (process, frame.round) not in self._public[node]:
            self._keep(node, process, frame.round, view.codec.decode(frame.body, view.layout))

    def said(self, node: int, process: int, round: Round, audit: Audit) -> None:
        """Hear what a node that sends differences has made public by a round."""
        if said := audit.public.get(round % self._topology.period):
            self._keep(node, process, round, said[1])

    def _keep(self, node: int, process: int, round: Round, public: NDArray[np.floating]) -> None:
        known = self._public[node]
        known[process, round] = public
        if len(known) > KEPT:
            del known[next(iter(known))]

    def stepped(self, node: int, process: int, round: Round, base: NDArray[np.float64]) -> None:
        """Hear of a local update, which leads to the model `base`, float64[n]."""
        self._base[node] = process, round, base

    def fault(
        self, i: int, round: Round, model: NDArray[np.floating], heard: Collection[int], lied: Collection[int]
    ) -> str | None:
        """Say whether a round took the model of a node farther than it may: from those that it
        `heard`, of whom some may have lied."""
        process, of, base = self._base.get(i, (0, -1, np.zeros(0)))
        own, others = self._public[i].get((process, round)), [j for j in heard if j != i]
        honest = [j for j in others if j not in lied]
        if of != round or own is None or len(others) - len(honest) > self._malicious:
            return None
        farthest = 0.0
        for j in honest if len(others) > self._malicious else ():
            far = [float(np.linalg.norm(p - own)) for (_, r), p in self._public[j].items() if r >= round]
            farthest = max([farthest, *far])
        weights = self._topology.neighbours(i, round).weights
        most, way = self._eta * farthest * sum(weights[j] for j in others), float(np.linalg.norm(model - base))
        size = max(1.0, float(np.abs(base).max()), float(np.abs(own).max()))
        if way <= (1.0 + TOLERANCE) * most + TOLERANCE * size:
            return None
        return f"mixing moved the model by {way:.4g}; by its honest neighbours it may be {most:.4g}"
