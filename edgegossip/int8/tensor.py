"""What flows between int8 layers: a tensor that says float32 and holds int8 values with a scale and zero point a sample.

To autograd it is a float32 tensor [batch, channels, height, width], [batch, length, features] or [batch, features], whose
gradient is a plain float32 tensor. Additions, ReLU, slices, zero padding and flattening stay in int8
(`edgegossip.int8.functional`); any other torch function gets the float32 values, so that whatever a model does between layers
still works.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgegossip.types import LocalError

# Methods that ask about a tensor or manage its gradient, and touch no values.
_AS_THEY_ARE = frozenset(
    "size dim ndimension numel nelement stride is_floating_point is_complex requires_grad_ register_hook retain_grad backward"
    " grad __hash__ __len__ detach is_contiguous element_size __get__ __set__ __delete__ is_same_size".split()
)

# Those that ask for the gradient of a tensor itself.
_ASKING = frozenset(("register_hook", "retain_grad", "grad"))

_LINE = 64  # bytes


def places_in(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Where scales and zero points of q [*sizes] begin in a block of memory, and where it ends, in bytes."""
    scale = -(-math.prod(sizes) // _LINE) * _LINE
    zero = scale + -(-4 * sizes[0] // _LINE) * _LINE
    return scale, zero, zero + 4 * sizes[0]


class QuantisedTensor(torch.Tensor):
    """value = scale (q - zero).

    q: int8[batch, height, width, channels], [batch, length, features] or [batch, features], contiguous; scale:
    float32[batch]; zero: int32[batch]."""

    q: Tensor
    scale: Tensor
    zero: Tensor
    sizes: tuple[int, ...]  # of q
    block: Tensor  # of `lying_in`
    origin: Any = None  # functional.Origin, where a convolution gave this and gradients may be asked for
    taken: bool = False  # a layer made one step of the backward pass of that convolution and itself
    places: Any = None  # native.Maps of the three, once a kernel asked for them (`functional.maps`)

    @staticmethod
    def __new__(cls, q: Tensor, scale: Tensor, zero: Tensor) -> QuantisedTensor:
        made = cls._of(q.shape)
        made.q, made.scale, made.zero = q, scale, zero
        return made

    @classmethod
    def _of(cls, sizes: tuple[int, ...]) -> QuantisedTensor:
        shape, strides = sizes, None
        if len(sizes) == 4:
            batch, height, width, channels = sizes
            row = width * channels
            shape, strides = (batch, channels, height, width), (height * row, 1, row, channels)
        made: QuantisedTensor = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=torch.float32)
        made.sizes = sizes
        return made

    @classmethod
    def lying_in(cls, block: Tensor, sizes: tuple[int, ...]) -> QuantisedTensor:
        """Of one piece of memory, int8 as `places_in` divides it: q, scale and zero, each from a cache line's boundary on.
        The three are made of it once somebody asks: in a prediction mostly nobody does."""
        made = cls._of(sizes)
        made.block = block
        return made

    def __getattr__(self, name: str) -> Tensor:
        """Asked for what is not there (yet)."""
        block: Tensor | None = self.__dict__.get("block")
        if block is None or name not in ("q", "scale", "zero"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        scale_at, zero_at, end = places_in(self.sizes)
        self.q = block[: math.prod(self.sizes)].view(self.sizes)
        self.scale = block[scale_at : scale_at + 4 * self.sizes[0]].view(torch.float32)
        self.zero = block[zero_at:end].view(torch.int32)
        made: Tensor = self.__dict__[name]
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantisedTensor(shape={tuple(self.shape)}, grad_fn={self.grad_fn})"

    def values(self) -> Tensor:
        """The float32 values, without a gradient: [batch, channels, height, width] or [batch, features]. A tensor of its own, no
        view of another one: a layer may change it in place, which autograd forbids with views from a step of ours."""
        from edgegossip.int8 import recording

        recording.note_reading("values")
        wide = (-1, *[1] * (self.q.dim() - 1))
        q = self.q.permute(0, 3, 1, 2) if self.q.dim() == 4 else self.q
        return (q.to(torch.int32) - self.zero.view(wide)).to(torch.float32) * self.scale.view(wide)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _AS_THEY_ARE:
            if name in _ASKING:
                _each((args, kwargs), _whole)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        from edgegossip.int8 import recording
        from edgegossip.int8.dispatch import NATIVE

        native = NATIVE.get(name)
        if native is not None:
            found = native(*args, **kwargs)
            if found is not NotImplemented:
                return found
        in_place = recording.changes_in_place(name)
        if (in_place and args and isinstance(args[0], cls)) or isinstance(kwargs.get("out"), cls):
            instead = "make another one" if name == "__setitem__" else f"use {name.rstrip('_')} and its result"
            raise LocalError(f"{name} changes an int8 tensor in place, which is not possible: {instead}")
        recording.note_reading(name)
        return func(*_plain(args), **_plain(kwargs))

    # x += y may give another object, so it stays possible.
    def __iadd__(self, other: Any) -> Tensor:  # type: ignore[misc]
        return self + other

    def __isub__(self, other: Any) -> Tensor:  # type: ignore[misc]
        return self - other

    def __imul__(self, other: Any) -> Tensor:  # type: ignore[misc]
        return self * other

    def __itruediv__(self, other: Any) -> Tensor:  # type: ignore[misc]
        return self / other

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Below autograd: only its own bookkeeping comes here with int8 tensors."""
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].q, args[0].scale, args[0].zero)
        return func(*_values(args), **_values(kwargs or {}))


def _each(thing: Any, change: Callable[[QuantisedTensor], Tensor]) -> Any:
    if isinstance(thing, QuantisedTensor):
        return change(thing)
    if isinstance(thing, (list, tuple)):
        changed = [_each(item, change) for item in thing]
        return type(thing)(*changed) if hasattr(thing, "_fields") else type(thing)(changed)
    if isinstance(thing, dict):
        return {key: _each(item, change) for key, item in thing.items()}
    return thing


def _whole(x: QuantisedTensor) -> Tensor:
    """x, whose gradient comes by as a whole. Raises LocalError where it no longer does."""
    if x.taken:
        raise LocalError(
            "the norm that took this convolution's result computes both gradients in one step, so this one does not come by: "
            "call retain_grad() or register_hook() before the norm"
        )
    return x


def _plain(thing: Any) -> Any:
    """With float32 tensors, through which gradients flow, in the place of int8 tensors."""
    from edgegossip.int8 import functional

    return _each(thing, functional.dequantise)


def _values(thing: Any) -> Any:
    return _each(thing, QuantisedTensor.values)
