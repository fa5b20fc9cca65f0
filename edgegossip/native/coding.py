"""Sections: one quantised tensor as bytes, with its scales and entropy coded. The same bytes on
every instruction set and for any number of threads.

A section is quantised and coded block by block (65536 values), from a scratch that stays in a
core's cache; how it is coded is decided from all codes of a small tensor and from a fixed sample of
a large one. docs/wire-format.md has every byte. Sections of the coder zstd are not made or read
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native
from edgegossip.native.quantise import Quantiser
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import WriteBuffer

Choice: TypeAlias = Literal["raw", "huffman", "elias", "auto"]

Offsets: TypeAlias = NDArray[np.int64]

NO_TABLES = np.empty(0, np.uint8)
NO_PREFERENCE = np.empty(0, np.int64)
_CHOICES: Mapping[str, int] = {"raw": 0, "huffman": 1, "elias": 2, "auto": 3}
_NO_SCALES = np.empty(0, np.float32)

FAULTS: Mapping[int, str] = {
    -2: "it ends early",
    -3: "its entropy coder does not exist or is not possible for this codec",
    -4: "a scale is not finite, below zero, or has values beyond float32",
    -5: "its code table is not a complete code of this codec's symbols",
    -6: "a stream of codes ends early or late, or leaves the tensor",
    -7: "a code is none of this codec's",
    -8: "unused bits are set",
}


def new_state() -> bytearray:
    """Return what sections of one body share: the last code tables. `encode_all` and `decode_all`
    read and write it, in the order of the sections."""
    return bytearray(_native.CODING_STATE_BYTES)


def bound_of(offsets: Offsets, quantiser: Quantiser, choice: Choice) -> int:
    """Return how many bytes `out` of `encode_all` must have for tensors at these offsets."""
    return _native.coding_bound(quantiser.spec, offsets, int(offsets[-1]), _CHOICES[choice])


def encode_all(
    quantiser: Quantiser,
    x: Vec,
    offsets: Offsets,
    keys: list[int],
    choice: Choice,
    state: WriteBuffer,
    out: WriteBuffer,
    *,
    scales: Vec | None = None,
    linf: bool = False,
    tables: NDArray[np.uint8] = NO_TABLES,
    preferred: Offsets = NO_PREFERENCE,
    threads: int | None = None,
    isa: str | None = None,
) -> int:
    """Write the sections of all tensors of x that have values, with the tensors' keys, to the start
    of `out`, uint8.

    Without `scales` (float32, one a bucket, tensor by tensor; of buckets they must be as `norms`
    gives them, with 8 bits of mantissa) they are the buckets' L2 or L-infinity norms. "huffman" is
    the smallest of Huffman coded symbols, Huffman coded runs of zeros and raw codes, "auto" of
    these and Elias codes. `tables` has rows of 2^bits weights, from which both ends make the same
    Huffman codes; `preferred`, int64[tensors] or empty, names the row that is considered for each,
    or -1.

    Returns their size in bytes, or -1 - k when tensor k is not finite. With scales given x is not
    looked at for that.
    """
    return _native.coding_encode(
        quantiser.spec,
        x,
        offsets,
        keys,
        _CHOICES[choice],
        linf if scales is None else None,
        _NO_SCALES if scales is None else scales,
        tables,
        preferred,
        state,
        out,
        threads,
        isa,
    )


def decode_all(
    quantiser: Quantiser,
    body: bytes | memoryview | NDArray[np.uint8],
    position: int,
    offsets: Offsets,
    tensor: int,
    state: WriteBuffer,
    out: Vec | None,
    weight: float | None = None,
    *,
    tables: NDArray[np.uint8] = NO_TABLES,
    threads: int | None = None,
    isa: str | None = None,
) -> tuple[int, int]:
    """Decode the sections from that of `tensor` on, which starts at `position` of uint8 `body`: out
    = values, or out += weight * values, float32[offsets[-1]]. Without `out` they are only checked,
    and end as they would otherwise; what is to be added must have been checked.

    Returns (tensors, position after the last section), or (k, position) before the section of
    tensor k when that is of the coder zstd, or (k, key of FAULTS) when it is invalid. Reads nothing
    outside the body; finite whatever it holds.
    """
    return _native.coding_decode(
        quantiser.spec,
        body,
        position,
        offsets,
        int(offsets[-1]),
        tensor,
        tables,
        state,
        out,
        weight,
        threads,
        isa,
    )
