"""`dither` and `deadzone`: one step for the whole model, and an entropy code that follows the data.

Rate-distortion theory spends the same error on every value, whatever its tensor, and lets the
entropy code make quiet tensors cheap (reverse water-filling). Codecs that scale by bucket or tensor
do the opposite: they spend as many bits on values that hardly matter.

`dither` (Schuchman 1964; Ziv 1985; Zamir and Feder 1992): q = round(x / step + u), x' = (q - u)
step, u uniform in [-1/2, 1/2) from the message's key, so that the receiver subtracts it again. The
error is uniform in +-step / 2 whatever x is: E[x'] = x, and E||x' - x||^2 = n step^2 / 12 exactly,
as long as the step does not follow from u. So where `bytes` are given it follows from other
dithers, with room for all but one in some ten thousand.
Stochastic rounding, which does not subtract, has up to three times that. The eight values of a row
have one u in each eighth of the interval, in an order that the key turns: each u is uniform, and
the coder, which knows u, has a table for each pair of eighths.

`deadzone` (Sullivan, "Efficient scalar quantization of exponential and Laplacian random variables",
1996): |q| = floor(|x| / step + 1/3); x' is the mean of the values that become q, for |q| = 1, 2 and
from 3 on, so ||x' - x|| <= ||x||. Biased, for error feedback and differences.

The step of a tensor with deviation s (about zero) is `step` (s / that of all)^`allocation`, in
eighths of an octave: 0 is one step for all, 1 the same relative error in every tensor. Exactly one
of three parameters says how fine it is: `error`, the relative error ||x' - x|| / ||x||; `bytes`,
that a body never exceeds, and that must hold more than noise; or `step`. A tensor's step is at
least 2^-21 of its largest value, which is then at most so many steps, and at least 2^-126. Tensors
with a deviation below 2^-100 have the common one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat, nonfinite, require_out
from edgegossip.codecs.keys import tensor_key
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native import coding, quantise, stepped
from edgegossip.types import ConfigError, DecodeError, Vec

_DEFAULT_ERROR = 0.25
_SMALLEST_STEP = 2.0**-126  # its reciprocal is finite
_LARGEST_STEP = float(np.finfo(np.float32).max) / 2.0**13  # finite in every tensor: 12 octaves are the most
_CLOSE = 1.01  # an error this near to what was asked for is good enough
_FULL = 0.98  # of the bytes that were asked for
_TRIES = 12
_ENCODINGS = 6
_SPARE_BYTES = 6
_PROBES = 6
_COARSER = 2.0**0.125
_LEAST_SENT = 0.66667  # steps: a dead zone makes zeros of what is smaller
_MASK = 2**64 - 1
_MOST_EIGHTHS = 96
_LEAST_SQUARE = 2.0**-200  # mean square of a tensor with a step of its own, whose reciprocal is finite then


@dataclass(frozen=True, slots=True)
class Scale:
    """What a vector's steps follow from."""

    squares: float  # sum of x^2
    smallest: float  # common step, with which no value is too many steps of its tensor
    eighths: stepped.Eighths  # of an octave, that tensors' steps are above the common one; or none
    weight: float  # sum over values of the square of their step over the common one


