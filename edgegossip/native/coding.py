"""Sections: one quantised tensor as bytes, with its scales and entropy coded. The same bytes on every instruction set and
for any number of threads.

A section is quantised and coded block by block (65536 values), from a scratch that stays in a core's cache; how it is
coded is decided from all codes of a small tensor and from a fixed sample of a large one. docs/wire-format.md has every
byte. Sections of stage zstd are not made or read here.
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

NO_TABLES = np.empty(0, np.uint8)
_CHOICES: Mapping[str, int] = {"raw": 0, "huffman": 1, "elias": 2, "auto": 3}
_NO_SCALES = np.empty(0, np.float32)

FAULTS: Mapping[int, str] = {
    -2: "it ends early",
    -3: "its stage does not exist or is not possible for this codec",
    -4: "a scale is not finite, below zero, or has values beyond float32",
    -5: "its code table is not a complete code of this codec's symbols",
    -6: "a stream of codes ends early or late, or leaves the tensor",
    -7: "a code is none of this codec's",
    -8: "unused bits are set",
}


def new_state() -> bytearray:
    """What sections of one body share: the last code tables. `encode` and `decode` read and write it, in the order of the
    sections."""
    return bytearray(_native.CODING_STATE_BYTES)


def bound(n: int, quantiser: Quantiser, choice: Choice) -> int:
    """Bytes that `out` of `encode` must have for a tensor of n values."""
    return _native.coding_bound(quantiser.spec, n, _CHOICES[choice])


def encode(
    quantiser: Quantiser,
    x: Vec,
    key: int,
    choice: Choice,
    state: WriteBuffer,
    out: WriteBuffer,
    *,
    scales: Vec | None = None,
    linf: bool = False,
    tables: NDArray[np.uint8] = NO_TABLES,
    preferred: int = -1,
    threads: int | None = None,
    isa: str | None = None,
) -> int:
    """Write the section of a tensor x, float32[n], n > 0, with this tensor's key to the start of `out`, uint8.

    Without `scales` (float32, one a bucket) they are the buckets' L2 or L-infinity norms. "huffman" is the smallest of
    Huffman coded symbols, Huffman coded runs of zeros and raw codes, "auto" of these and Elias codes. `tables` has rows of
    2^bits weights, from which both ends make the same Huffman codes; `preferred` is the row that is considered, or -1.

    Returns its size in bytes, or -1 when x is not finite. With scales given x is not looked at for that.
    """
    given = None if scales is None else scales
    return _native.coding_encode(
        quantiser.spec,
        x,
        key,
        _CHOICES[choice],
        linf if given is None else None,
        _NO_SCALES if given is None else given,
        tables,
        preferred,
        state,
        out,
        threads,
        isa,
    )


def decode(
    quantiser: Quantiser,
    body: bytes | memoryview | NDArray[np.uint8],
    position: int,
    n: int,
    state: WriteBuffer,
    out: Vec | None,
    weight: float | None = None,
    *,
    tables: NDArray[np.uint8] = NO_TABLES,
    threads: int | None = None,
    isa: str | None = None,
) -> int:
    """Decode the section that starts at `position` of uint8 `body`: out = values, or out += weight * values, float32[n].
    Without `out` it is only checked, and ends as it would otherwise; a section that is to be added must have been checked.

    Returns the position after it, or a key of FAULTS. Reads nothing outside the body; finite whatever it holds.
    """
    return _native.coding_decode(quantiser.spec, body, position, n, tables, state, out, weight, threads, isa)
