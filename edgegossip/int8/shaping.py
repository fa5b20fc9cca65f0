"""Flattening, slicing and zero padding of int8 tensors: no value changes, so neither do scales and zero points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8 import memory
from edgegossip.int8.functional import flat, nchw, place_of
from edgegossip.int8.recording import note
from edgegossip.int8.tensor import QuantisedTensor
from edgegossip.native import int8 as native

Pair = tuple[int, int]


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.shape = tuple(x.shape)
        return x.with_q(nchw(x.q).reshape(len(x.q), -1).contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].reshape(ctx.shape)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """[batch, channels, height, width] or [batch, length, features] -> [batch, everything else]."""
    x = input
    if not isinstance(x, QuantisedTensor) or x.dim() not in (3, 4):
        return NotImplemented
    if start_dim not in (1, 1 - x.dim()) or end_dim not in (-1, x.dim() - 1):
        return NotImplemented
    made = _Flatten.apply(x)
    note(made, "flatten", (x,), x.sizes[-1] if x.dim() == 4 else 1)
    return made


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.shape = tuple(x.shape)
        length = ctx.shape[1]
        scale, zero = (t.repeat_interleave(length) for t in (x.scale, x.zero))
        return QuantisedTensor(x.q.reshape(-1, ctx.shape[2]), scale, zero)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].reshape(ctx.shape)


def rows(x: QuantisedTensor) -> QuantisedTensor:
    """[batch, length, features] -> [batch * length, features], in int8."""
    return _Rows.apply(x)


class _Taken(NamedTuple):
    """Slices of [batch, height, width, channels]."""

    samples: slice
    shape: native.SliceShape  # of a sample

    @classmethod
    def of(cls, sizes: tuple[int, ...], index: Sequence[slice]) -> _Taken:
        ranges = [range(d)[s] for d, s in zip(sizes[1:], index[1:], strict=True)]
        parts = itertools.chain(*((r.start, r.step if len(r) > 1 else 1, len(r)) for r in ranges))
        return cls(index[0], native.SliceShape(*sizes[1:], *parts))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.shape.rows, self.shape.columns, self.shape.taken

    def is_empty(self, batch: int) -> bool:
        return not (all(self.sizes) and range(batch)[self.samples])


def _sliced(x: QuantisedTensor, by: _Taken) -> QuantisedTensor:
    q = x.q[by.samples].contiguous()
    taken = memory.empty((len(q), *by.sizes), torch.int8)
    native.slice_maps(by.shape, len(q), place_of(q), place_of(taken), threads=torch.get_num_threads())
    return QuantisedTensor(taken, x.scale[by.samples].clone(), x.zero[by.samples].clone())


def _pitched(g: Tensor) -> tuple[int, Any]:
    """g [batch, height, width, channels] as a kernel takes it whose pixels may lie apart: how far, in floats, and where."""
    batch, height, width, channels = g.shape
    pitch = g.stride(2) if g.shape[2] > 1 else channels
    apart = (height * width * pitch, width * pitch, pitch, 1)
    if (
        g.dtype != torch.float32
        or pitch < channels
        or any(d > 1 and a != b for d, a, b in zip(g.shape, g.stride(), apart, strict=True))
    ):
        return channels, flat(g)
    return pitch, (g.data_ptr(), (batch * height * width - 1) * pitch + channels, "f", g)


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, by: _Taken) -> QuantisedTensor:
        ctx.sizes, ctx.by = x.sizes, by
        return _sliced(x, by)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        dx, by = memory.empty_nchw(ctx.sizes), ctx.by
        whole = len(g) == len(dx)
        part = dx if whole else memory.empty_nchw((len(g), *ctx.sizes[1:]))
        pitch, place = _pitched(g.permute(0, 2, 3, 1))
        native.slice_backward(by.shape, len(g), pitch, place, place_of(part), threads=torch.get_num_threads())
        if not whole:
            dx.zero_()[by.samples] = part
        return dx, None


def getitem(x: Any, index: Any) -> Any:
    """x[:, :, ::2, ::2] and other slices of [batch, channels, height, width]; any other index is not for int8."""
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, QuantisedTensor) or x.dim() != 4 or not all(isinstance(p, slice) for p in parts):
        return NotImplemented
    if len(parts) > 4 or any(p.step is not None and p.step < 1 for p in parts):
        return NotImplemented
    n, c, h, w = list(parts) + [slice(None)] * (4 - len(parts))
    taken = _Taken.of(x.sizes, (n, h, w, c))
    if taken.is_empty(len(x)):
        return NotImplemented
    if torch.is_grad_enabled():
        return _Slice.apply(x, taken)
    made = _sliced(x, taken)
    if n in (slice(None), slice(0, None)):  # else a sample is not what it was, or not for every batch
        note(made, "slice", (x,), list(taken.shape))
    return made


def _pad_shape(x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> native.PadShape:
    batch, height, width, channels = x.sizes
    return native.PadShape(batch, height, width, channels, *pads[0], *pads[1], *pads[2])


def _padded(x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> QuantisedTensor:
    size = [old + first + last for old, (first, last) in zip(x.sizes[1:], pads, strict=True)]
    q = torch.empty((x.sizes[0], *size), dtype=torch.int8)  # few and small: from the pool they made its peak larger
    native.pad(_pad_shape(x, pads), flat(x.q), flat(x.zero), flat(q), threads=torch.get_num_threads())
    return x.with_q(q)


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor, pads: tuple[Pair, Pair, Pair]) -> QuantisedTensor:
        ctx.index = (
            slice(None),
            *(slice(first, first + old) for old, (first, _) in zip(x.q.shape[1:], pads, strict=True)),
        )
        return _padded(x, pads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return nchw(grads[0].permute(0, 2, 3, 1)[ctx.index]), None


def reshape(input: Any, *shape: Any) -> Any:
    """x.view(batch, -1) and x.reshape(batch, -1), as `flatten`; any other shape is not for int8."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not isinstance(input, QuantisedTensor) or len(sizes) != 2:
        return NotImplemented
    batch = len(input)
    if sizes[0] not in (batch, -1) or sizes[1] not in (input.numel() // max(batch, 1), -1) or sizes == (-1, -1):
        return NotImplemented
    return flatten(input, 1)


def as_it_is(input: Any, *_: Any, **__: Any) -> Any:
    """`contiguous`: every int8 tensor is."""
    return input if isinstance(input, QuantisedTensor) else NotImplemented


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Nothing in eval mode; in training mode not for int8."""
    return NotImplemented if training or not isinstance(input, QuantisedTensor) else input


def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """`torch.nn.functional.pad` of channels, rows and columns with zeros; anything else is not for int8."""
    x, sizes = input, [*pad, *[0] * (6 - len(pad))]
    if mode != "constant" or value or not isinstance(x, QuantisedTensor) or x.dim() != 4 or len(sizes) > 6:
        return NotImplemented
    if min(sizes) < 0:
        return NotImplemented
    columns, rows, channels = ((sizes[k], sizes[k + 1]) for k in (0, 2, 4))
    pads = rows, columns, channels
    if torch.is_grad_enabled():
        return _Pad.apply(x, pads)
    made = _padded(x, pads)
    note(made, "pad", (x,), _pad_shape(x, pads))
    return made
