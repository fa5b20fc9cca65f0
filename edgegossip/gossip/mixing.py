"""The sum of a round: what neighbours' models add to a node's own, gathered message by message.

A neighbour that is missing is simply not in the sum, which leaves its weight with the node itself: the row of W still
sums to 1. Differences x_j - x_i are summed rather than models, so float32 rounding is relative to the nodes' distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgegossip.gossip import edges
from edgegossip.gossip.base import NodeView
from edgegossip.quick import quick
from edgegossip.types import Vec


@quick
@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """sum_j W_ij (xhat_j - x_i) over the senders so far. Immutable: `add` leaves the old sum as it was."""

    count: int = 0  # messages summed
    weight: float = 0.0  # sum of their W_ij
    squares: float = 0.0  # sum of ||xhat_j - x_i||^2
    total: Vec | None = None  # float32[n]; None: zero

    def add(self, view: NodeView, sender: int, body: bytes | memoryview, weight: float, x: Vec) -> Gathered:
        """With one more message. Raises DecodeError on a bad body, PeerError when the values are too large to
        average."""
        part = view.codec.decode(body, view.layout, out=np.empty(view.layout.size, np.float32))
        edges.squared_norm(view.members[sender], part, x)
        part -= x
        squares = float(part.dot(part))
        part *= np.float32(weight)
        if self.total is not None:
            part += self.total
        return Gathered(self.count + 1, self.weight + weight, self.squares + squares, part)

    @property
    def distance(self) -> float:
        """Root mean square of ||xhat_j - x_i||_2; nan without any."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan
