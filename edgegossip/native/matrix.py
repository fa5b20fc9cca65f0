"""Low-rank arithmetic: spectral atoms of a matrix, steps of PowerSGD, and sums of outer products of
wire factors.

Matrices are float32[rows * cols], row after row. Sums are float64, each in one fixed order, without
fused operations or LAPACK: the same bits on every machine. Results are held within float32's finite
range. `isa` and errors as in `edgegossip.native`.

*Factors* of rank r on the wire: r columns of `rows` numbers (left), with form "fp16" r float32
scales, then r rows of `cols` numbers (right); the matrix is sum over k of left[k] (scale[k]
right[k])^T. uint8[factors_bytes(...)].
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native
from edgegossip.types import Vec

Form: TypeAlias = Literal["fp32", "fp16"]
Doubles: TypeAlias = NDArray[np.float64]


def factors_bytes(rows: int, cols: int, rank: int, form: Form) -> int:
    """Return the size of the factors of a matrix."""
    return rank * (rows + cols) * 4 if form == "fp32" else rank * (2 * (rows + cols) + 4)


factors_sound = _native.factors_sound
"""Return whether every number is finite and no scale negative."""

factors_product = _native.factors_product
"""Compute out = the matrix of sound factors, or out += weight * matrix. `out` is float32[rows *
cols]; needs 3 KiB a rank."""

power_step = _native.power_step
"""Take one power iteration of PowerSGD on m = x + decay * error (Vogels et al. 2019, Algorithm
1).

left = orthonormalised m start^T (modified Gram-Schmidt, twice; a column of which it leaves less
than 2^-40 is zero); right = left^T m, from left as it travels; `factors` receives both;
`residual` m less what a receiver decodes; `next`, float32[rank * cols] as `start`, right in
float32, or start's row where right's is zero, lest it stay zero for ever.
"""

corrected = _native.corrected
"""Compute out = x + decay * error, in float32."""


def spectral_basis(x: Vec, rows: int, cols: int, isa: str | None = None) -> tuple[Doubles, Doubles]:
    """Return an orthonormal basis of the shorter side, m = min(rows, cols), whose rows are the left
    (rows <= cols) or right singular vectors, in no order; and the singular values: float64[m, m]
    and float64[m].

    Householder reduction and implicit QL on the Gram matrix. The basis is orthonormal to rounding
    whatever the matrix; singular values, taken as norms of products with the matrix, are those of
    the basis. O(m^2 (m + max(rows, cols))).
    """
    side = min(rows, cols)
    basis, norms = np.empty(side * side), np.empty(side)
    _native.spectral_basis(x, rows, cols, basis, norms, isa)
    return basis.reshape(side, side), norms


spectral_atom = _native.spectral_atom
"""Compute out = x^T unit / divisor (rows <= cols) or x unit / divisor, float32[max(rows,
cols)]; 0 < divisor <= 1."""
