"""Error bounds as the codecs' files state them, for the lines of the conformance list: plain
float64 numpy.

A *value bound* gives the largest |x' - x| of every value, float64[n]. A *norm bound* gives the
largest ||x' - x||_2 of every tensor, float64[tensors].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout
from edgegossip.types import Vec

Bound = Callable[[Vec, Layout], NDArray[np.float64]]

ROUNDING = 2.0**-20  # relative: what a few roundings of float32 in a row may add
TINY = 2.0**-149
LARGEST_SHORT = (2 - 2.0**-8) * 2.0**127


def tensors(x: Vec, layout: Layout) -> Iterator[NDArray[np.float64]]:
    """Every tensor's values, flat, in float64."""
    o = layout.offsets
    return (x[o[k] : o[k + 1]].astype(np.float64) for k in range(len(layout.tensors)))


def exact(x: Vec, layout: Layout) -> NDArray[np.float64]:
    return np.zeros(x.size)


def nearest_binary16(x: Vec, layout: Layout) -> NDArray[np.float64]:
    size = np.abs(x.astype(np.float64))
    return np.maximum(np.maximum(size * 2.0**-11, 2.0**-25), size - 65504.0)


def nearest_bfloat16(x: Vec, layout: Layout) -> NDArray[np.float64]:
    return np.maximum(np.abs(x.astype(np.float64)) * 2.0**-8, 2.0**-134)


def half_a_step(x: Vec, layout: Layout) -> NDArray[np.float64]:
    """minmax8."""
    bound = np.abs(x.astype(np.float64)) * 2.0**-23 + 2.0**-149
    for k in range(len(layout.tensors)):
        part = slice(layout.offsets[k], layout.offsets[k + 1])
        if x[part].size:
            bound[part] += 0.52 * (float(x[part].max()) - float(x[part].min())) / 255
    return bound


def half_a_common_step(error: float) -> Bound:
    """dither: half of the step that gives this relative error, at least 2^-22 of the largest
    value."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        size = np.abs(x.astype(np.float64))
        step = error * np.sqrt(12 * np.mean(size**2)) if x.size else 0.0
        least = max(size.max(initial=0) / 2.0**21, 2.0**-126 if size.any() else 0.0)
        return 0.5 * max(step, least) * (1 + ROUNDING) + size * 2.0**-22 + TINY

    return bound


def either(*bounds: Bound) -> Bound:
    """The larger of several bounds, value by value."""
    return lambda x, layout: np.maximum.reduce([bound(x, layout) for bound in bounds])


def dropped(ratio: float) -> Bound:
    """topk: 0 where |x| is above the k-th largest magnitude of its tensor, |x| elsewhere."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        parts = []
        for t in tensors(x, layout):
            size = np.abs(t)
            k = min(t.size, max(1, int(np.ceil(t.size * ratio * (1 - 1e-12)))))
            parts.append(np.where(size > np.sort(size)[-k], 0.0, size) if k < t.size else np.zeros(t.size))
        return np.concatenate(parts)

    return bound


def scaled_by_n_over_k(ratio: float) -> Bound:
    """randk: x' is 0 or x n / k, held within float32."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        parts = []
        for t in tensors(x, layout):
            k = min(t.size, max(1, int(np.ceil(t.size * ratio * (1 - 1e-12)))))
            all_sent = k == t.size
            parts.append(
                np.zeros(t.size) if all_sent else np.abs(t) * max(1.0, t.size / k - 1) * (1 + 2 * ROUNDING) + TINY
            )
        return np.concatenate(parts)

    return bound


def own_size(x: Vec, layout: Layout) -> NDArray[np.float64]:
    """|x' - x| <= |x|: x' lies between 0 and 2 x."""
    return np.abs(x.astype(np.float64)) * (1 + ROUNDING) + TINY


def own_size_times(factor: float) -> Bound:
    """|x' - x| <= factor |x|."""
    return lambda x, layout: factor * own_size(x, layout)


def own_norm(x: Vec, layout: Layout) -> NDArray[np.float64]:
    """||x' - x|| <= ||x|| in every tensor: a projection, a selection."""
    return own_norm_times(1.0)(x, layout)


def own_norm_times(factor: float) -> Bound:
    """||x' - x|| <= factor ||x|| in every tensor."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        norms = [np.sqrt((t * t).sum()) * factor * (1 + ROUNDING) + TINY * np.sqrt(t.size) for t in tensors(x, layout)]
        return np.array(norms)

    return bound


def a_rotation_and(share: float) -> Bound:
    """eden: nearly twice the share of a tensor's norm that is lost on average, more than any of the
    vectors here loses; and what its scale is rounded by."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        return np.array([share * np.sqrt((t * t).sum()) + 16 * TINY * np.sqrt(t.size) for t in tensors(x, layout)])

    return bound


def share_of_bucket_norm(share: float, bucket: int, norm: float) -> Bound:
    """|x' - x| <= share * N, N the norm (2 or infinity) of the value's bucket, rounded up to 8 bits
    of mantissa, at most the largest such number; bucket 0 is the whole tensor, its norm a float32.

    For levels 0 .. 1 share is the widest gap between two of them: a value lies between two levels
    and goes to one.
    """

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        parts = []
        for t in tensors(x, layout):
            width = bucket or max(t.size, 1)
            for start in range(0, t.size, width):
                v = t[start : start + width]
                size = min(float(np.linalg.norm(v, norm)), float(np.finfo(np.float32).max))
                sent = min(size * (1 + 2.0**-8) + 2.0**-134, LARGEST_SHORT) if bucket else size
                clipped = np.maximum(np.abs(v) - sent, 0)
                parts.append(share * sent + ROUNDING * sent + TINY + clipped)
        return np.concatenate(parts) if parts else np.zeros(0)

    return bound