@dataclass(frozen=True, slots=True)
class SteppedCodec(StatelessCodec):
    """What both have in common. Its state is the layout."""

    error: float = 0.0
    bytes: int = 0
    step: float = 0.0
    allocation: float = 0.0

    name: ClassVar[str]
    wire_id: ClassVar[int]
    dithered: ClassVar[bool]
    # Of `bytes`, in all and a value: with fewer the error is beyond what `error` may ask for. The
    # step, flags, means and a table take 24, and what dithers differ by 20.
    head_bytes: ClassVar[int]
    least_bits: ClassVar[float]

    def __post_init__(self) -> None:
        check_fields(self, self.name, PARAMS)
        given = [name for name in ("error", "bytes", "step") if getattr(self, name)]
        if len(given) > 1:
            raise ConfigError(f"codec {self.name}: {' and '.join(given)} are both given; give one of them")
        if not self.dithered and self.error >= 1.0:
            raise ConfigError(
                f"codec {self.name}: error = {self.error:g} is out of range: a dead zone with an error of 1 sends nothing; "
                "the nearest is 0.99"
            )
        if not given:
            object.__setattr__(self, "error", _DEFAULT_ERROR)

    @override
    def init(self, layout: Layout) -> Layout:
        require_bytes(self, layout)
        return layout

    def least_bytes(self, layout: Layout) -> int:
        """Return the fewest `bytes` that hold something of such a model."""
        own = len(layout.tensors) if self.allocation else 0
        return self.head_bytes + own + math.ceil(self.least_bits * layout.size / 8)

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        scale = self.scale_of(x, state)
        if self.bytes:
            return self._within(x, state, scale, ctx.key), state
        step = self.step_of(x, state, scale)
        return stepped.encode(x, state.offsets, state.columns, self._dither(ctx.key), step, scale.eighths), state

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        values = np.empty(layout.size, np.float32) if out is None else out
        self._require(
            stepped.decode(flat(body), layout.offsets, layout.columns, self.dithered, layout.size, values, weight)
        )
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raise DecodeError unless it can be decoded; writes nothing."""
        self._require(stepped.decode(flat(body), layout.offsets, layout.columns, self.dithered, layout.size))

    def _require(self, fault: int) -> None:
        if fault:
            raise DecodeError(f"the {self.name} body is invalid: {coding.FAULTS[fault]}")

    def scale_of(self, x: Vec, layout: Layout) -> Scale:
        """Return what the steps of float32[layout.size] follow from. Raises UsageError that names
        the tensor when x is not finite."""
        layout.check(x)
        moments = quantise.moments_of(x, layout.offsets)
        if bad := next((k for k, m in enumerate(moments, 1) if not math.isfinite(m.largest)), 0):
            raise nonfinite(layout, bad - 1)
        squares = math.fsum(m.squares for m in moments)
        if not self.allocation or not squares:
            smallest = max(m.largest for m in moments) / stepped.MOST_STEPS
            return Scale(squares, smallest, stepped.ONE_STEP, float(layout.size))
        mean = squares / layout.size
        eighths = [
            self._eighths(m.squares / t.size, mean) if t.size else 0
            for m, t in zip(moments, layout.tensors, strict=True)
        ]
        weight = math.fsum(t.size * 2.0 ** (e / 4) for e, t in zip(eighths, layout.tensors, strict=True))
        smallest = max(m.largest * 2.0 ** (-e / 8) for m, e in zip(moments, eighths, strict=True)) / stepped.MOST_STEPS
        return Scale(squares, smallest, np.array(eighths, np.int8), weight)

    def _eighths(self, square: float, mean: float) -> int:
        """How many eighths of an octave the step of a tensor with this mean square is above the
        common one, where `mean` is that of all."""
        if square < _LEAST_SQUARE:
            return 0
        return max(-_MOST_EIGHTHS, min(_MOST_EIGHTHS, round(4 * self.allocation * math.log2(square / mean))))

    def step_of(self, x: Vec, layout: Layout, scale: Scale) -> float:
        """Return the common step for float32[layout.size] where `error` or `step` is given; 0 where
        all values are 0."""
        if not scale.squares:
            return 0.0
        if self.step:
            return _held(self.step, scale)
        if self.dithered:
            return _held(self.error * math.sqrt(12 * scale.squares / scale.weight), scale)
        return self._step_for_error(x, layout, scale)

    def _step_for_error(self, x: Vec, layout: Layout, scale: Scale) -> float:
        """The dead zone's error follows from the values: measured, and the step is corrected."""
        target = self.error**2 * scale.squares
        search = _Search(self.error * math.sqrt(12 * scale.squares / scale.weight), scale)
        for step in search:
            found = max(0.0, stepped.error(x, layout.offsets, layout.columns, step, scale.eighths))
            if target / _CLOSE**2 <= found <= target * _CLOSE**2:
                return step
            search.tell(math.sqrt(found / target) - 1.0)
        return search.low or search.now  # where no step has that error, one that has less

    def _within(self, x: Vec, layout: Layout, scale: Scale, key: int) -> Body:
        """The body with about the smallest step that `bytes` hold. `key` is the message's."""
        nothing = stepped.encode(x, layout.offsets, layout.columns, self._dither(key), 0.0, scale.eighths)
        target = 8.0 * (self.bytes - len(nothing))
        body = self._fitting(x, layout, scale, key, target)
        if body or self.dithered or not scale.squares:
            return body or nothing
        # The largest magnitudes are alike: no step sends some of them, and all are too many. So
        # every second value is sent, or fourth, and so on, drawn by the key.
        drawn = np.random.Philox(key=key & _MASK).random_raw(x.size)
        for halvings in range(1, 64):
            kept = np.where(drawn >> (64 - halvings), np.float32(0), x)
            if body := self._fitting(kept, layout, self.scale_of(kept, layout), key, target):
                return body
        return nothing

    def _fitting(self, x: Vec, layout: Layout, scale: Scale, key: int, target: float) -> Body | None:
        """None where no step sends something of x in so few bytes."""
        if not scale.squares:
            return None
        step = self._step_for_bytes(x, layout, scale, target)
        largest = scale.smallest * stepped.MOST_STEPS / step  # of all values, in steps
        if not self.dithered and largest < _LEAST_SENT:
            return None
        body = stepped.encode(x, layout.offsets, layout.columns, self._dither(key), step, scale.eighths)
        while len(body) > self.bytes and self.dithered and step < _LARGEST_STEP:  # one dither in some ten thousand
            step = _held(step * _COARSER, scale)
            body = stepped.encode(x, layout.offsets, layout.columns, self._dither(key), step, scale.eighths)
        return body if len(body) <= self.bytes else None

    def _step_for_bytes(self, x: Vec, layout: Layout, scale: Scale, target: float) -> float:
        """About the smallest step whose bodies `bytes` hold. It does not depend on the message's
        dither, or the dither would no longer be uniform, and x' biased."""
        step, found = math.sqrt(scale.squares / scale.weight), math.inf
        for _ in range(_ENCODINGS):
            step = self._step_for_bits(x, layout, scale, step, target)
            taken = self._bytes_with(x, layout, scale, step)
            if taken <= self.bytes:
                found = min(found, step)
            if 0 <= self.bytes - taken <= max((1 - _FULL) * self.bytes, _SPARE_BYTES) or step >= _LARGEST_STEP:
                break
            # The estimate was off by as much as it will be next time.
            target = max(target + 8.0 * (self.bytes - taken) - 0.004 * abs(target), -64.0)
        return found if found < math.inf else step

    def _bytes_with(self, x: Vec, layout: Layout, scale: Scale, step: float) -> int:
        """How many bytes a body takes, all but one dither in some ten thousand: four deviations
        above the mean of some other dithers. Where that is too many, at least so many."""
        sizes: list[int] = []
        while len(sizes) < (_PROBES if self.dithered else 1) and max(sizes, default=0) <= self.bytes:
            key = self._dither(len(sizes))
            sizes.append(len(stepped.encode(x, layout.offsets, layout.columns, key, step, scale.eighths)))
        mean = sum(sizes) / len(sizes)
        variance = sum((size - mean) ** 2 for size in sizes) / max(len(sizes) - 1, 1)
        return math.ceil(mean + 4.0 * math.sqrt(variance))

    def _dither(self, key: int) -> int | None:
        return tensor_key(key, 0) if self.dithered else None

    def _step_for_bits(self, x: Vec, layout: Layout, scale: Scale, first: float, target: float) -> float:
        """About the smallest step with which the integers take at most so many bits, as far as can
        be told from their histograms."""
        key = 0 if self.dithered else None
        search = _Search(first, scale)
        for step in search:
            bits = stepped.bits(x, layout.offsets, layout.columns, key, step, scale.eighths)
            if target * _FULL <= bits <= target:
                return step
            search.tell((target - bits) / max(target, 64.0))
        return search.high if search.high < math.inf else search.now


