"""Keys of the counter-based generators: SplitMix64, one key a message and tensor."""

from __future__ import annotations

from edgegossip.native import _native

_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(value: int) -> int:
    """Return one output of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014) for the state `value`, modulo 2^64: a bijection of 64-bit integers in which
    every input bit flips every output bit with probability 1/2."""
    return _native.splitmix64(value)


def derive_key(seed: int, *counters: int) -> int:
    """Return a 64-bit key for (seed, counters), such as (seed, node, round); each is used modulo
    2^64. What both a run and its replay know gives the same key."""
    return _native.derive_key(seed, *counters)


def tensor_key(key: int, index: int) -> int:
    """Return the key of the tensor at this index of the layout, from a frame's key: output `index`
    of the SplitMix64 that starts at `key`."""
    return splitmix64(key + index * _GOLDEN)


def tensor_keys(key: int, count: int) -> list[int]:
    """Return `tensor_key` of the tensors 0 to count - 1."""
    return [tensor_key(key, k) for k in range(count)]
