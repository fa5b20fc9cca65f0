"""Holds a codec to what it claims, by running it: `edgegossip codec verify`.

A vector of a realistic kind (generalised normal, beta 0.6, in a matrix, a convolution and a bias)
is encoded `draws` times with different keys, as a first message. With errors e_d = decoded - x:

- gain: <decoded, x> / <x, x>, which is 1 on average for an unbiased codec;
- bias: ||E e||^2, estimated without bias by the mean of <e_d, e_d'> over pairs of draws;
- variance: the mean of ||e_d||^2 / ||x||^2, against the bound that the codec claims;
- size: bits a value, against the entropy of its symbols and scales;
- same: of three messages in a row, equal bytes for equal input, equal values for equal bytes, a
  receiver's codec decodes the same; x cannot be written to; a codec that keeps no state is held to
  gain and variance in the later ones, too;
- refuses: NaN and infinities in the input, cut and lengthened bodies; damaged ones give a
  DecodeError or finite values.

"Equal to" is as near as 4 standard deviations (Student's t, for these are estimated) and float32's
rounding. What a codec does not claim is measured and gets no verdict. The last two are in
interface.py.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Codec
from edgegossip.codecs.checks import chunks
from edgegossip.codecs.claims import Claims, claims_of
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError, Vec
from edgegossip.verify.interface import (
    MESSAGES,
    Build,
    Receive,
    body_fault,
    context,
    decode_apart,
    encode,
    input_fault,
    same_fault,
)

ROUNDING = 1e-6  # relative: sums of float32 values that are each rounded once or twice
LATER_DRAWS = 8  # of the messages after the first
TABLE_BYTES = 128  # head and code table of a tensor's section
MAX_ERRORS = 2**28  # 1 GiB of float32
_BETA = 0.6

Rebuild = Callable[[int, bytes], Codec[Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """Holds one measured figure. passed None: nothing was claimed."""

    name: str
    passed: bool | None
    value: float | None = None
    limit: float | None = None  # what the value was held to
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Holds all checks of one codec."""

    codec: str
    bits_per_value: float | None
    relative_error: float | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return all(check.passed is not False for check in self.checks)


