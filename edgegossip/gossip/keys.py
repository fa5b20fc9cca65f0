"""Keys of the codecs' counter-based generators, derived from what both a run and its replay know."""

from __future__ import annotations

from edgegossip.codecs.keys import splitmix64

_MASK = 2**64 - 1


def derive_key(seed: int, *counters: int) -> int:
    """A 64-bit key for (seed, counters), such as (seed, node, round); each is used modulo 2^64."""
    return derive_key_from(splitmix64(seed & _MASK), *counters)


def derive_key_from(key: int, *counters: int) -> int:
    """`derive_key` with further counters, from the key of the first ones."""
    for counter in counters:
        key = splitmix64(key ^ (counter & _MASK))
    return key
