"""Keys of the counter-based generators: SplitMix64, and one key a tensor."""

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


def tensor_key(key: int, index: int) -> int:
    """Key of the tensor at this index of the layout, from a frame's key: output `index` of the SplitMix64 that starts at
    `key`."""
    return splitmix64(key + index * _GOLDEN)
