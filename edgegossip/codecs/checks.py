"""Checks and the final write that all codecs share, so that every one of them refuses the same
things in the same words; and how large and how exact an encoding is.

Where numpy works, vectors are walked in chunks that stay in a core's cache: no temporary here grows
with the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import native
from edgegossip.codecs.base import Body, Codec
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, UsageError, Vec

_FLOAT32_MAX = float(np.finfo(np.float32).max)
CHUNK_VALUES = 1 << 15  # 128 KiB of float32, half of a small board's L2 cache


def chunks(size: int) -> Iterator[slice]:
    """Yield slices of at most CHUNK_VALUES that cover 0..size."""
    return (slice(start, min(start + CHUNK_VALUES, size)) for start in range(0, size, CHUNK_VALUES))


def all_finite(values: Vec) -> bool:
    """Return whether no value of an aligned float32[n] is NaN or infinite."""
    # numpy calls an empty array aligned wherever it lies, the kernel does not.
    return values.size == 0 or native.first_nonfinite(values, np.array([0, values.size])) < 0


def require_finite(x: Vec, layout: Layout) -> None:
    """Raise UsageError that names the first tensor of float32[layout.size] with a NaN or an
    infinity."""
    if (bad := native.first_nonfinite(x, layout.offsets)) >= 0:
        raise nonfinite(layout, bad)


def nonfinite(layout: Layout, tensor: int) -> UsageError:
    """Return the error for a NaN or an infinity in the tensor of this index."""
    return UsageError(
        f"tensor {layout.tensors[tensor].name} holds NaN or infinite values and cannot be sent; training has diverged (a "
        "lower learning rate is the usual remedy), or the numbers are beyond float32"
    )


def require_input(x: Vec, layout: Layout) -> None:
    """Raise UsageError unless x is what every encoder demands: a contiguous, finite
    float32[layout.size]."""
    layout.check(x)
    require_finite(x, layout)


def flat(body: Body) -> memoryview:
    """Return the body as a view of bytes in one dimension."""
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def require_body_bytes(body: Body, expected: int, codec: str) -> memoryview:
    """Return `flat(body)`. Raises DecodeError unless it has exactly the expected size."""
    view = flat(body)
    if len(view) != expected:
        raise DecodeError(f"{codec} needs a body of {expected} bytes for this model, got {len(view)}")
    return view


def require_sound(codec: Codec[Any], body: Body, layout: Layout) -> None:
    """Raise the DecodeError that decoding would. By the codec's own `check`, which writes nothing,
    or where it has none by decoding into a vector that is thrown away."""
    check = getattr(codec, "check", None)
    if check is None:
        codec.decode(body, layout)
    else:
        check(body, layout)


def add_own(codec: Codec[Any], body: Body, layout: Layout, out: Vec, weight: float) -> None:
    """Do what `codec.decode(body, layout, out, weight)` does for a body that this codec just made,
    without checking it first where the codec can do without (`add_own`). Should such a body be bad
    all the same, `out` is of no use."""
    add = getattr(codec, "add_own", codec.decode)
    add(body, layout, out, weight)


def require_out(layout: Layout, out: Vec | None, weight: float | None, body: Body = b"") -> None:
    """Raise UsageError unless `out` is what every decoder demands of its caller: a vector to write
    to that the body is no part of."""
    if out is None:
        if weight is not None:
            raise UsageError("a weight needs a vector `out` to add to")
        return
    layout.check(out)
    if not out.flags.writeable:
        raise UsageError("the vector `out` is read-only")
    if len(view := flat(body)) and np.may_share_memory(np.frombuffer(view, np.uint8), out):
        raise UsageError("the vector `out` and the body share memory: decoding would change what it reads")
    if weight is not None and not abs(weight) <= _FLOAT32_MAX:
        raise UsageError(f"the weight must be a finite float32, got {weight}")


def write(values: NDArray[np.floating], out: Vec, weight: float | None) -> None:
    """Compute out = values, or out += weight * values with weight and the product rounded to
    float32 before the sum, as in the kernels. That sum may overflow; whether it does is the
    caller's matter."""
    if weight is None:
        np.copyto(out, values)
        return
    factor = np.float32(weight)
    scratch = np.empty(min(out.size, CHUNK_VALUES), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for part in chunks(out.size):
            product = np.multiply(values[part], factor, out=scratch[: part.stop - part.start])
            np.add(out[part], product, out=out[part])


def relative_error(x: Vec, y: Vec) -> float:
    """Return ||y - x||_2 / ||x||_2 in float64 of two float32[n]; 0 when both are zero, infinite
    when only x is.

    Raises UsageError on vectors of different sizes.
    """
    if x.shape != y.shape or x.ndim != 1:
        raise UsageError(f"cannot compare vectors of shape {x.shape} and {y.shape}")
    error = norm = 0.0
    for part in chunks(x.size):
        a = x[part].astype(np.float64)
        d = y[part] - a
        error += _sum_of_squares(d)
        norm += _sum_of_squares(a)
    if norm == 0.0:
        return math.inf if error else 0.0
    return math.sqrt(error / norm)


def _sum_of_squares(a: NDArray[np.float64]) -> float:
    """Sum of squares. Not by BLAS, whose threads spin for longer than a vector of this size
    takes."""
    return float(np.einsum("i,i->", a, a))


def bits_per_value(body: bytes | memoryview, layout: Layout) -> float:
    """Return the measured size of an encoded body, headers and scales included, in bits per value
    of the model; 0 for a model without values."""
    return 8 * memoryview(body).nbytes / layout.size if layout.size else 0.0
