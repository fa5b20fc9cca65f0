"""Keys of the codecs' counter-based generators, derived from what both a run and its replay know."""

from __future__ import annotations

from edgegossip.codecs.keys import splitmix64

_MASK = 2**64 - 1


def derive_key(seed: int, *counters: int) -> int:
    """A 64-bit key for (seed, counters), such as (seed, node, round); each is used modulo 2^64."""
    key = splitmix64(seed & _MASK)
    for counter in counters:
        key = splitmix64(key ^ (counter & _MASK))
    return key
