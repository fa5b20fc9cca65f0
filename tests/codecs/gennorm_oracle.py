"""The generalised normal law by plain numerical integration: an oracle that shares nothing with the
tables' script."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.co3 import EDGES, GRID
from edgegossip.types import Vec

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)


def sample(beta: float, n: int, seed: int = 0) -> Vec:
    """float32[n] of the law with alpha = 1."""
    rng = np.random.default_rng(seed)
    return (rng.standard_gamma(1 / beta, n) ** (1 / beta) * rng.choice([-1.0, 1.0], n)).astype(np.float32)


def integral(beta: float, order: float, low: float, high: float) -> float:
    """Of t^order times the density of t = |x| / alpha, from low to high, by Gauss-Legendre in y =
    t^(1/power): both t^order and t^beta are then smooth at 0."""
    power = 12
    end = min(high, 60.0 ** (1 / beta))
    if end <= low:
        return 0.0
    bounds = np.linspace(low ** (1 / power), end ** (1 / power), 9)
    half = np.diff(bounds)[:, None] / 2
    y = bounds[:-1, None] + half * (1 + _NODES)
    t = y**power
    values = np.exp(-(t**beta)) * t**order * power * y ** (power - 1)
    return float((values * _WEIGHTS * half).sum()) * beta / math.gamma(1 / beta)


def cells(beta: float, order: float, k_alpha: float) -> NDArray[np.float64]:
    """That integral over each level's cell, magnitudes only."""
    bounds = [0.0, *(e / k_alpha for e in EDGES), math.inf]
    return np.array([integral(beta, order, a, b) for a, b in itertools.pairwise(bounds)])


def probabilities(beta: float, k_alpha: float) -> NDArray[np.float64]:
    """Of the 16 codes sign << 3 | level."""
    p = cells(beta, 0, k_alpha)
    half = np.concatenate([p[1:] / 2, [0, 0]])
    return np.concatenate([p[:1], half, [0], half])


def relative_error(beta: float, k_alpha: float) -> float:
    """sqrt(E (x - Q(x))^2 / E x^2)."""
    value = np.array(GRID) / k_alpha
    squares = integral(beta, 2, 0, math.inf)
    gain = 2 * value @ cells(beta, 1, k_alpha) - value**2 @ cells(beta, 0, k_alpha)
    return math.sqrt(1 - float(gain) / squares)
