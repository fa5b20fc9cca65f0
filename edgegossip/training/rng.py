"""Counter-based randomness: every draw is a pure function of (seed, purpose, counters), so resuming
needs no state.

Philox-4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by (seed,
purpose); two of the counter words that it does not step through are the caller's. Only raw 64-bit
words are used where boards must agree: unlike the distributions of numpy's Generator, they never
change between versions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Keeps the draws for one purpose apart from those for another."""

    PARTITION = 1
    BATCHES = 2
    AUGMENT = 3
    DIRICHLET = 4
    TORCH = 5


def _bits(seed: int, purpose: Purpose, a: int, b: int) -> np.random.Philox:
    key = np.array([seed, purpose], np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, a, b, 0], np.uint64))


def words(seed: int, purpose: Purpose, size: int, a: int = 0, b: int = 0) -> NDArray[np.uint64]:
    """Return uint64[size] uniform words."""
    raw: NDArray[np.uint64] = _bits(seed, purpose, a, b).random_raw(size)
    return raw


def permutation(seed: int, purpose: Purpose, size: int, a: int = 0, b: int = 0) -> NDArray[np.int64]:
    """Return a permutation of 0..size-1, int64[size]: the order of `size` random words."""
    return np.argsort(words(seed, purpose, size, a, b), kind="stable").astype(np.int64)


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """Return a numpy Generator, for other distributions. Its streams may differ between numpy
    versions."""
    return np.random.Generator(_bits(seed, purpose, 0, 0))
