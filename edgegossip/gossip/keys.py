"""Keys of the codecs' counter-based generators, derived from what both a run and its replay know."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(value: int) -> int:
    """One output of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) for the
    state `value`: a bijection of 64-bit integers in which every input bit flips every output bit with probability
    1/2."""
    z = (value + _GOLDEN) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def derive_key(seed: int, *counters: int) -> int:
    """A 64-bit key for (seed, counters), such as (seed, node, round); each is used modulo 2^64."""
    key = splitmix64(seed & _MASK)
    for counter in counters:
        key = splitmix64(key ^ (counter & _MASK))
    return key