def trial(size: int) -> tuple[Layout, Vec]:
    """Return a layout of `size` values (at least 64) in three tensors, and GenNorm(0.01, 0.6)
    values in it."""
    if size < 64:
        raise UsageError(f"{size} values are too few to verify a codec with; use at least 64")
    side = math.isqrt(size // 2)
    filters = (size - side * side) * 3 // 4 // 9
    specs = [TensorSpec("matrix", (side, side)), TensorSpec("filters", (filters, 1, 3, 3))]
    specs.append(TensorSpec("bias", (size - sum(s.size for s in specs),)))
    rng = np.random.default_rng(0)
    magnitude = rng.standard_gamma(1 / _BETA, size) ** (1 / _BETA)
    return Layout.of(specs), (0.01 * magnitude * rng.choice([-1.0, 1.0], size)).astype(np.float32)


def verify(
    codec: Codec[Any],
    title: str,
    *,
    size: int = 65536,
    draws: int = 32,
    rebuild: Rebuild | None = None,
    build: Build | None = None,
) -> Report:
    """Run all checks. The receiver is `rebuild` of what a frame carries (codecs.from_wire), or what
    `build` makes in a process of its own, or a copy of the codec from before it encoded anything. A
    codec that raises fails the check it raised in. Raises UsageError for a size below 64, fewer
    than 4 draws, or size * draws above MAX_ERRORS."""
    if draws < 4:
        raise UsageError(f"{draws} draws tell nothing; use at least 4")
    if size * draws > MAX_ERRORS:
        raise UsageError(f"{draws} draws of {size} values are more than the {MAX_ERRORS} that are kept at once")
    layout, x = trial(size)
    x.flags.writeable = False  # a codec that would change its input fails at once
    receive = _receiver(codec, layout, rebuild, build)
    try:
        errors, bits = _draw(codec, x, layout, draws)
    except (Exception, SystemExit) as error:
        return Report(title, None, None, (Check("encodes", False, note=_said(error)),))
    if not np.isfinite(errors).all():
        return Report(
            title, bits, None, (Check("encodes", False, note="it decodes its own bodies to NaN or infinity"),)
        )
    try:
        claims = claims_of(codec, x, layout)
    except (Exception, SystemExit) as error:
        return Report(title, bits, None, (Check("claims", False, note=_said(error)),))
    gram, gain = _products(errors, x)
    power = float(np.vdot(x.astype(np.float64), x))
    variance = float(np.trace(gram)) / draws / power
    figures = (
        _gain(gain, claims),
        _bias(gram / power, claims),
        _variance(np.diag(gram) / power, claims),
        _size(bits, claims, layout),
    )
    kept = {check.name for check in figures if check.passed}
    checks = (
        *figures,
        _guarded(
            "same",
            lambda: same_fault(codec, x, layout, receive),
            lambda: _later_fault(codec, x, layout, claims, kept, min(draws, LATER_DRAWS)),
        ),
        _guarded("refuses", lambda: input_fault(codec, x, layout), lambda: body_fault(codec, x, layout)),
    )
    return Report(title, bits, math.sqrt(variance), checks)


def _receiver(codec: Codec[Any], layout: Layout, rebuild: Rebuild | None, build: Build | None) -> Receive:
    """What decodes the bodies beside the codec itself. Made before the codec is used: a copy has
    none of its memory."""
    if build is not None:
        return functools.partial(decode_apart, build, layout)
    if rebuild is not None:
        make = rebuild
        return lambda bodies: [make(codec.wire_id, codec.wire_params()).decode(body, layout) for body in bodies]
    try:
        other = copy.deepcopy(codec)
    except Exception:  # some objects cannot be copied; what can be told without is told
        other = codec
    return lambda bodies: [other.decode(body, layout) for body in bodies]


def _draw(codec: Codec[Any], x: Vec, layout: Layout, draws: int) -> tuple[NDArray[np.float32], float]:
    """Errors float32[draws, n] under different keys, and mean bits a value."""
    errors, total = np.empty((draws, x.size), np.float32), 0
    for d in range(draws):
        body = encode(codec, x, layout, key=d)
        total += memoryview(body).nbytes
        np.subtract(codec.decode(body, layout), x, out=errors[d])
    return errors, 8 * total / draws / x.size


def _later_fault(codec: Codec[Any], x: Vec, layout: Layout, claims: Claims, kept: Collection[str], draws: int) -> str:
    """Gain and variance of later messages, where the first one `kept` what is claimed. Claims are
    about an empty memory: only a codec that keeps none is held to them."""
    state = codec.init(layout)
    for round in range(1, MESSAGES):
        errors = np.empty((draws, x.size), np.float32)
        for d in range(draws):
            body, after = codec.encode(x, state, context(d, round))
            if after is not state:
                return ""
            np.subtract(codec.decode(body, layout), x, out=errors[d])
        gram, gain = _products(errors, x)
        squares = np.diag(gram) / float(np.vdot(x.astype(np.float64), x))
        for check in (_gain(gain, claims), _variance(squares, claims)):
            if check.passed is False and check.name in kept:
                return f"{check.name} is {check.value:.6g} in message {round + 1}, for a codec that keeps no state"
    return ""


def _products(errors: NDArray[np.float32], x: Vec) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """<e_d, e_d'> of all pairs, and the gain of every draw, in float64."""
    draws = len(errors)
    gram, along, power = np.zeros((draws, draws)), np.zeros(draws), 0.0
    for part in chunks(x.size):
        e, v = errors[:, part].astype(np.float64), x[part].astype(np.float64)
        gram += e @ e.T
        along += e @ v
        power += float(v @ v)
    return gram, 1 + along / power


def _gain(gain: NDArray[np.float64], claims: Claims) -> Check:
    mean, sigma = float(gain.mean()), float(gain.std(ddof=1)) / math.sqrt(gain.size)
    allowed = sigmas(gain.size) * sigma + ROUNDING
    return Check("gain", _verdict(claims.unbiased, abs(mean - 1) <= allowed), mean, allowed)


def _bias(gram: NDArray[np.float64], claims: Claims) -> Check:
    pairs = gram[np.triu_indices(len(gram), 1)]
    mean, sigma = float(pairs.mean()), float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
    # Pairs of the same draws are not independent: no more freedom than the draws have.
    allowed = sigmas(len(gram)) * sigma + ROUNDING**2
    value = math.sqrt(max(mean, 0.0))
    return Check("bias", _verdict(claims.unbiased, mean <= allowed), value, math.sqrt(allowed))


def _variance(squares: NDArray[np.float64], claims: Claims) -> Check:
    mean, sigma = float(squares.mean()), float(squares.std(ddof=1)) / math.sqrt(squares.size)
    if claims.variance is None:
        return Check("variance", None, mean)
    return Check("variance", mean <= claims.variance + sigmas(squares.size) * sigma, mean, claims.variance)


def _size(bits: float, claims: Claims, layout: Layout) -> Check:
    """Within 3.5 % of the entropy from 1.5 bits a value on, else within 12 %; and TABLE_BYTES a
    tensor, which count in small models only."""
    if claims.entropy_bits is None:
        return Check("size", None, bits)
    tables = 8 * TABLE_BYTES * sum(t.size > 0 for t in layout.tensors) / layout.size
    limit = claims.entropy_bits * (1.035 if claims.entropy_bits >= 1.5 else 1.12) + tables
    return Check("size", bits <= limit, bits, limit, f"entropy {claims.entropy_bits:.3f}")


def _guarded(name: str, *runs: Callable[[], str]) -> Check:
    """A check in parts, each of which says what is wrong; anything that one raises is wrong too.
    The first fault counts."""
    fault = ""
    for run in runs:
        try:
            fault = fault or run()
        except (Exception, SystemExit) as error:
            fault = _said(error)
    return Check(name, not fault, note=fault)


def _said(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: {error.code}: a codec must not end the process"
    return f"{type(error).__name__}: {error}"


def _verdict(claimed: bool | None, holds: bool) -> bool | None:
    return holds if claimed else None


# Student's t: how many estimated standard deviations a mean of few draws may be off. Pure.

SIGMAS = 4.0


ANGLES = 100_000


@functools.cache
def sigmas(draws: int) -> float:
    """Return how many estimated standard deviations of the mean of `draws` (at least 2) normal
    values that it is beyond, either way, as rarely as one is beyond SIGMAS known ones: 33 of 4
    draws, 4.6 of 32, SIGMAS of many."""
    edges = np.linspace(0, math.pi / 2, ANGLES + 1)
    # t = sqrt(draws - 1) tan(angle), and angles have this density, up to a factor.
    share = np.cumsum(np.cos((edges[:-1] + edges[1:]) / 2) ** (draws - 2))
    within = math.erf(SIGMAS / math.sqrt(2)) * share[-1]
    return math.sqrt(draws - 1) * math.tan(np.interp(within, share, edges[1:]))
