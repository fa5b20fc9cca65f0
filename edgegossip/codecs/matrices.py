"""What the low-rank codecs share: tensors as matrices, and the layout's plan of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgegossip.layout import Layout
from edgegossip.types import DecodeError

MAX_RANK = 64


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A non-empty tensor of a layout as the matrix [first dimension, all others], or as it is (rows
    = 0)."""

    index: int  # in the layout
    start: int  # of its values in the vector
    size: int
    rows: int
    cols: int

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + self.size)


def unfolded(layout: Layout, rank: int) -> Iterator[Unfolded]:
    """Every non-empty tensor. A matrix is one of two or more dimensions with rank * (rows + cols) <
    rows * cols."""
    for k, tensor in enumerate(layout.tensors):
        if tensor.size == 0:
            continue
        rows, cols = (tensor.shape[0], math.prod(tensor.shape[1:])) if len(tensor.shape) > 1 else (0, 0)
        if rank * (rows + cols) >= rows * cols:
            rows = cols = 0
        yield Unfolded(k, int(layout.offsets[k]), tensor.size, rows, cols)


def rank_from_wire(rank: int, name: str) -> int:
    """Raises DecodeError unless it is one that `get` accepts."""
    if not 1 <= rank <= MAX_RANK:
        raise DecodeError(f"the {name} parameters name rank {rank}; ranks are 1 to {MAX_RANK}")
    return rank
