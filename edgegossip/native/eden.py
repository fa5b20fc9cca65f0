"""EDEN's bodies (Vargaftik et al. 2022): a float32 tensor in blocks that are rotated at random and
rounded to the Lloyd-Max levels of a normal law, 1 to 4 bits a value.

`offsets`, int64[tensors + 1], divides n values into tensors; `keys` has a 64-bit key for each of
them, from which the signs of the rotations are drawn. docs/wire-format.md ("EDEN") has every byte.
`isa` and `threads` as in `edgegossip.native`; the bytes depend on neither. Errors as there, and
ValueError for other bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgegossip.native import _native
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import ReadBuffer, WriteBuffer


def size(offsets: ReadBuffer, n: int, bits: int) -> int:
    """Return how many bytes the body of n values has."""
    return _native.eden_bytes(offsets, n, bits)


def encode(
    x: Vec,
    offsets: ReadBuffer,
    keys: list[int],
    bits: int,
    out: WriteBuffer,
    isa: str | None = None,
    threads: int | None = None,
) -> int:
    """Write x, float32[n], into `out`, uint8[size(offsets, n, bits)].

    Returns -1, or the index of the first tensor that is not finite; `out` then holds nothing of
    use.
    """
    return _native.eden_encode(x, offsets, keys, bits, out, isa, threads)


def fault(body: ReadBuffer, offsets: ReadBuffer, n: int, bits: int) -> int:
    """Return -1, or the index of the first tensor with a scale that is negative or not finite."""
    return _native.eden_fault(body, offsets, n, bits)


def decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    keys: list[int],
    bits: int,
    out: Vec,
    weight: float | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> int:
    """Compute out = values of the body, or out += weight * values; both roundings to float32 as in
    `minmax8_decode`. Any body without fault gives finite values.

    Returns -1, or what `fault` does; `out` is then untouched.
    """
    return _native.eden_decode(body, offsets, keys, bits, out, weight, isa, threads)
