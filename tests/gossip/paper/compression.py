"""The compression operator C of the references: the real codec, held to what really travelled.

The implementation computes in float32 in places, the references in float64. A codec decides between values (which ones to
send, up or down), and where a vector lies on the edge of such a decision, rounding tips it; from there on two trajectories
part by far more than 1e-6, and rightly so. So every body on the wire is compared, value by value, with what the codec makes
of the reference's own vector with the same key. Where they differ, the codec must make what was sent of the reference's
vector moved by `NEARBY` at most, and only then does the reference go on with the value that was sent. A wrong vector,
weight, key or memory fails this check in the round in which it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip.codecs.base import Ctx
from edgegossip.gossip import edges
from edgegossip.gossip.base import NodeView
from edgegossip.layout import Layout

SAME = 1e-6  # between decoded values; times the size of the vector
NEARBY = 2e-6  # how far rounding can have moved a vector; times its size
DRAWS = 64


@dataclass
class Compression:
    """C(round, node, v) -> float64[n]."""

    codec: Any
    layout: Layout
    view: NodeView  # of any node
    bodies: Mapping[tuple[int, int], bytes]
    asked: int = 0  # values compared
    tipped: list[tuple[int, int, int]] = field(default_factory=list)  # (round, node, value) on the edge of a decision

    def __call__(self, round: int, node: int, v: np.ndarray) -> np.ndarray:
        own = self._decoded(round, node, v)
        body = self.bodies.get((round, node))
        if body is None:  # nobody listened
            return own
        sent = self.codec.decode(body, self.layout).astype(np.float64)
        size = max(1.0, float(np.abs(v).max()))
        off = np.abs(sent - own) > SAME * size
        if off.any():
            self._explain(round, node, v, sent, off, size)
        self.asked += v.size
        return np.where(off, sent, own)

    def _explain(self, round: int, node: int, v: np.ndarray, sent: np.ndarray, off: np.ndarray, size: float) -> None:
        rng = np.random.default_rng([round, node])
        open_ = off.copy()
        for _ in range(DRAWS):
            near = v + NEARBY * size * rng.choice([-1.0, 1.0], v.size)
            open_ &= np.abs(sent - self._decoded(round, node, near)) > (SAME + NEARBY) * size
        assert not open_.any(), (
            f"round {round}, node {node}: what was sent is not what {self.codec.name} makes of this vector:\n"
            f"vector {v[open_]}\nsent   {sent[open_]}\nwanted {self._decoded(round, node, v)[open_]}"
        )
        self.tipped.extend((round, node, int(k)) for k in np.flatnonzero(off))

    def _decoded(self, round: int, node: int, v: np.ndarray) -> np.ndarray:
        ctx = Ctx(edges.key_of(self.view, node, round), round, loss=1.0, lr=0.1)
        body, _ = self.codec.encode(v.astype(np.float32), self.codec.init(self.layout), ctx)
        return np.asarray(self.codec.decode(body, self.layout), np.float64)
