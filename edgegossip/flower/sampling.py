"""Which boards take part in a round. Pure: the same seed and round choose the same of the same boards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgegossip.recipe import ServerSection
from edgegossip.types import Round


def wanted(server: ServerSection, boards: int) -> int:
    """How many of the run's `boards` a round asks where enough are idle: ceil(fraction * boards), at least min_nodes."""
    return max(math.ceil(server.fraction * boards - 1e-9), server.min_nodes)


def sample(idle: Sequence[int], server: ServerSection, boards: int, seed: int, round: Round) -> list[int]:
    """A share of the run's `boards` out of those that are idle, in their order; everybody when that is more than there are."""
    count = wanted(server, boards)
    if count >= len(idle):
        return list(idle)
    chosen = np.random.default_rng((seed, round, 0x5A3)).choice(len(idle), count, replace=False)
    return [idle[k] for k in sorted(chosen)]
