"""Bodies of the quantised codecs: one section a tensor, made and read by native.coding.

A section is the number of an entropy coder, scales (16 bits a bucket, or a float32 a tensor), and
codes of a few bits a value: as they are (`raw`), Huffman coded in pairs and runs (`huffman`), Elias
coded (`elias`), or as a zstd frame of the raw codes (`zstd`); `auto` takes the smallest for each
tensor. docs/wire-format.md has every byte.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.codecs import zstd
from edgegossip.codecs.base import Body, Codec, S
from edgegossip.codecs.checks import nonfinite, require_out
from edgegossip.codecs.keys import tensor_keys
from edgegossip.codecs.registry import Param
from edgegossip.layout import Layout
from edgegossip.native import coding, quantise
from edgegossip.native.quantise import Moments, Quantiser
from edgegossip.types import DecodeError, Vec

EntropyCoder: TypeAlias = Literal["raw", "huffman", "elias", "zstd", "auto"]
CODER = Param(
    "stage",
    "auto",
    "entropy coding; auto: the smallest for each tensor",
    choices=("raw", "huffman", "elias", "zstd", "auto"),
)
BUCKET = Param(
    "bucket", 512, "values that share a norm: a power of two from 8 to 65536, or 0 for a tensor", low=0, high=65536
)


def bucket_error(bucket: int) -> str:
    """Return what is wrong with this bucket size; empty when nothing is."""
    if bucket == 0 or (8 <= bucket <= 65536 and bucket & (bucket - 1) == 0):
        return ""
    nearest = min((1 << k for k in range(3, 17)), key=lambda size: abs(size - bucket))
    return f"bucket = {bucket} is not a power of two from 8 to 65536, or 0; the nearest is {nearest}"


@dataclass(frozen=True, slots=True)
class Scale:
    """A tensor's scale, and the row of the codec's static code tables that suits it (-1: none)."""

    value: float
    table: int = -1


ScaleOf: TypeAlias = Callable[[Moments, int], Scale]  # of a tensor's moments and how many values it has


def encode_body(
    x: Vec,
    layout: Layout,
    quantiser: Quantiser,
    key: int,
    coder: EntropyCoder,
    *,
    linf: bool = False,
    scale_of: ScaleOf | None = None,
    tables: NDArray[np.uint8] = coding.NO_TABLES,
    head: bytes = b"",
) -> Body:
    """Return `head` and a section for every tensor of float32[layout.size] that has values.

    Scales are the buckets' L2 or L-infinity norms, or what `scale_of` says of a tensor. Raises
    UsageError that names the tensor when x is not finite.
    """
    layout.check(x)
    scales = None if scale_of is None else _scales(x, layout, scale_of)
    choice: coding.Choice = "raw" if coder == "zstd" else coder
    out = np.empty(len(head) + coding.bound_of(layout.offsets, quantiser, choice), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    writer = _Writer(x, layout, quantiser, linf, scales, tables, tensor_keys(key, len(layout.tensors)))
    room = out[len(head) :]
    size = writer.write_with_zstd(room, coder) if coder in ("zstd", "auto") else writer.write(room, choice)
    return out[: len(head) + size].data.toreadonly()


def _scales(x: Vec, layout: Layout, scale_of: ScaleOf) -> list[Scale]:
    """One a tensor; 0 where there are no values."""
    moments = quantise.moments_of(x, layout.offsets)
    if bad := next((k for k, m in enumerate(moments, 1) if not math.isfinite(m.largest)), 0):
        raise nonfinite(layout, bad - 1)
    return [scale_of(m, t.size) if t.size else Scale(0.0) for m, t in zip(moments, layout.tensors, strict=True)]


@dataclass(frozen=True, slots=True)
class _Writer:
    """The sections of a vector."""

    x: Vec
    layout: Layout
    quantiser: Quantiser
    linf: bool
    scales: list[Scale] | None
    tables: NDArray[np.uint8]
    keys: list[int]

    def write(self, out: NDArray[np.uint8], choice: coding.Choice) -> int:
        """All sections, none of them zstd; their size."""
        return self._sections(0, len(self.keys), out, choice, coding.new_state())

    def write_with_zstd(self, out: NDArray[np.uint8], coder: EntropyCoder) -> int:
        """All sections, each zstd where that is shorter; their size."""
        at, state, o = 0, coding.new_state(), self.layout.offsets
        for k, tensor in enumerate(self.layout.tensors):
            if not tensor.size:
                continue
            before, room = state.copy(), out[at:]
            size = self._sections(k, k + 1, room, "raw" if coder == "zstd" else "auto", state)
            values = self.x[o[k] : o[k + 1]]
            at += zstd.shorten(values, self.quantiser, self.keys[k], room, size, coder == "zstd")
            if room[0] == zstd.SECTION:
                state = before  # the code table of the section that was replaced never travels
        return at

    def _sections(self, first: int, last: int, out: NDArray[np.uint8], choice: coding.Choice, state: bytearray) -> int:
        """Sections of tensors first .. last; their size. Raises UsageError that names the tensor
        that is not finite."""
        start, end = self.layout.offsets[first], self.layout.offsets[last]
        given = None if self.scales is None else self.scales[first:last]
        size = coding.encode_all(
            self.quantiser,
            self.x[start:end],
            self.layout.offsets[first : last + 1] - start,
            self.keys[first:last],
            choice,
            state,
            out,
            scales=None if given is None else self._values(given, first),
            linf=self.linf,
            tables=self.tables,
            preferred=coding.NO_PREFERENCE if given is None else np.array([s.table for s in given], np.int64),
        )
        if size < 0:
            raise nonfinite(self.layout, first - 1 - size)
        return size

    def _values(self, scales: list[Scale], first: int) -> Vec:
        """The scales of tensors from `first` on that have values."""
        tensors = self.layout.tensors[first : first + len(scales)]
        return np.array([s.value for s, t in zip(scales, tensors, strict=True) if t.size], np.float32)


class QuantisedBodies(ABC, Codec[S]):
    """What all codecs of such bodies do with them; each says by `reader` how its own are read."""

    __slots__ = ()

    @abstractmethod
    def reader(self, body: Body, layout: Layout) -> Reader:
        """Return what reads a body from anywhere. Raises DecodeError where its head says that it is
        none."""

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        reader = self.reader(body, layout)
        if weight is not None:  # nothing may be added before all is known to be good
            reader.read(None, None)
        values = np.empty(layout.size, np.float32) if out is None else out
        reader.read(values, weight)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raise DecodeError unless it can be decoded; writes nothing."""
        self.reader(body, layout).read(None, None)

    def add_own(self, body: Body, layout: Layout, out: Vec, weight: float) -> None:
        """Compute out += weight * values, as `decode` does, of a body that `encode` just made: it
        is not checked before."""
        self.reader(body, layout).read(out, weight)


