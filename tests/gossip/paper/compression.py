"""The compression operator C of the references: the real codec, held to what really travelled.

The implementation computes in float32 in places, the references in float64. A codec decides between
values (which ones to send, up or down, how large a bucket's norm is), and where a vector lies on
the edge of such a decision, rounding tips it; from there on two trajectories part by far more than
1e-6, and rightly so. So every body on the wire is compared, value by value, with what the codec
makes of the reference's own vector with the same key. It must lie among what the codec makes of
vectors that are at most `NEARBY` away. A wrong vector, weight, key or memory fails this in the
round in which it happens.

Codecs that send values as they are (`exact`) have nothing else to decide than which: there a
reference goes on with its own values, and with one that was sent only where the decision tipped.
With a codec that rounds, it goes on with what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgegossip.codecs.base import Ctx
from edgegossip.codecs.keys import derive_key
from edgegossip.gossip import messages
from edgegossip.gossip.base import NodeView
from edgegossip.layout import Layout

SAME = 1e-6  # between decoded values; times the size of the vector
NEARBY = 2e-5  # how far rounding can have moved a vector, memory of what was not sent included; times its size
DRAWS = 30
EXACT = ("fp32", "topk")


@dataclass
class Compression:
    """C(round, node, v) -> float64[n]."""

    codec: Any
    layout: Layout
    view: NodeView  # of any node
    bodies: Mapping[tuple[int, ...], bytes]  # by (round, node), and of two bodies the second by (round, node, 1)
    asked: int = 0  # values compared
    tipped: int = 0  # of these, off by more than SAME: on the edge of a decision

    @property
    def exact(self) -> bool:
        return self.codec.name in EXACT and getattr(self.codec, "values", "fp32") == "fp32"

    def __call__(self, round: int, node: int, v: np.ndarray, part: int = 0) -> np.ndarray:
        key = messages.round_key(self.view.seed, node, round)
        if part:
            return self.checked(v, derive_key(key, part), self.bodies.get((round, node, part)), (round, node))
        return self.checked(v, key, self.bodies.get((round, node)), (round, node))

    def checked(self, v: np.ndarray, key: int, body: bytes | None, where: tuple[int, int]) -> np.ndarray:
        """C(v) with this key, held to the body that was sent, if anybody listened; `where`: (round,
        node)."""
        own = self._decoded(v, key, where[0])
        if body is None:
            return own
        sent = self.codec.decode(body, self.layout).astype(np.float64)
        size = max(1.0, float(np.abs(v).max()))
        off = np.abs(sent - own) > SAME * size
        if off.any():
            self._explain(v, key, sent, size, where)
        self.asked += v.size
        self.tipped += int(off.sum())
        return np.where(off, sent, own) if self.exact else sent

    def _explain(self, v: np.ndarray, key: int, sent: np.ndarray, size: float, where: tuple[int, int]) -> None:
        """Asserts that what was sent lies within what nearby vectors give: noise, and the whole
        vector larger or smaller."""
        rng = np.random.default_rng(where)
        moves = [*rng.uniform(-1.0, 1.0, (DRAWS, v.size)), *np.sign(rng.uniform(-1.0, 1.0, (DRAWS, v.size)))]
        moves += [sign * np.sign(v) for sign in (-1.0, 1.0)]
        near = np.stack([self._decoded(v + NEARBY * size * move, key, where[0]) for move in moves])
        low, high = near.min(axis=0) - SAME * size, near.max(axis=0) + SAME * size
        out = (sent < low) | (sent > high)
        assert not out.any(), (
            f"round {where[0]}, node {where[1]}: what was sent is not what {self.codec.name} makes of this vector:\n"
            f"vector {v[out]}\nsent   {sent[out]}\nleast  {low[out]}\nmost   {high[out]}"
        )

    def _decoded(self, v: np.ndarray, key: int, round: int) -> np.ndarray:
        ctx = Ctx(key, round, loss=1.0, lr=0.1)
        body, _ = self.codec.encode(v.astype(np.float32), self.codec.init(self.layout), ctx)
        return np.asarray(self.codec.decode(body, self.layout), np.float64)
