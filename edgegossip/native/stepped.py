"""Values in steps: the kernels behind dither and deadzone.

A vector float32[n] is divided by a step, that of all tensors or of each its own, and rounded to
integers, which are coded with models that follow their size from one block of 64 values to the
next. docs/wire-format.md has the bytes. With a `key` values are rounded with subtractive dither,
drawn from it and each value's index; without one (None) magnitudes are rounded down from 2/3 on,
and values of 1, 2, 3 or more steps become the mean of their cell. `step` is a finite float32, not
below 0, and no value may be beyond MOST_STEPS steps. `columns`, int64[tensors], says how many
values a row of each tensor has, 0 where there are no rows: where that pays, columns are sorted by
how loud they are before a row is cut into blocks. `eighths`, int8[tensors], is empty or says by how
many eighths of an octave each tensor's step is above `step`. `isa` and errors as in
`edgegossip.native`. All is the same on every instruction set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native
from edgegossip.types import Vec

if TYPE_CHECKING:
    from edgegossip.native._native import ReadBuffer

MOST_STEPS = 2**21
Eighths: TypeAlias = NDArray[np.int8]
ONE_STEP: Eighths = np.zeros(0, np.int8)  # eighths, where all tensors share the step


def bits(
    x: Vec,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    key: int | None,
    step: float,
    eighths: Eighths = ONE_STEP,
    isa: str | None = None,
) -> float:
    """Return about how many bits the integers of x, float32[n], take in a body."""
    return _native.steps_bits(x, offsets, columns, key, step, eighths.view(np.uint8), isa)


def error(
    x: Vec, offsets: ReadBuffer, columns: ReadBuffer, step: float, eighths: Eighths = ONE_STEP, isa: str | None = None
) -> float:
    """Return the sum of (value - x)^2 of x, float32[n], with a dead zone."""
    return _native.steps_error(x, offsets, columns, None, step, eighths.view(np.uint8), isa)


def encode(
    x: Vec,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    key: int | None,
    step: float,
    eighths: Eighths = ONE_STEP,
    isa: str | None = None,
) -> bytes:
    """Return the body of x, float32[n], whose values are finite."""
    return _native.steps_encode(x, offsets, columns, key, step, eighths.view(np.uint8), isa)


def decode(
    body: ReadBuffer,
    offsets: ReadBuffer,
    columns: ReadBuffer,
    dithered: bool,
    n: int,
    out: Vec | None = None,
    weight: float | None = None,
    isa: str | None = None,
) -> int:
    """Compute out = value or out += weight * value, float32[n]; without `out` only check the body.

    Returns 0, or a key of `coding.FAULTS`. A sum is then as it was. Memory is bounded by the
    values of a chunk of 2^20, whatever the body says: a byte each, 8 for those of two bytes, and
    tables of 16 KiB for every 1024 of them, at most 64.
    """
    return _native.steps_decode(body, offsets, columns, dithered, n, out, weight, isa)


def integers(
    body: ReadBuffer, offsets: ReadBuffer, columns: ReadBuffer, most: int, out: NDArray[np.int8], isa: str | None = None
) -> int:
    """Write the integers of a body without dither into `out`, int8[n]; of steps and means nothing
    counts.

    Returns 0, or a key of `coding.FAULTS`, also where one is beyond `most`, at most 127; `out` may
    then be half written. Memory is bounded as in `decode`.
    """
    return _native.steps_integers(body, offsets, columns, most, out.view(np.uint8), isa)
