"""Checks and the final write that all codecs share, so that every one of them refuses the same things in the same
words.

Vectors are walked in chunks that stay in a core's cache: no temporary here grows with the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout
from edgegossip.types import DecodeError, LocalError, Vec

_FLOAT32_MAX = float(np.finfo(np.float32).max)
CHUNK_VALUES = 1 << 15  # 128 KiB of float32, half of a small board's L2 cache


def chunks(size: int) -> Iterator[slice]:
    """Slices of at most CHUNK_VALUES that cover 0..size."""
    return (slice(start, min(start + CHUNK_VALUES, size)) for start in range(0, size, CHUNK_VALUES))


def all_finite(values: NDArray[np.floating]) -> bool:
    """True when no value is NaN or infinite. Minimum and maximum carry both and need no temporary mask."""
    with np.errstate(invalid="ignore"):
        return all(
            math.isfinite(values[part].min()) and math.isfinite(values[part].max()) for part in chunks(values.size)
        )


def require_finite(x: Vec, layout: Layout) -> None:
    """Raises LocalError that names the first tensor of float32[layout.size] with a NaN or an infinity."""
    if all_finite(x):
        return
    o = layout.offsets
    k = next(k for k in range(len(layout.tensors)) if not all_finite(x[o[k] : o[k + 1]]))
    raise nonfinite(layout, k)


def nonfinite(layout: Layout, tensor: int) -> LocalError:
    """The error for a NaN or an infinity in the tensor of this index."""
    return LocalError(
        f"tensor {layout.tensors[tensor].name} holds NaN or infinite values and cannot be sent; "
        "training has diverged (a lower learning rate is the usual remedy)"
    )


def require_input(x: Vec, layout: Layout) -> None:
    """What every encoder demands: a contiguous, finite float32[layout.size]. Raises LocalError."""
    layout.check(x)
    require_finite(x, layout)


def require_body_bytes(body: bytes | memoryview, expected: int, codec: str) -> memoryview:
    """The body as a flat view of bytes. Raises DecodeError unless it has exactly the expected size."""
    view = memoryview(body)
    if view.nbytes != expected:
        raise DecodeError(f"{codec} needs a body of {expected} bytes for this model, got {view.nbytes}")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def require_out(layout: Layout, out: Vec | None, weight: float | None) -> None:
    """What every decoder demands of its caller. Raises LocalError."""
    if out is None:
        if weight is not None:
            raise LocalError("a weight needs a vector `out` to add to")
        return
    layout.check(out)
    if not out.flags.writeable:
        raise LocalError("the vector `out` is read-only")
    if weight is not None and not abs(weight) <= _FLOAT32_MAX:
        raise LocalError(f"the weight must be a finite float32, got {weight}")


def write(part: Vec, out: Vec, weight: float | None) -> None:
    """out = part, or out += weight * part with the product rounded to float32 before it is added. `part` may be
    overwritten."""
    if weight is None:
        np.copyto(out, part)
        return
    with np.errstate(
        over="ignore", under="ignore", invalid="ignore"
    ):  # as in the kernels: the sum is the caller's matter
        np.multiply(part, np.float32(weight), out=part)
        np.add(out, part, out=out)
