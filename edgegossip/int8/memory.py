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

from edgegossip import memory
from edgegossip.native import _native

_LEAST = 1 << 16  # bytes; smaller blocks the C library keeps by itself
_FORMATS = {torch.float32: "f", torch.int8: "b", torch.uint8: "B"}
_LOAN = "_int8_memory"  # in the __dict__ of a module that has one
_users: weakref.WeakSet[_Loan] = weakref.WeakSet()


def empty(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """As torch.empty, of float32, int8 or uint8 and at most 4 dimensions."""
    if math.prod(size) * dtype.itemsize < _LEAST:
        return torch.empty(size, dtype=dtype)
    return torch.from_dlpack(_native.pool_empty(size, _FORMATS[dtype], False))


def empty_nchw(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """For maps size = [batch, height, width, channels] a tensor [batch, channels, height, width],
    channels last in memory; other sizes as they are. No view of another tensor, so that autograd
    may add to it in place."""
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
    """All that waits, to the system. For a program that goes on after training; the next step asks
    for them anew."""
    _native.pool_drop()


class _Loan:
    """Who has one keeps the memory waiting. It lies in a module's __dict__, which is what is copied
    and pickled: so a copy of the module gets a loan of its own, and what is unpickled in another
    process one there."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        memory.enlarge_heap()
        _users.add(self)
        weakref.finalize(self, _user_is_gone).atexit = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _Loan:
        return _Loan()

    def __reduce__(self) -> tuple[type[_Loan], tuple[()]]:
        return _Loan, ()


def lend_to(*modules: nn.Module) -> None:
    """Memory waits for as long as one such module is there, a model or a layer that it may leave
    behind; from the first one on the C library keeps more, too."""
    without = [module for module in modules if _LOAN not in module.__dict__]
    if without:
        loan = _Loan()
        for module in without:
            module.__dict__[_LOAN] = loan


def _user_is_gone() -> None:
    if not list(_users):  # its length counts the one that is going
        give_back()
