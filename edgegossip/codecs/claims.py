"""What a codec states about itself, for `verify` to hold it to: is it unbiased, how large may its
variance be, how many bits do its symbols need.

A user's own codec states it in a method `claims(x, layout) -> Claims`. For the codecs here it
follows from their names and parameters. Wrappers that send another codec's bodies (attribute
`codec`) claim what that one does: claims are about the first message, when a memory is still empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgegossip.codecs.base import Codec
from edgegossip.codecs.checks import CHUNK_VALUES
from edgegossip.codecs.co3 import GRID, scale_for
from edgegossip.codecs.levels import (
    geometric_levels,
    require_levels,
    uniform_levels,
    variance_bound,
    worst_case_variance,
)
from edgegossip.codecs.sparse import counts
from edgegossip.layout import Layout
from edgegossip.types import Vec

ENTROPY_CODERS = ("huffman", "auto")
NORM_ROUNDING = 1 + 2.0**-8  # how much larger than a bucket's norm the one that travels is, at most
_MIDPOINTS = tuple((low + high) / 2 for low, high in itertools.pairwise(GRID))  # of CO3's magnitudes
ROUNDING = 2.0**-40  # of a squared norm: float32 arithmetic beside a bound that exact arithmetic reaches


@dataclass(frozen=True, slots=True)
class Claims:
    """None: nothing is claimed, and `verify` reports without a verdict.

    unbiased: E[decoded] = x over keys. variance: bound on E||decoded - x||^2 / ||x||^2 (of a biased
    codec: on the squared error). entropy_bits: what the symbols and scales of x need, in bits a
    value, when the codec means to come near that.
    """

    unbiased: bool | None = None
    variance: float | None = None
    entropy_bits: float | None = None


def claims_of(codec: Codec[Any], x: Vec, layout: Layout) -> Claims:
    """Return the claims of a codec for this float32[layout.size]; none for a codec that states
    nothing."""
    if callable(own := getattr(codec, "claims", None)):
        return _checked(own(x, layout))
    while hasattr(codec, "codec"):
        codec = codec.codec
    rule = _RULES.get(codec.name)
    return rule(codec, x, layout) if rule else Claims()


def _checked(stated: Any) -> Claims:
    """What a user's claims() returned. Raises TypeError or ValueError for what nothing can be held
    to."""
    if not isinstance(stated, Claims):
        raise TypeError(f"claims() must return edgegossip.codecs.claims.Claims, got {type(stated).__name__}")
    numbers = [value for value in (stated.variance, stated.entropy_bits) if value is not None]
    good = all(isinstance(n, Real) and not isinstance(n, bool) and 0 <= float(n) < math.inf for n in numbers)
    if not good or not isinstance(stated.unbiased, bool | np.bool_ | None):
        raise ValueError(f"{stated}: unbiased is True, False or None, the others are finite numbers from 0 or None")
    return stated


def _stochastic(levels: Any, codec: Any, x: Vec, layout: Layout, norm: Norm, bound: float | None = None) -> Claims:
    """Unbiased rounding to a list of levels of a bucket's norm."""
    bucket = getattr(codec, "bucket", 0)
    entropy = None
    if getattr(codec, "stage", None) in ENTROPY_CODERS:
        bits = 0.0
        for part in _parts(x, layout):
            bits += part.size * code_entropy(levels, part, bucket, norm)
            bits += 16 * -(-part.size // bucket) if bucket else 32 * (part.size > 0)
        entropy = bits / max(layout.size, 1)
    variance = worst_case_variance(levels, largest_bucket(layout, bucket)) if bound is None else bound
    return Claims(True, variance * (NORM_ROUNDING**2 if bucket else 1.0), entropy)


def largest_bucket(layout: Layout, bucket: int) -> int:
    """Return how many values are in the largest bucket of a layout; `bucket` 0: a bucket is a
    tensor."""
    largest = max((t.size for t in layout.tensors), default=1)
    return max(1, min(bucket, largest) if bucket else largest)


def _qsgd(codec: Any, x: Vec, layout: Layout) -> Claims:
    return _stochastic(uniform_levels(2 ** (codec.bits - 1) - 1), codec, x, layout, codec.norm)


def _elastiquant(codec: Any, x: Vec, layout: Layout) -> Claims:
    """Equation 2 for p = 1/2, section 3.6 for any other list."""
    if codec.levels:
        return _stochastic(codec.levels, codec, x, layout, codec.norm)
    s = 2 ** (codec.bits - 1) - 2
    if s == 0:  # 2 bits: 0 and 1
        return _stochastic((0.0, 1.0), codec, x, layout, codec.norm)
    bound = variance_bound(s, largest_bucket(layout, codec.bucket), codec.p)
    return _stochastic(geometric_levels(s, codec.p), codec, x, layout, codec.norm, bound)


def _elasticl(codec: Any, x: Vec, layout: Layout) -> Claims:
    """At the start of training, with s0 levels."""
    return _stochastic(uniform_levels(codec.s0), codec, x, layout, "l2")


def _terngrad(codec: Any, x: Vec, layout: Layout) -> Claims:
    """Unbiased only where nothing is clipped; of the rest the entropy alone is stated."""
    if not codec.clip:
        return _stochastic((0.0, 1.0), codec, x, layout, "linf")
    clipped = np.concatenate([_clipped(part, codec.clip) for part in _parts(x, layout)] or [x])
    return Claims(False, None, _stochastic((0.0, 1.0), codec, clipped, layout, "linf").entropy_bits)


def _clipped(part: Vec, clip: float) -> Vec:
    """A tensor float32[n] within `clip` standard deviations about zero."""
    limit = clip * math.sqrt(float(np.mean(part.astype(np.float64) ** 2))) if part.size else 0.0
    return np.clip(part, -limit, limit).astype(np.float32)


def _co3(codec: Any, x: Vec, layout: Layout) -> Claims:
    """No value is further from x than zero is. The codes are not random: their entropy is that of
    the nearest grid points."""
    if getattr(codec, "stage", None) not in ENTROPY_CODERS:
        return Claims(False, 1.0)
    bits = sum(part.size * _grid_entropy(part) + 32 for part in _parts(x, layout) if part.size)
    return Claims(False, 1.0, bits / max(layout.size, 1))


def _grid_entropy(part: Vec) -> float:
    """Entropy in bits of CO3's codes of a tensor float32[n], n > 0."""
    size = np.abs(part.astype(np.float64))
    k = float(scale_for(float(size.sum()), float((size**2).sum()), float(size.max()), part.size))
    level = np.searchsorted(_MIDPOINTS, size * k)
    return entropy_bits(np.unique(np.where(part < 0, -level, level), return_counts=True)[1])


def _minmax8(codec: Any, x: Vec, layout: Layout) -> Claims:
    """The bound of every value's error, as if all of them reached it: 0.52 steps, and a float32's
    rounding."""
    error = square = 0.0
    for part in _parts(x, layout):
        if not part.size:
            continue
        values = part.astype(np.float64)
        each = 0.52 * float(np.ptp(values)) / 255 + 2.0**-23 * np.abs(values) + 2.0**-149
        error += float(each @ each)
        square += float(values @ values)
    return Claims(False, error / square if square else 0.0)


def _contraction(codec: Any, x: Vec, layout: Layout) -> Claims:
    """Biased, but never further from x than zero is: what error feedback needs."""
    return Claims(False, 1.0)


def _binary(bits: int) -> Callable[[Any, Vec, Layout], Claims]:
    """Rounding to a mantissa of so many bits, the leading one not counted."""
    return lambda codec, x, layout: Claims(False, 4.0 ** -(bits + 1) + ROUNDING)


def _signsgd(codec: Any, x: Vec, layout: Layout) -> Claims:
    """Its error exactly: 1 - sum over tensors of ||x||_1^2 / n, relative."""
    explained = square = 0.0
    for values in _parts(x, layout):
        part = np.abs(values.astype(np.float64))
        explained += float(part.sum()) ** 2 / max(part.size, 1)
        square += float(part @ part)
    return Claims(False, 1.0 - explained / square + 1e-6 if square else 0.0)  # the scale is rounded to float32


def _topk(codec: Any, x: Vec, layout: Layout) -> Claims:
    """A tensor's k largest of n values hold at least k/n of its squared norm."""
    kept = _squares(x, layout) @ (1 - _shares(codec, layout))
    return Claims(False, float(kept) + 4.0**-8)  # values may travel as bf16


def _randk(codec: Any, x: Vec, layout: Layout) -> Claims:
    """Unbiased: n/k - 1 in every tensor, exactly; else the squares of the values left out, 1 - k/n
    of all on average."""
    share = _shares(codec, layout)
    if not codec.unbiased:
        return Claims(False, float(_squares(x, layout) @ (1 - share)) + 4.0**-8)
    exact = codec.values == "fp32"
    return Claims(True if exact else None, float(_squares(x, layout) @ (1 / share - 1)) * (1 + 2.0**-6) + 4.0**-8)


def _dither(codec: Any, x: Vec, layout: Layout) -> Claims:
    """A step's square over 12 for each value, exactly; with `bytes` the step follows from the
    values and a little from the key."""
    scale = codec.scale_of(x, layout)
    if not scale.squares:
        return Claims(True, 0.0)
    if codec.bytes:
        return Claims(True)
    step = codec.step_of(x, layout, scale)
    return Claims(True, scale.weight * step**2 / (12 * scale.squares) * (1 + 2.0**-16))


def _shares(codec: Any, layout: Layout) -> NDArray[np.float64]:
    """k/n of every tensor, 1 of an empty one."""
    sizes = np.array([max(t.size, 1) for t in layout.tensors], np.float64)
    return np.clip(np.maximum(np.asarray(counts(layout, codec.ratio), np.float64), 1) / sizes, 0, 1)


def _eden(codec: Any, x: Vec, layout: Layout) -> Claims:
    """What a normal law loses, 1 / (1 - D) - 1. In blocks of d values that of few different ones is
    more, by 2 / d of it at most."""
    lost = (0.5707963, 0.1331100, 0.0357760, 0.0095916)[codec.bits - 1]
    least = min((min(4096, 1 << (max(t.size, 32).bit_length() - 1)) for t in layout.tensors if t.size), default=32)
    return Claims(True, lost * (1 + 2 / least))


def _squares(x: Vec, layout: Layout) -> NDArray[np.float64]:
    """Every tensor's share of the squared norm of x."""
    parts = (part.astype(np.float64) for part in _parts(x, layout))
    squares = np.array([float(part @ part) for part in parts])
    total: float = max(float(squares.sum()), float(np.finfo(np.float64).tiny))
    return np.asarray(squares / total, np.float64)


def _parts(x: Vec, layout: Layout) -> Iterator[Vec]:
    """The tensors of float32[layout.size], flat."""
    return (x[a:b] for a, b in itertools.pairwise(layout.offsets))


_RULES: Mapping[str, Callable[[Any, Vec, Layout], Claims]] = {
    "fp32": lambda codec, x, layout: Claims(True, ROUNDING),
    "fp16": _binary(10),
    "bf16": _binary(7),
    "minmax8": _minmax8,
    "qsgd": _qsgd,
    "qsgd-inf": _qsgd,
    "elastiquant": _elastiquant,
    "elasticl": _elasticl,
    "terngrad": _terngrad,
    "co3": _co3,
    "signsgd": _signsgd,
    "topk": _topk,
    "dgc": _contraction,
    "powersgd": _contraction,
    "randk": _randk,
    "dither": _dither,
    "deadzone": _contraction,
    "sparseloco": _contraction,
    "eden": _eden,
    "atomo": lambda codec, x, layout: Claims(True),
}


# The entropy of a given vector's codes. Nothing is drawn: it is an expectation over the rounding.
# Definitions: a bucket's norm N (L2 or L-infinity), r = |v_i| / N, levels 0 = l_0 < ... < 1; r
# between two of them goes up with probability (r - l_j) / (l_(j+1) - l_j).

Norm: TypeAlias = Literal["l2", "linf"]


def code_entropy(levels: Sequence[float] | NDArray[np.floating], x: Vec, bucket: int = 0, norm: Norm = "l2") -> float:
    """Return the order-0 entropy, in bits a value, of the codes (sign and level) of float32[n] on
    average over the rounding: what an entropy coder of single codes needs, scales left out. Raises
    UsageError."""
    grid = require_levels(levels)
    counts = np.zeros((2, grid.size))  # by sign and level
    at = 0
    for r, low in _intervals(grid, x, bucket, norm):
        r, low = r.ravel(), low.ravel()
        up = (r - grid[low]) / (grid[low + 1] - grid[low])
        negative = np.signbit(x[at : at + r.size]).astype(np.int64)
        np.add.at(counts, (negative, low), 1 - up)
        np.add.at(counts, (negative, low + 1), up)
        at += r.size
    counts[0, 0] += counts[1, 0]  # no signed zero
    counts[1, 0] = 0
    return entropy_bits(counts)


def entropy_bits(counts: ArrayLike) -> float:
    """Return the order-0 entropy in bits a symbol of these counts (or probabilities), in any shape;
    0 when there are none."""
    count = np.asarray(counts, np.float64).ravel()
    p = count[count > 0] / max(count.sum(), np.finfo(np.float64).tiny)
    return float(abs((p * np.log2(p)).sum()))


def _intervals(
    grid: NDArray[np.float64], x: Vec, bucket: int, norm: Norm
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """r and the level at or below it, float64[buckets, b] each, some buckets at a time; then the
    last, shorter bucket."""
    width = bucket or max(x.size, 1)
    step = max(1, CHUNK_VALUES // width) * width
    whole = x.size // width * width
    parts = [slice(at, min(at + step, whole)) for at in range(0, whole, step)]
    if whole < x.size:
        parts.append(slice(whole, x.size))
    for part in parts:
        size = np.abs(x[part].astype(np.float64)).reshape(-1, min(width, part.stop - part.start))
        n = np.sqrt((size**2).sum(1, keepdims=True)) if norm == "l2" else size.max(1, keepdims=True)
        r = np.minimum(np.divide(size, n, out=np.zeros_like(size), where=n > 0), 1.0)
        yield r, np.minimum(np.searchsorted(grid, r, side="right") - 1, grid.size - 2)
