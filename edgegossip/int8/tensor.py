"""What flows between int8 layers: a tensor that says float32 and holds int8 values with a scale and zero point a sample.

To autograd it is a float32 tensor [batch, channels, height, width], [batch, length, features] or [batch, features], whose
gradient is a plain float32 tensor. Additions, ReLU, slices, zero padding and flattening stay in int8
(`edgegossip.int8.functional`); any other torch function gets the float32 values, so that whatever a model does between layers
still works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgegossip.types import LocalError

# Methods that ask about a tensor or manage its gradient, and touch no values.
_AS_THEY_ARE = frozenset(
    "size dim ndimension numel nelement stride is_floating_point is_complex requires_grad_ register_hook retain_grad backward"
    " __hash__ __len__ detach is_contiguous element_size __get__ __set__ __delete__ is_same_size".split()
)


class QuantisedTensor(torch.Tensor):
    """value = scale (q - zero).

    q: int8[batch, height, width, channels], [batch, length, features] or [batch, features], contiguous; scale:
    float32[batch]; zero: int32[batch]."""

    q: Tensor
    scale: Tensor
    zero: Tensor
    origin: Any = None  # functional.Origin, where a convolution gave this and gradients may be asked for
    places: Any = None  # native.Maps of the three, once a kernel asked for them (`functional.maps`)

    @staticmethod
    def __new__(cls, q: Tensor, scale: Tensor, zero: Tensor) -> QuantisedTensor:
        shape: tuple[int, ...]
        strides: tuple[int, ...]
        if q.dim() == 4:
            batch, height, width, channels = q.shape
            row = width * channels
            shape, strides = (batch, channels, height, width), (height * row, 1, row, channels)
        else:
            shape, strides = tuple(q.shape), tuple(q.stride())
        made: QuantisedTensor = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=torch.float32)
        made.q, made.scale, made.zero = q, scale, zero
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantisedTensor(shape={tuple(self.shape)}, grad_fn={self.grad_fn})"

    def values(self) -> Tensor:
        """The float32 values, without a gradient: [batch, channels, height, width] or [batch, features]."""
        wide = (-1, *[1] * (self.q.dim() - 1))
        plain = (self.q.to(torch.int32) - self.zero.view(wide)).to(torch.float32) * self.scale.view(wide)
        return plain.permute(0, 3, 1, 2) if plain.dim() == 4 else plain

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _AS_THEY_ARE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        from edgegossip.int8.dispatch import NATIVE

        native = NATIVE.get(name)
        if native is not None:
            found = native(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], cls):
            raise LocalError(
                f"{name} changes an int8 tensor in place, which is not possible: use {name.rstrip('_')} and its result"
            )
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


def _plain(thing: Any) -> Any:
    """With float32 tensors, through which gradients flow, in the place of int8 tensors."""
    from edgegossip.int8 import functional

    return _each(thing, functional.dequantise)


def _values(thing: Any) -> Any:
    return _each(thing, QuantisedTensor.values)
