"""Memory of large tensors that is used again: activations and gradients, of weights too, have the same sizes in every step.

A C library gives large blocks back to the system as soon as they are free, and the system clears them for the next use: a
fifth of a step was that. Here the memory of a tensor that is gone waits, as one piece with free neighbours: what the forward
pass kept in many small tensors serves the few large ones of the backward pass. All of it goes when the last converted model is
gone, or by `give_back`.
"""

from __future__ import annotations

import math
import weakref

import torch
from torch import Tensor, nn

from edgegossip import heap
from edgegossip.native import _native

_LEAST = 1 << 16  # bytes; smaller blocks the C library keeps by itself
_FORMATS = {torch.float32: "f", torch.int8: "b", torch.uint8: "B"}
_users: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def empty(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """As torch.empty, of float32, int8 or uint8 and at most 4 dimensions."""
    if math.prod(size) * dtype.itemsize < _LEAST:
        return torch.empty(size, dtype=dtype)
    return torch.from_dlpack(_native.pool_empty(size, _FORMATS[dtype], False))


def empty_nchw(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """For maps size = [batch, height, width, channels] a tensor [batch, channels, height, width], channels last in memory; other
    sizes as they are. No view of another tensor, so that autograd may add to it in place."""
    if len(size) != 4:
        return empty(size, dtype)
    if math.prod(size) * dtype.itemsize < _LEAST:
        batch, height, width, channels = size
        return torch.empty((batch, channels, height, width), dtype=dtype, memory_format=torch.channels_last)
    return torch.from_dlpack(_native.pool_empty(size, _FORMATS[dtype], True))


def waiting_bytes() -> int:
    """That were in use and are free."""
    return _native.pool_waiting_bytes()


def give_back() -> None:
    """All that waits, to the system. For a program that goes on after training; the next step asks for them anew."""
    _native.pool_drop()


def lend_to(model: nn.Module) -> None:
    """Memory waits for as long as one such model is there; from the first one on the C library keeps more, too."""
    if model in _users:
        return
    heap.keep()
    _users.add(model)
    weakref.finalize(model, _user_is_gone).atexit = False


def _user_is_gone() -> None:
    if not list(_users):  # its length counts the one that is going
        give_back()