def require_bytes(codec: Any, layout: Layout) -> None:
    """Raise ConfigError where the `bytes` of a codec are fewer than its `least_bytes`: boards would
    send each other next to nothing, in every round."""
    least = codec.least_bytes(layout)
    if 0 < codec.bytes < least:
        raise ConfigError(
            f"codec {codec.name}: bytes = {codec.bytes} hold next to nothing of {layout.size:,} values; "
            f"the smallest that do are {least}"
        )


class _Search(Iterator[float]):
    """Steps to try, for what grows with the step: by false position (the Illinois rule), from where
    a smaller and a larger one are known. All of it is arithmetic that every machine rounds
    alike."""

    def __init__(self, first: float, scale: Scale) -> None:
        self.low, self.high, self.now = 0.0, math.inf, first
        self._below = self._above = 0.0  # excess at low and high
        self._next, self._scale, self._left = first, scale, _TRIES

    def __next__(self) -> float:
        if not self._left:
            raise StopIteration
        self._left -= 1
        self.now = _held(self._next, self._scale)
        return self.now

    def tell(self, excess: float) -> None:
        """Say by what share of what is wanted the last step had too much (or, below 0, too
        little)."""
        if excess > 0:
            self._below *= 0.5 if self._above and self.high > self.now else 1.0
            self.high, self._above = self.now, excess
        else:
            self._above *= 0.5 if self._below and self.low < self.now else 1.0
            self.low, self._below = self.now, excess
        if self.low and self.high < math.inf:
            part = self._below / (self._below - self._above)
            self._next = self.low + (self.high - self.low) * min(max(part, 0.02), 0.98)
        else:
            self._next = self.now * min(max((1.0 + excess) ** -2 if excess > -1.0 else 4.0, 0.25), 4.0)


