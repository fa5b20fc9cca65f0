"""How large and how exact an encoding is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.checks import chunks
from edgegossip.layout import Layout
from edgegossip.types import UsageError, Vec


def relative_error(x: Vec, y: Vec) -> float:
    """||y - x||_2 / ||x||_2 in float64 of two float32[n]; 0 when both are zero, infinite when only x is."""
    if x.shape != y.shape or x.ndim != 1:
        raise UsageError(f"cannot compare vectors of shape {x.shape} and {y.shape}")
    error = norm = 0.0
    for part in chunks(x.size):
        a = x[part].astype(np.float64)
        d = y[part] - a
        error += _squares(d)
        norm += _squares(a)
    if norm == 0.0:
        return math.inf if error else 0.0
    return math.sqrt(error / norm)


def _squares(a: NDArray[np.float64]) -> float:
    """Sum of squares. Not by BLAS, whose threads spin for longer than a vector of this size
    takes."""
    return float(np.einsum("i,i->", a, a))


def bits_per_value(body: bytes | memoryview, layout: Layout) -> float:
    """Measured size of an encoded body, headers and scales included, in bits per value of the
    model; 0 for a model without values."""
    return 8 * memoryview(body).nbytes / layout.size if layout.size else 0.0
