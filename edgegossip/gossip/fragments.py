"""Cuts a model into groups of neighbouring layers, of which each round exchanges one, in turn
(Douillard et al., "Streaming DiLoCo with overlapping communication", 2025). With P of them a
round's messages are a P-th as large, and each value is exchanged every P rounds.

Groups are of whole tensors, in the layout's order, as equal in size as those allow: the largest is
as small as can be. A topology that changes from round to round, and repeats after T, would meet a
fragment in the same rounds for ever where P and T have a common factor: the turn then moves on by
one after each lcm(P, T) rounds, so that every fragment goes over every edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from edgegossip.layout import Layout
from edgegossip.types import ConfigError, Round, Vec


@dataclass(frozen=True, slots=True)
class Fragment:
    """Is a run of a model's tensors, or the whole model."""

    layout: Layout  # of these tensors alone
    size: int  # n, of the whole model
    start: int = 0
    index: int = 0

    @property
    def span(self) -> slice:
        """Where it lies in float32[n]."""
        return slice(self.start, self.start + self.layout.size)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the model."""
        return self.layout.size == self.size

    def of(self, vec: Vec) -> Vec:
        """Return its values of float32[n]: a view, or `vec` itself."""
        return vec if self.is_whole else vec[self.span]

    def within(self, part: Vec, rest: Vec) -> Vec:
        """Return float32[n] with its values from `part`, float32[layout.size], and all others as
        in `rest`: `part` itself where it is the whole model."""
        if self.is_whole:
            return part
        whole = rest.copy()
        whole[self.span] = part
        return whole


@dataclass(frozen=True, slots=True, eq=False)
class CodecState:
    """Holds what the codec keeps of one fragment."""

    layout: Layout
    state: Any


def turn(round: Round, count: int, period: int) -> int:
    """Return which of `count` fragments a round exchanges, over a topology with this period."""
    common = math.gcd(count, period)
    return (round + round // (count * period // common) % common) % count


def fragment_at(layout: Layout, count: int, period: int, round: Round) -> Fragment:
    """Return what a round exchanges; the whole model where `count` is 1."""
    return Fragment(layout, layout.size) if count == 1 else cut(layout, count)[turn(round, count, period)]


@lru_cache(maxsize=16)
def cut(layout: Layout, count: int) -> tuple[Fragment, ...]:
    """Return the fragments of a model. Raises ConfigError where it has fewer tensors with values.

    Example:
        [fragment.layout.size for fragment in cut(layout, 4)]
    """
    sizes = [t.size for t in layout.tensors]
    filled = sum(size > 0 for size in sizes)
    if filled < count:
        raise ConfigError(f"outer.fragments = {count} must be at most {filled}: the model has no more tensors to part")
    least, most = max(sizes), sum(sizes)
    while least < most:  # the smallest size that `count` groups can keep to
        middle = (least + most) // 2
        least, most = (least, middle) if len(_groups(sizes, middle, 1)) <= count else (middle + 1, most)
    edges = [*_groups(sizes, least, count), len(sizes)]
    found = []
    for k, (first, last) in enumerate(pairwise(edges)):
        part = Layout.of(layout.tensors[first:last])
        found.append(Fragment(part, layout.size, int(layout.offsets[first]), k))
    return tuple(found)


def _groups(sizes: Sequence[int], most: int, least_groups: int) -> list[int]:
    """Return where groups of at most `most` values begin, each as long as can be while enough
    tensors with values are left for `least_groups` of them."""
    starts, total, left = [0], 0, sum(size > 0 for size in sizes)
    for k, size in enumerate(sizes):
        full = total + size > most or left <= least_groups - len(starts)
        if size and total and full:
            starts.append(k)
            total = 0
        total += size
        left -= size > 0
    return starts
