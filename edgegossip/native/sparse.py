"""Sparse bodies: the k largest magnitudes of every tensor, or k drawn ones, and the momentum of
DGC.

`offsets` is int64[tensors + 1], `counts` int64[tensors]: how many values of each tensor are sent,
from 1 to all of them, 0 for an empty one (ValueError otherwise). `values` is the form in which they
travel, as in `edgegossip.native.half`. Selection is exact, and of equal magnitudes those with the
lower index come first, so the result is the same for any `isa` and `threads`. It costs one pass
over x where at most 1/16 of a tensor is sent, and four passes beyond that. The bytes are in
docs/wire-format.md.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native

Counts: TypeAlias = NDArray[np.int64]

FAULTS = ("", "ends too early or too late", "has an invalid head", "has invalid positions", "has values not finite")

capacity = _native.sparse_capacity
"""Return how many bytes of `out` that the encoders need: an upper bound of the body."""

topk_encode = _native.topk_encode
"""Write the counts[k] largest magnitudes of every tensor of x, float32[n], into `out`,
uint8[capacity(...)].

Where a value is sent, zero[i] = 0 and rest[i] -= what the receiver gets; both are float32[n],
and `rest` may be x. Returns the size of the body, or -1 - k when tensor k is not finite; what
was written is then of no use.
"""

topk_decode = _native.topk_decode
"""Compute out = value, or out += weight * value, float32[n]; what was not sent is zero and is
not added.

Returns (-1, 0), or the tensor at which the body is wrong (their number: behind the last one)
and the index of what is wrong in FAULTS. All is checked before anything is written. Nothing is
allocated.
"""

randk_encode = _native.randk_encode
"""Write counts[k] values of every tensor, at the positions that the 64-bit `seed` draws, into
`out`, uint8[capacity(...)]: times the tensor's n / counts[k] when `unbiased`, a magnitude
beyond the form's largest as that.

Returns the size of the body, or -1 - k when tensor k is not finite.
"""

randk_decode = _native.randk_decode
"""Do as `topk_decode` for what `randk_encode` writes. Takes at most 2 n bytes and 1 MiB of
memory for a while."""

sum_of_squares = _native.sum_of_squares
"""Return ||x||^2 of float32[n] in float64, summed in eight lanes; not finite exactly when x is
not."""

accumulate_momentum = _native.accumulate_momentum
"""Compute u_next = momentum u + factor g; v_next = v + u_next; all float32[n], each product and
sum rounded to float32, as `momentum` and `factor` are. u_next may be u and v_next v. Sums may
overflow."""
