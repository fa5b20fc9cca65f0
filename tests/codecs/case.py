"""A line of the conformance list: a codec with parameters, and what its file claims of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip.types import Vec
from tests.codecs.bounds import Bound


@dataclass(frozen=True)
class Memory:
    """What a codec with a memory owes: before(x, state) == decoded + after(next state), value by
    value in float64, to the rounding of float32.

    Error feedback with decay d has before = x + d e and after = e'.
    """

    before: Callable[[Vec, Any], NDArray[np.floating]]
    after: Callable[[Any], NDArray[np.floating]]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a codec's file states about it. Bounds hold for the first message, from the state that
    `init` gives."""

    bound: Bound | None = None  # per value
    norm_bound: Bound | None = None  # per tensor, in the L2 norm
    unbounded: str = ""  # why neither is given
    unbiased: bool = False  # E[decoded] = x over the keys
    random: bool = False  # another key gives other bytes
    uses: frozenset[str] = frozenset()  # which of ctx.round, ctx.loss, ctx.lr change the bytes
    memory: Memory | None = None


@dataclass(frozen=True)
class Case:
    """A codec with parameters."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    claims: Claims = Claims(unbounded="nothing is claimed")

    def codec(self) -> codecs.Codec[Any]:
        """One codec for all who ask: what it remembered of one message would show in the next."""
        return self._codec

    @functools.cached_property
    def _codec(self) -> codecs.Codec[Any]:
        return codecs.get(self.name, **self.params)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.params.items())])


def case(name: str, params: Mapping[str, Any] | None = None, /, **claims: Any) -> Case:
    """One line of the list: case("qsgd", {"bits": 4}, bound=..., unbiased=True, random=True)."""
    return Case(name, params or {}, Claims(**claims))
