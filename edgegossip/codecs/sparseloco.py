"""`sparseloco`: the largest values of every chunk, in 2 bits each (SparseLoCo, Sarfi et al. 2025).

Of each chunk of 4096 values of a tensor the k = max(1, ceil(ratio size)) largest magnitudes are
sent. A value is a sign and one of two magnitudes of its tensor: the mean of those that are at most
the mean of all that are sent, and the mean of the others. So ||x' - x|| <= ||x||; biased, for error
feedback around the changes of many local steps. The paper lets it decay by 0.95 a round and has no
other momentum between rounds.

Deviations. The paper sends a position in 12 bits beside the 2 of its value; here signs and
magnitudes are integers from -2 to 2 for the entropy code of `deadzone`, which takes less for both.
It cuts its 2-bit levels by a normal law's deviations around the mean; here by the mean magnitude,
which needs no law, and each level is a mean, as there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat, require_input, require_out, write
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.codecs.sparse import encode_topk
from edgegossip.codecs.stepped import DeadZone
from edgegossip.layout import Layout, TensorSpec
from edgegossip.native import coding, stepped
from edgegossip.types import DecodeError, Vec

_INTEGERS = DeadZone(step=1.0)  # whole numbers come out as they went in
_LARGE = 2  # the integer of the larger magnitude
_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class SparseLoCo(StatelessCodec):
    """The largest values of every chunk, each a sign and one of two magnitudes of its tensor.

    Body: the two as float32 for every tensor, then the integers as a body of `deadzone` with step
    1. Its state is the layout."""

    ratio: float = 1 / 64
    chunk: int = 4096

    name: ClassVar[str] = "sparseloco"
    wire_id: ClassVar[int] = 20

    def __post_init__(self) -> None:
        check_fields(self, self.name, _PARAMS)

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        require_input(x, state)
        integers, magnitudes = _in_two_bits(self._largest(x, state), state)
        body, _ = _INTEGERS.encode(integers, state, ctx)
        return magnitudes.astype("<f4").tobytes() + bytes(body), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        integers, magnitudes = self._integers(body, layout)
        values = np.empty(layout.size, np.float32) if out is None else out
        for piece, (low, high) in _pieces(magnitudes, layout):
            decoded = np.array([0, low, high, -high, -low], np.float32)[integers[piece]]
            write(decoded, values[piece], weight)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raise DecodeError unless it can be decoded; writes nothing."""
        self._integers(body, layout)

    def _largest(self, x: Vec, layout: Layout) -> Vec:
        """x where it is among the largest of its chunk, zero elsewhere."""
        rest = x.copy()
        encode_topk(x, _in_chunks(layout, self.chunk), self.ratio, "fp32", rest=rest)
        return x - rest

    def _integers(self, body: Body, layout: Layout) -> tuple[NDArray[np.int8], Vec]:
        """The integers, int8[n], and the magnitudes, float32[tensors, 2]. Raises DecodeError."""
        data, count = flat(body), 2 * len(layout.tensors)
        if len(data) < 4 * count:
            raise DecodeError(f"the {self.name} body ends within its magnitudes")
        magnitudes = np.frombuffer(data[: 4 * count], "<f4").astype(np.float32).reshape(-1, 2)
        if not (np.isfinite(magnitudes) & (magnitudes >= 0)).all():
            raise DecodeError(f"the {self.name} body has magnitudes that are no sizes")
        integers = np.empty(layout.size, np.int8)
        if fault := stepped.integers(data[4 * count :], layout.offsets, layout.columns, _LARGE, integers):
            raise DecodeError(f"the {self.name} body is invalid: {coding.FAULTS[fault]}")
        return integers, magnitudes


def _pieces(magnitudes: Vec, layout: Layout) -> Iterator[tuple[slice, Vec]]:
    """Slices of the values, few each, with the two magnitudes of their tensor."""
    for (begin, end), sizes in zip(itertools.pairwise(layout.offsets.tolist()), magnitudes, strict=True):
        for at in range(begin, end, _AT_ONCE):
            yield slice(at, min(at + _AT_ONCE, end)), sizes


def _in_two_bits(largest: Vec, layout: Layout) -> tuple[Vec, NDArray[np.float64]]:
    """Integers from -2 to 2, float32[n], and what 1 and 2 stand for: float64[tensors, 2]."""
    sent = np.flatnonzero(largest)
    tensor, tensors = _tensor_of(sent, layout), len(layout.tensors)
    sizes = np.abs(largest[sent].astype(np.float64))
    mean = _means(sizes, tensor, tensors)
    large = sizes > mean[tensor]
    magnitudes = _means(sizes, 2 * tensor + large, 2 * tensors).reshape(-1, 2)
    integers = np.zeros(layout.size, np.float32)
    integers[sent] = np.copysign(np.float32(1) + large, largest[sent])
    return integers, magnitudes


def _means(values: NDArray[np.float64], group: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
    """The mean of each group's values; 0 where it has none."""
    count = np.bincount(group, minlength=groups)
    return np.bincount(group, values, groups) / np.maximum(count, 1)


def _tensor_of(positions: NDArray[np.intp], layout: Layout) -> NDArray[np.intp]:
    return np.searchsorted(layout.offsets, positions, side="right") - 1


def _in_chunks(layout: Layout, chunk: int) -> Layout:
    """The same values as tensors of at most `chunk` each."""
    sizes = [min(chunk, t.size - at) for t in layout.tensors for at in range(0, t.size, chunk)]
    return Layout(tuple(TensorSpec(str(k), (size,)) for k, size in enumerate(sizes)))


_PARAMS = (
    Param("ratio", 1 / 64, "share of every chunk's values that is sent, at least one value", low=1e-9, high=1.0),
    Param("chunk", 4096, "values in a chunk", low=1, high=2**24),
)

FAMILIES = (
    Family(
        "sparseloco",
        SparseLoCo,
        "the largest values of every chunk in 2 bits each, for error feedback",
        _PARAMS,
        SparseLoCo.wire_id,
    ),
)
