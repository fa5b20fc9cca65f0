"""Holds a codec to what it claims, by running it: `edgegossip codec verify`.

A vector of a realistic kind (generalised normal, beta 0.6, in a matrix, a convolution and a bias) is encoded `draws` times
with different keys, always as a first message. With errors e_d = decoded - x:

- gain: <decoded, x> / <x, x>, which is 1 on average for an unbiased codec;
- bias: ||E e||^2, estimated without bias by the mean of <e_d, e_d'> over pairs of draws;
- variance: the mean of ||e_d||^2 / ||x||^2, against the bound that the codec claims;
- size: bits a value, against the entropy of its symbols and scales;
- same: equal bytes for equal input, equal values for equal bytes, a receiver's codec decodes the same; x cannot be written to;
- refuses: a NaN in the input, cut and lengthened bodies; damaged ones give a DecodeError or finite values.

"Equal to" is as near as 4 standard deviations (Student's t, for these are estimated) and float32's rounding. What a codec does
not claim is measured and gets no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.codecs.checks import chunks
from edgegossip.codecs.claims import Claims, claims_of
from edgegossip.codecs.verify_student import sigmas
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, LocalError, Vec

ROUNDING = 1e-6  # relative: sums of float32 values that are each rounded once or twice
FLIPS, HEAD_BYTES = 200, 64
TABLE_BYTES = 128  # head and code table of a tensor's section
MAX_ERRORS = 2**28  # 1 GiB of float32
_BETA = 0.6

Rebuild = Callable[[int, bytes], Codec[Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """One measured figure. passed None: nothing was claimed."""

    name: str
    passed: bool | None
    value: float | None = None
    limit: float | None = None  # what the value was held to
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one codec."""

    codec: str
    bits_per_value: float | None
    relative_error: float | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed is not False for check in self.checks)


