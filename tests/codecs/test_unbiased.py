"""Unbiased means unbiased for this x, whatever it is: few values, spikes, ties, denormal numbers.
And at every rate, with every way of asking for one.

For one x and K keys with errors e_k, the mean of <e_j, e_k> over pairs of different keys estimates
||E[x' - x]||^2 without the noise of the mean. All keys are fixed, so nothing here can fail by
chance from one run to the next.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec
from tests.codecs.cases import CASES

SIGMAS = 4.0
SIZES = (1, 3, 33, 64, 257, 1025, 5000)
CTX = codecs.Ctx(key=0, round=3, loss=0.5, lr=0.1)

KINDS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "normal": lambda n, rng: rng.normal(size=n),
    "heavy": lambda n, rng: rng.normal(size=n) ** 5,
    "equal": lambda n, rng: np.full(n, 0.37),
    "equal but for signs": lambda n, rng: 0.5 * (-1.0) ** np.arange(n),
    "a spike": lambda n, rng: 3.0 * (np.arange(n) == n // 2),
    "a spike and a tenth": lambda n, rng: (np.arange(n) == n // 2) + 0.1 * (np.arange(n) == n // 3),
    "three spikes": lambda n, rng: (np.arange(n) == 0) - 0.6 * (np.arange(n) == n // 2) + 0.4 * (np.arange(n) == n - 1),
    "a spike among noise": lambda n, rng: (np.arange(n) == n // 3) + 1e-3 * rng.normal(size=n),
    "halves": lambda n, rng: 1.0 * (np.arange(n) < n // 2 + 1),
    "sorted": lambda n, rng: np.sort(rng.laplace(size=n)),
    "powers": lambda n, rng: 2.0 ** -(np.arange(n) % 40),
    "tiny": lambda n, rng: 1e-30 * rng.normal(size=n),
    "huge beside small": lambda n, rng: np.where(np.arange(n) % 50 == 0, 1e6, 1.0) * rng.laplace(size=n),
}


def hostile() -> dict[str, Vec]:
    """Every kind in every size, zeros, and denormal numbers: 93 of them."""
    rng = np.random.default_rng(7)
    found = {f"{kind}, {n}": make(n, rng) for n in SIZES for kind, make in KINDS.items()}
    found |= {"zeros, 100": np.zeros(100), "denormal, 100": 1e-41 * rng.normal(size=100)}
    return {name: np.ascontiguousarray(x, np.float32) for name, x in found.items()}


HOSTILE = hostile()


def at_its_least(name: str, **params: float) -> Callable[[Layout], Codec]:
    """The codec with the fewest bytes that it takes for a model, and a few more than that."""
    return lambda layout: codecs.get(name, bytes=codecs.get(name, bytes=2**31).least_bytes(layout), **params)


RATES: dict[str, Callable[[Layout], Codec]] = {
    **{str(case): (lambda layout, case=case: case.codec()) for case in CASES if case.claims.unbiased},
    "dither of one step": lambda layout: codecs.get("dither", step=0.7),
    "dither of few bytes": at_its_least("dither"),
    "dither of 2 bits a value": lambda layout: codecs.get("dither", bytes=48 + layout.size // 4),
    "dither of bytes a tensor": lambda layout: codecs.get("dither", bytes=64 + layout.size // 3, allocation=1.0),
    "auto of few bytes": at_its_least("auto"),
}


def bias_in_sigmas(codec: Codec, layout: Layout, x: Vec, keys: int) -> tuple[float, float]:
    """By how many deviations of a normal law the squared bias is more than none, and the bias over
    the norm of x."""
    e = np.empty((keys, x.size))
    for k in range(keys):
        ctx = dataclasses.replace(CTX, key=(k + 1) * 0x9E37_79B9_7F4A_7C15 % 2**64)
        body, _ = codec.encode(x, codec.init(layout), ctx)
        e[k] = codec.decode(body, layout).astype(np.float64) - x
    e[:, _hardly_drawn(e, x)] = 0.0
    norm = max(float(np.linalg.norm(x.astype(np.float64))), 2.0**-149)
    e /= norm
    gram = e @ e.T
    bias = float(gram[np.triu_indices(keys, 1)].mean())
    squares = ((gram**2).sum() - (np.diag(gram) ** 2).sum()) / (keys * (keys - 1))
    if bias <= x.size * (2.0**-46 + (2.0**-149 / norm) ** 2):  # as much is float32's rounding
        return 0.0, math.sqrt(max(bias, 0.0))
    # Without a bias the squared mean is about a chi square of so many directions, whose cube root
    # is about normal (Wilson and Hilferty 1931).
    directions = max(1.0, (np.diag(gram).mean() - bias) ** 2 / squares)
    chi = 1.0 + bias * keys / math.sqrt(squares * directions)
    spread = 2.0 / (9.0 * directions)
    return (chi ** (1 / 3) - 1.0 + spread) / math.sqrt(spread), math.sqrt(bias)


def _hardly_drawn(e: np.ndarray, x: Vec) -> np.ndarray:
    """Which values came out alike for all keys, and nearly right: next to a level, they are rounded
    to another one more seldom than once in so many keys."""
    return (e == e[0]).all(0) & (np.abs(e[0]) <= 2.0**-8 * np.abs(x).max(initial=0.0))


def biased(codec_of: Callable[[Layout], Codec], names: list[str], keys: int) -> list[str]:
    """Which of these vectors have a bias, and how large it is."""
    found = []
    for name in names:
        layout = Layout.of([TensorSpec("t", HOSTILE[name].shape)])
        sigmas, bias = bias_in_sigmas(codec_of(layout), layout, HOSTILE[name], keys)
        if sigmas > SIGMAS:
            found.append(f"{name}: {sigmas:.1f} sigmas, {100 * bias:.2f} % of the norm")
    return found


@pytest.mark.parametrize("rate", RATES)
def test_no_vector_has_a_bias(rate: str) -> None:
    """Two of the vectors each, other ones for other codecs, with 100 keys."""
    turn = list(RATES).index(rate)
    assert biased(RATES[rate], list(HOSTILE)[turn % 46 :: 46], 100) == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [*SIZES, 100])
@pytest.mark.parametrize("rate", RATES)
def test_no_vector_has_a_bias_at_length(rate: str, size: int) -> None:
    """All vectors, with 400 keys."""
    assert biased(RATES[rate], [name for name, x in HOSTILE.items() if x.size == size], 400) == []


@pytest.mark.parametrize("name", ["signsgd", "topk", "deadzone"])
def test_what_is_biased_is_noticed(name: str) -> None:
    assert biased(lambda layout: codecs.get(name), ["heavy, 257"], 200) != []
