"""Student's t: how many estimated standard deviations a mean of few draws may be off. Pure."""

from __future__ import annotations

import functools
import math

SIGMAS = 4.0


@functools.cache
def sigmas(draws: int) -> float:
    """Estimated standard deviations of the mean of `draws` (at least 2) normal values that it is
    beyond, either way, as rarely as one is beyond SIGMAS known ones: 33 of 4 draws, 4.6 of 32,
    SIGMAS of many."""
    within = math.erf(SIGMAS / math.sqrt(2))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _share_within(middle, draws - 1) < within:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(draws - 1)


def _share_within(angle: float, freedom: int) -> float:
    """P(|t| <= tan(angle) sqrt(freedom)), by the finite series of Abramowitz and Stegun 26.7.3 and
    26.7.4."""
    odd = freedom % 2
    square = math.cos(angle) ** 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for j in range(freedom // 2):
        total += term
        term *= square * (2 * j + 1 + odd) / (2 * j + 2 + odd)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
