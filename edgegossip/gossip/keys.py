"""Keys of the codecs' counter-based generators, derived from what both a run and its replay know."""

from __future__ import annotations

from collections.abc import Callable

from edgegossip.codecs.keys import splitmix64
from edgegossip.native import _native

_MASK = 2**64 - 1


def in_python(seed: int, *counters: int) -> int:
    """What `derive_key` is where the kernels are of a build that has none: a 64-bit key for (seed, counters), such as (seed,
    node, round); each is used modulo 2^64."""
    key = splitmix64(seed & _MASK)
    for counter in counters:
        key = splitmix64(key ^ (counter & _MASK))
    return key


derive_key: Callable[..., int] = getattr(_native, "derive_key", in_python)