def trial(size: int, seed: int = 0) -> tuple[Layout, Vec]:
    """A layout of `size` values (at least 64) in three tensors, and GenNorm(0.01, 0.6) values in it."""
    if size < 64:
        raise LocalError(f"{size} values are too few to verify a codec with; use at least 64")
    side = math.isqrt(size // 2)
    filters = (size - side * side) * 3 // 4 // 9
    specs = [TensorSpec("matrix", (side, side)), TensorSpec("filters", (filters, 1, 3, 3))]
    specs.append(TensorSpec("bias", (size - sum(s.size for s in specs),)))
    rng = np.random.default_rng(seed)
    magnitude = rng.standard_gamma(1 / _BETA, size) ** (1 / _BETA)
    return Layout.of(specs), (0.01 * magnitude * rng.choice([-1.0, 1.0], size)).astype(np.float32)


def verify(
    codec: Codec[Any], title: str, *, size: int = 65536, draws: int = 32, rebuild: Rebuild | None = None
) -> Report:
    """Run all checks. `rebuild` is codecs.from_wire, or None for a codec that no frame names. A codec that raises fails
    the check it raised in. Raises LocalError for a size below 64, fewer
    than 4 draws, or size * draws above MAX_ERRORS."""
    if draws < 4:
        raise LocalError(f"{draws} draws tell nothing; use at least 4")
    if size * draws > MAX_ERRORS:
        raise LocalError(f"{draws} draws of {size} values are more than the {MAX_ERRORS} that are kept at once")
    layout, x = trial(size)
    x.flags.writeable = False  # a codec that would change its input fails at once
    try:
        errors, bits = _draw(codec, x, layout, draws)
        claims = claims_of(codec, x, layout)
    except Exception as error:
        return Report(title, None, None, (Check("encodes", False, note=_said(error)),))
    if not np.isfinite(errors).all():
        return Report(
            title, bits, None, (Check("encodes", False, note="it decodes its own bodies to NaN or infinity"),)
        )
    gram, gain = _products(errors, x)
    power = float(np.vdot(x.astype(np.float64), x))
    variance = float(np.trace(gram)) / draws / power
    checks = (
        _gain(gain, claims),
        _bias(gram / power, claims),
        _variance(np.diag(gram) / power, claims),
        _size(bits, claims, layout),
        _guarded("same", lambda: _same(codec, x, layout, rebuild)),
        _guarded("refuses", lambda: _refuses(codec, x, layout)),
    )
    return Report(title, bits, math.sqrt(variance), checks)


def _draw(codec: Codec[Any], x: Vec, layout: Layout, draws: int) -> tuple[NDArray[np.float32], float]:
    """Errors float32[draws, n] under different keys, and mean bits a value."""
    errors, total = np.empty((draws, x.size), np.float32), 0
    for d in range(draws):
        body = _encode(codec, x, layout, key=d)
        total += memoryview(body).nbytes
        np.subtract(codec.decode(body, layout), x, out=errors[d])
    return errors, 8 * total / draws / x.size


def _encode(codec: Codec[Any], x: Vec, layout: Layout, key: int = 0) -> Body:
    """A first message; the key is spread over all 64 bits."""
    ctx = Ctx(key=(key + 1) * 0x9E3779B97F4A7C15 % 2**64, round=0, loss=0.5, lr=0.1)
    return codec.encode(x, codec.init(layout), ctx)[0]


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
    """Within 3.5 % of the entropy from 1.5 bits a value on, else within 12 %; and TABLE_BYTES a tensor, which count in small
    models only."""
    if claims.entropy_bits is None:
        return Check("size", None, bits)
    tables = 8 * TABLE_BYTES * sum(t.size > 0 for t in layout.tensors) / layout.size
    limit = claims.entropy_bits * (1.035 if claims.entropy_bits >= 1.5 else 1.12) + tables
    return Check("size", bits <= limit, bits, limit, f"entropy {claims.entropy_bits:.3f}")


def _same(codec: Codec[Any], x: Vec, layout: Layout, rebuild: Rebuild | None) -> str:
    body = bytes(_encode(codec, x, layout))
    if bytes(_encode(codec, x, layout)) != body:
        return "equal input and key gave other bytes"
    values = codec.decode(body, layout)
    if values.dtype != np.float32 or values.shape != x.shape or not np.isfinite(values).all():
        return f"decoding gave {values.dtype}{list(values.shape)}, or values that are not finite"
    out = np.ones_like(x)
    codec.decode(body, layout, out, 0.5)
    if not np.array_equal(out, 1 + np.float32(0.5) * values):
        return "decoding with a weight is not out + weight * values"
    codec.decode(body, layout, out)
    if not np.array_equal(out, values):
        return "equal bytes decoded to other values"
    receiver = rebuild(codec.wire_id, codec.wire_params()) if rebuild else codec
    return "" if np.array_equal(receiver.decode(body, layout), values) else "a receiver decodes other values"


def _refuses(codec: Codec[Any], x: Vec, layout: Layout) -> str:
    bad = x.copy()
    bad[x.size // 2] = np.nan
    try:
        _encode(codec, bad, layout)
    except LocalError:
        pass
    else:
        return "a NaN in the input was encoded"
    body = bytes(_encode(codec, x, layout))
    for cut in (b"", body[:-1], body[: len(body) // 2], body + b"\0"):
        try:
            codec.decode(cut, layout)
        except DecodeError:
            continue
        return f"a body of {len(body)} bytes was also decoded with {len(cut)}"
    return _survives_flips(codec, body, layout)


def _survives_flips(codec: Codec[Any], body: bytes, layout: Layout) -> str:
    for damaged in _damaged(body):
        try:
            values = codec.decode(damaged, layout)
        except DecodeError:
            continue
        if values.shape != (layout.size,) or not np.isfinite(values).all():
            return "a damaged body decoded to values that are not finite"
    return ""


def _damaged(body: bytes) -> Iterator[bytes]:
    """Infinity, NaN and the largest length in the place of any four of the first bytes, where lengths and scales stand;
    then one to three flipped bits, half of them there."""
    for at in range(min(HEAD_BYTES, len(body) - 3)):
        for word in (b"\0\0\x80\x7f", b"\0\0\xc0\xff", b"\xff\xff\xff\xff"):
            yield body[:at] + word + body[at + 4 :]
    rng = np.random.default_rng(1)
    for j in range(FLIPS):
        damaged = bytearray(body)
        for _ in range(1 + j % 3):
            damaged[rng.integers(min(HEAD_BYTES, len(body)) if j % 2 else len(body))] ^= 1 << int(rng.integers(8))
        yield bytes(damaged)


def _guarded(name: str, run: Callable[[], str]) -> Check:
    """A check that says what is wrong; anything it raises is wrong too."""
    try:
        fault = run()
    except Exception as error:
        fault = _said(error)
    return Check(name, not fault, note=fault)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _verdict(claimed: bool | None, holds: bool) -> bool | None:
    return holds if claimed else None
