"""Keys of the counter-based generators: SplitMix64, one key a message and tensor, and the numbers
of a tensor's elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FEW = 16  # keys that are sooner made one by one than all at once


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
    """Return `tensor_key` of the tensors 0 to count - 1, all at once."""
    if count <= _FEW:
        return [splitmix64(key + k * _GOLDEN) for k in range(count)]
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    keys: list[int] = (z ^ z >> np.uint64(31)).tolist()
    return keys


def uniform_words(key: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return uint32[count]: the numbers of the elements first, first + 1, ... of a tensor with this
    key, as the kernels draw them."""
    element = np.arange(first, first + count, dtype=np.int64)
    x = (element >> 1).astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x = x * np.uint32(0x7FEB352D) + np.uint32(key >> 32)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return np.where(element & 1, x << np.uint32(16) | x >> np.uint32(16), x)
