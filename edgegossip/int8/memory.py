"""Memory of large tensors that is used again: activations and gradients have the same sizes in every step.

A C library gives large blocks back to the system as soon as they are free, and the system clears them for the next use: a
fifth of a step was that. Here a block whose tensor is gone waits for the next tensor of its size. What waits is at most twice
what was ever in use at a time; beyond that the sizes go that were not asked for the longest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEAST = 1 << 16  # bytes; smaller blocks the C library keeps by itself
_ALIGNMENT = 64
Block = NDArray[np.uint8]


class Pool:
    """Blocks by size, those of the size last used at the end."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Block]] = {}
        self._waiting_bytes = self._used_bytes = self._most_used_bytes = 0

    def take(self, size: int) -> Block:
        """An array of so many bytes whose memory comes back when the array is gone."""
        blocks = self._waiting.pop(size, [])
        self._waiting[size] = blocks
        if blocks:
            block = blocks.pop()
            self._waiting_bytes -= size
        else:
            whole = np.empty(size + _ALIGNMENT, np.uint8)
            start = -whole.ctypes.data % _ALIGNMENT
            block = whole[start : start + size]
        self._used_bytes += size
        self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
        lent = block.view(_Lent)
        lent.pool, lent.block = self, block
        return lent

    def put(self, block: Block) -> None:
        self._used_bytes -= block.size
        self._waiting_bytes += block.size
        self._waiting.setdefault(block.size, []).append(block)
        while self._waiting_bytes > 2 * self._most_used_bytes:
            oldest = next(iter(self._waiting))
            self._waiting_bytes -= oldest * len(self._waiting.pop(oldest))

    def drop(self) -> None:
        """Give all blocks that wait to the system."""
        self._waiting.clear()
        self._waiting_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    pool: Pool | None = None  # views of the array have none
    block: Block

    def __del__(self) -> None:
        if self.pool is not None:
            self.pool.put(self.block)


POOL = Pool()


def empty(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """As torch.empty."""
    count = math.prod(size) * dtype.itemsize
    if count < _LEAST:
        return torch.empty(size, dtype=dtype)
    strides = [1]
    for length in size[:0:-1]:
        strides.append(strides[-1] * length)
    return _tensor(count, size, tuple(strides[::-1]), dtype)


def empty_nchw(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """For maps size = [batch, height, width, channels] a tensor [batch, channels, height, width], channels last in memory; other
    sizes as they are. No view of another tensor, so that autograd may add to it in place."""
    if len(size) != 4:
        return empty(size, dtype)
    batch, height, width, channels = size
    count, shape = math.prod(size) * dtype.itemsize, (batch, channels, height, width)
    if count < _LEAST:
        return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)
    return _tensor(count, shape, (height * width * channels, 1, width * channels, channels), dtype)


def _tensor(count: int, size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    storage = torch.from_numpy(POOL.take(count)).untyped_storage()
    with torch.no_grad():
        return torch.empty(0, dtype=dtype).set_(storage, 0, size, strides)
