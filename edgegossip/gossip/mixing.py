"""The sum of a round: what neighbours' models add to a node's own, gathered message by message.

A neighbour that is missing is simply not in the sum, which leaves its weight with the node itself: the row of W still
sums to 1. Differences x_j - x_i are summed rather than models, so float32 rounding is relative to the nodes' distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgegossip.gossip.base import NodeView
from edgegossip.types import PeerError, Vec


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """sum_j W_ij (xhat_j - x_i) over the senders so far. Immutable: `add` leaves the old sum as it was."""

    senders: frozenset[int] = frozenset()  # whose message is in, or was refused
    count: int = 0  # messages summed
    weight: float = 0.0  # sum of their W_ij
    squares: float = 0.0  # sum of ||xhat_j - x_i||^2
    total: Vec | None = None  # float32[n]; None: zero

    def add(self, view: NodeView, sender: int, body: bytes | memoryview, weight: float, x: Vec) -> Gathered:
        """With one more message. Raises DecodeError on a bad body, PeerError when the values are too large to
        average."""
        part = view.codec.decode(body, view.layout, out=np.empty(view.layout.size, np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            part -= x
            squares = float(np.dot(part, part))
        if not math.isfinite(squares):
            raise PeerError(f"{view.members[sender]} sent values that are too large to average")
        part *= np.float32(weight)
        if self.total is not None:
            part += self.total
        return Gathered(self.senders | {sender}, self.count + 1, self.weight + weight, self.squares + squares, part)

    def refuse(self, sender: int) -> Gathered:
        """Without this sender, and not to be waited for."""
        return Gathered(self.senders | {sender}, self.count, self.weight, self.squares, self.total)

    @property
    def distance(self) -> float:
        """Root mean square of ||xhat_j - x_i||_2; nan without any."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan


def coding_error(view: NodeView, body: bytes | memoryview, x: Vec) -> tuple[Vec, float]:
    """x - decode(body), float32[n], and its norm relative to that of x (0 when both vanish)."""
    error = view.codec.decode(body, view.layout, out=np.empty(view.layout.size, np.float32))
    np.subtract(x, error, out=error)
    lost, whole = math.sqrt(float(np.dot(error, error))), math.sqrt(float(np.dot(x, x)))
    return error, lost / whole if whole else (0.0 if lost == 0.0 else math.inf)
