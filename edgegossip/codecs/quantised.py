"""Bodies of the quantised codecs: one section a tensor, made and read by native.coding.

A section is a stage byte, scales, and codes of a few bits a value: as they are (`raw`), Huffman coded in pairs and runs
(`huffman`), Elias coded (`elias`), or as a zstd frame of the raw codes (`zstd`); `auto` takes the smallest for each tensor.
docs/wire-format.md has every byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs import zstd_section
from edgegossip.codecs.base import Body
from edgegossip.codecs.checks import nonfinite, require_finite, require_out
from edgegossip.codecs.keys import tensor_key
from edgegossip.codecs.registry import Param
from edgegossip.layout import Layout, TensorSpec
from edgegossip.native import coding
from edgegossip.native.quantise import Quantiser
from edgegossip.types import DecodeError, Vec

Stage: TypeAlias = Literal["raw", "huffman", "elias", "zstd", "auto"]
STAGE = Param(
    "stage",
    "auto",
    "entropy coding; auto: the smallest for each tensor",
    choices=("raw", "huffman", "elias", "zstd", "auto"),
)
BUCKET = Param(
    "bucket", 512, "values that share a norm: a power of two from 8 to 65536, or 0 for a tensor", low=0, high=65536
)


def bucket_error(bucket: int) -> str:
    """What is wrong with this bucket size; empty when nothing is."""
    if bucket == 0 or (8 <= bucket <= 65536 and bucket & (bucket - 1) == 0):
        return ""
    nearest = min((1 << k for k in range(3, 17)), key=lambda size: abs(size - bucket))
    return f"bucket = {bucket} is not a power of two from 8 to 65536, or 0; the nearest is {nearest}"


@dataclass(frozen=True, slots=True)
class Scale:
    """A tensor's scale, and the row of the codec's static code tables that suits it (-1: none)."""

    value: float
    table: int = -1


def encode_body(
    x: Vec,
    layout: Layout,
    quantiser: Quantiser,
    key: int,
    stage: Stage,
    *,
    linf: bool = False,
    scale_of: Callable[[Vec], Scale] | None = None,
    tables: NDArray[np.uint8] = coding.NO_TABLES,
    head: bytes = b"",
) -> Body:
    """`head` and a section for every tensor of float32[layout.size] that has values.

    Scales are the buckets' L2 or L-infinity norms, or what `scale_of` says of a tensor. Raises LocalError that names the
    tensor when x is not finite.
    """
    layout.check(x)
    if scale_of is not None:
        require_finite(x, layout)
    choice: coding.Choice = "raw" if stage == "zstd" else stage
    sizes = [coding.bound(t.size, quantiser, choice) for t in layout.tensors]
    out = np.empty(len(head) + sum(sizes), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    at, state = len(head), coding.new_state()
    for k, tensor in enumerate(layout.tensors):
        if not tensor.size:
            continue
        values, own, room = x[layout.offsets[k] : layout.offsets[k + 1]], tensor_key(key, k), out[at:]
        scale = None if scale_of is None else scale_of(values)
        scales = None if scale is None else np.array([scale.value], np.float32)
        row = -1 if scale is None else scale.table
        before = state.copy()
        size = coding.encode(
            quantiser, values, own, choice, state, room, scales=scales, linf=linf, tables=tables, preferred=row
        )
        if size < 0:
            raise nonfinite(layout, k)
        if stage in ("zstd", "auto"):
            size = zstd_section.shorten(values, quantiser, own, room, size, stage == "zstd")
            if room[0] == zstd_section.STAGE:
                state = before  # the code table of the section that was replaced never travels
        at += size
    return out[:at].data.toreadonly()


def decode_body(
    body: Body,
    layout: Layout,
    quantiser: Quantiser,
    name: str,
    out: Vec | None,
    weight: float | None,
    *,
    tables: NDArray[np.uint8] = coding.NO_TABLES,
    start: int = 0,
) -> Vec:
    """Inverse of `encode_body`, whose head ends at `start`; as `Codec.decode` says."""
    require_out(layout, out, weight)
    reader = _Reader(memoryview(body).cast("B"), layout, quantiser, name, tables, start)
    if weight is not None:  # nothing may be added before all is known to be good
        reader.read(None, None)
    values = np.empty(layout.size, np.float32) if out is None else out
    reader.read(values, weight)
    return values


@dataclass(frozen=True, slots=True)
class _Reader:
    """The sections of a body."""

    data: memoryview
    layout: Layout
    quantiser: Quantiser
    name: str
    tables: NDArray[np.uint8]
    start: int

    def read(self, values: Vec | None, weight: float | None) -> None:
        """Decode all of them into float32[n], or only check them. Raises DecodeError."""
        at, state, o = self.start, coding.new_state(), self.layout.offsets
        for k, tensor in enumerate(self.layout.tensors):
            if tensor.size:
                out = None if values is None else values[o[k] : o[k + 1]]
                at = self._section(at, tensor, state, out, weight)
        if at != len(self.data):
            extra = len(self.data) - at
            raise DecodeError(f"the {self.name} body is followed by {extra} bytes that do not belong to it")

    def _section(self, at: int, tensor: TensorSpec, state: bytearray, out: Vec | None, weight: float | None) -> int:
        """Where the section at `at` ends."""
        of = f"the {self.name} section of tensor {tensor.name}"
        if at < len(self.data) and self.data[at] == zstd_section.STAGE:
            return zstd_section.decode(self.data, at, self.quantiser, tensor.size, out, weight, of)
        end = coding.decode(self.quantiser, self.data, at, tensor.size, state, out, weight, tables=self.tables)
        if end < 0:
            raise DecodeError(f"{of} is invalid: {coding.FAULTS[end]}")
        return end
