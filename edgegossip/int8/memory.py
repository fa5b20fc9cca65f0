"""Memory of large tensors that is used again: activations and gradients, of weights too, have the
same sizes in every step.

A C library gives large blocks back to the system as soon as they are free, and the system clears
them for the next use: a fifth of a step was that. Here the memory of a tensor that is gone waits,
as one piece with free neighbours: what the forward pass kept in many small tensors serves the few
large ones of the backward pass. All of it goes when the last converted model is gone, copies, what
was unpickled and parts of models counted, or by `give_back`.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from edgegossip import memory
from edgegossip.native import _native

_LEAST = 1 << 16  # bytes; smaller blocks the C library keeps by itself
_FORMATS = {torch.float32: "f", torch.int8: "b", torch.uint8: "B"}
_REFERENCE = "_int8_memory"  # in the __dict__ of a module that has one
_users: weakref.WeakSet[_PoolReference] = weakref.WeakSet()


def empty(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Make a tensor as `torch.empty` does, of float32, int8 or uint8 and at most 4 dimensions."""
    if math.prod(size) * dtype.itemsize < _LEAST:
        return torch.empty(size, dtype=dtype)
    return from_dlpack(_native.pool_empty(size, _FORMATS[dtype], False))


def empty_nchw(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Make an empty tensor [batch, channels, height, width], channels last in memory, for feature
    maps of size [batch, height, width, channels]; of other sizes, as they are.

    It is no view of another tensor, so that autograd may add to it in place."""
    if len(size) != 4:
        return empty(size, dtype)
    if math.prod(size) * dtype.itemsize < _LEAST:
        batch, height, width, channels = size
        return torch.empty((batch, channels, height, width), dtype=dtype, memory_format=torch.channels_last)
    return from_dlpack(_native.pool_empty(size, _FORMATS[dtype], True))


def waiting_bytes() -> int:
    """Count the bytes of the pool that were in use and are free."""
    return _native.pool_waiting_bytes()


def give_back() -> None:
    """Give the memory that waits back to the system, as `torch.cuda.empty_cache` does for a GPU.

    For a program that goes on after training; the next step asks for it anew."""
    _native.pool_drop()


class _PoolReference:
    """Keeps the pool for as long as it is there.

    It lies in a module's __dict__, which is what is copied and pickled: so a copy of the module
    gets a reference of its own, and what is unpickled in another process one there."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        memory.enlarge_heap()
        _users.add(self)
        weakref.finalize(self, _release).atexit = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _PoolReference:
        return _PoolReference()

    def __reduce__(self) -> tuple[type[_PoolReference], tuple[()]]:
        return _PoolReference, ()


def retain_pool(*modules: nn.Module) -> None:
    """Keep the pool for as long as one of these modules is there: a model, or a layer that it may
    leave behind. From the first one on the C library keeps more, too."""
    without = [module for module in modules if _REFERENCE not in module.__dict__]
    if without:
        reference = _PoolReference()
        for module in without:
            module.__dict__[_REFERENCE] = reference


def _release() -> None:
    if not list(_users):  # its length counts the one that is going
        give_back()