@dataclass(frozen=True, slots=True)
class Reader:
    """The sections of a body that `encode_body` made, whose head ends at `start`."""

    data: memoryview
    layout: Layout
    quantiser: Quantiser
    name: str
    tables: NDArray[np.uint8] = field(default_factory=lambda: coding.NO_TABLES)
    start: int = 0

    def read(self, values: Vec | None, weight: float | None) -> None:
        """Decode all of them into float32[n], or only check them. Raises DecodeError."""
        at, tensor, tensors = self.start, 0, self.layout.tensors
        o, state = self.layout.offsets, coding.new_state()
        while True:
            tensor, at = coding.decode_all(
                self.quantiser, self.data, at, o, tensor, state, values, weight, tables=self.tables
            )
            if at < 0:
                raise DecodeError(f"{self._of(tensor)} is invalid: {coding.FAULTS[at]}")
            if tensor == len(tensors):
                break
            out = None if values is None else values[o[tensor] : o[tensor + 1]]
            size = tensors[tensor].size
            at = zstd.decode(self.data, at, self.quantiser, size, out, weight, self._of(tensor))
            tensor += 1
        if extra := len(self.data) - at:
            raise DecodeError(f"the {self.name} body is followed by {extra} bytes that do not belong to it")

    def _of(self, tensor: int) -> str:
        return f"the {self.name} section of tensor {self.layout.tensors[tensor].name}"