def _held(step: float, scale: Scale) -> float:
    """A float32 that no value is too many steps of."""
    return float(np.float32(min(max(step, scale.smallest, _SMALLEST_STEP), _LARGEST_STEP)))


@dataclass(frozen=True, slots=True)
class Dither(SteppedCodec):
    """Subtractive dither: unbiased, with an error that does not depend on x."""

    name: ClassVar[str] = "dither"
    wire_id: ClassVar[int] = 17
    dithered: ClassVar[bool] = True
    head_bytes: ClassVar[int] = 44
    least_bits: ClassVar[float] = 1 / 8


@dataclass(frozen=True, slots=True)
class DeadZone(SteppedCodec):
    """Rounding with a dead zone about zero, to cells' means: biased."""

    name: ClassVar[str] = "deadzone"
    wire_id: ClassVar[int] = 18
    dithered: ClassVar[bool] = False
    head_bytes: ClassVar[int] = 24
    least_bits: ClassVar[float] = 1 / 32


PARAMS = (
    Param("error", 0.0, "relative error; 0.25 where bytes and step are not given either", low=0.0, high=16.0),
    Param("bytes", 0, "most bytes of a message; 0: as error or step say", low=0, high=2**32),
    Param("step", 0.0, "the step itself; 0: as error or bytes say", low=0.0, high=3e38),
    Param(
        "allocation",
        0.0,
        "how far a tensor's step follows its deviation: 0 not at all, 1 all the way",
        low=0.0,
        high=1.0,
    ),
)


def _family(codec: type[SteppedCodec], help: str) -> Family:
    return Family(codec.name, codec, help, PARAMS, codec.wire_id)


FAMILIES = (
    _family(Dither, "one step for the model, subtractive dither, an adaptive entropy code: unbiased"),
    _family(DeadZone, "one step for the model, a dead zone, an adaptive entropy code: biased"),
)
