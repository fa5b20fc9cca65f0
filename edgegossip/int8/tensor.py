"""What flows between int8 layers: a tensor that says float32 and holds int8 values with a scale and
zero point a sample.

To autograd it is a float32 tensor [batch, channels, height, width], [batch, length, features] or
[batch, features], whose gradient is a plain float32 tensor. Additions, ReLU, slices, zero padding
and flattening stay in int8 (what `functional` registers with `implements`); any other torch
function gets the float32 values, so that whatever a model does between layers still works.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from edgegossip.types import UsageError

# Methods that ask about a tensor or manage its gradient, and touch no values.
_AS_THEY_ARE = frozenset(
    [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "is_floating_point",
        "is_complex",
        "requires_grad_",
        "register_hook",
        "retain_grad",
        "backward",
        "grad",
        "__hash__",
        "__len__",
        "detach",
        "is_contiguous",
        "element_size",
        "__get__",
        "__set__",
        "__delete__",
        "is_same_size",
    ]
)

# Those that ask for the gradient of a tensor itself.
_ASKING = frozenset(("register_hook", "retain_grad", "grad"))

_LINE = 64  # bytes

_Function = TypeVar("_Function", bound=Callable[..., Any])
# By the name of a torch function: its int8 form, and the keywords that this one knows; None where
# it takes any.
_NATIVE: dict[str, tuple[Callable[..., Any], frozenset[str] | None]] = {}


def implements(*names: str) -> Callable[[_Function], _Function]:
    """Register a function as the int8 form of torch's functions and methods of these names, as in
    PyTorch's "Extending torch".

    It takes the function's own arguments and returns NotImplemented for those that it cannot serve;
    then, and for every other function, the values go through float32."""

    def register(function: _Function) -> _Function:
        parameters = inspect.signature(function).parameters.values()
        named = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        known = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else named
        _NATIVE.update(dict.fromkeys(names, (function, known)))
        return function

    return register


def _native_form(name: str, keywords: Iterable[str]) -> Callable[..., Any] | None:
    """Find the int8 form of a function called with these keywords, if it knows them all: torch may
    have others."""
    function, known = _NATIVE.get(name, (None, None))
    return function if known is None or known.issuperset(keywords) else None


class Recorder(Protocol):
    """Who is told what layers compute, while a predictor is made (`predictor.Tape`)."""

    def note(self, made: Tensor, step: str, inputs: tuple[Tensor, ...], details: tuple[Any, ...]) -> None: ...


RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def note(made: Tensor, step: str, inputs: tuple[Tensor, ...], *details: Any) -> None:
    """Tell the recorder, if there is one, that `made` is what `step` of `_native.Int8Program` makes
    of the inputs and the details; tensors among these are parameters."""
    recorder = RECORDER.get()
    if recorder is not None:
        recorder.note(made, step, inputs, details)


def note_reading(what: str) -> None:
    """Refuse that somebody looks at the values of int8 tensors while a recorder listens: a list of
    steps does not have them."""
    if RECORDER.get() is not None:
        raise UsageError(
            f"the model reads float32 values of int8 tensors ({what}); a predictor needs int8 layers alone"
        )


def note_without_step(what: str) -> None:
    """Refuse what a predictor has no step for, while a recorder listens."""
    if RECORDER.get() is not None:
        raise UsageError(f"a predictor has no step for {what}: call the model itself")


def changes_in_place(name: str) -> bool:
    """Whether a function of this name does: mul_, which `y *= 2` is called too, or __setitem__."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Division(NamedTuple):
    """A block of memory that q [*sizes], its scales and zero points share, and the float32 tensor
    that it stands for."""

    values: int  # of q
    scale: int  # where the scales begin, in bytes
    zero: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@lru_cache(maxsize=1024)  # a model's layers have few sizes
def division_of(sizes: tuple[int, ...]) -> Division:
    values, batch = math.prod(sizes), sizes[0]
    scale = -(-values // _LINE) * _LINE
    zero = scale + -(-4 * batch // _LINE) * _LINE
    shape, strides = sizes, None
    if len(sizes) == 4:
        _, height, width, channels = sizes
        row = width * channels
        shape, strides = (batch, channels, height, width), (height * row, 1, row, channels)
    return Division(values, scale, zero, zero + 4 * batch, shape, strides)


class _Part:
    """One of q, scale and zero of a tensor that lies in one block, made once somebody asks: then
    the instance has its own, which Python finds before this."""

    def __init__(self, find: Callable[[Tensor, tuple[int, ...]], Tensor]) -> None:
        self._find = find

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, x: Any, owner: type) -> Any:
        if x is None:
            return self
        made = x.__dict__[self._name] = self._find(x.block, x.sizes)
        return made


def _q_in(block: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return block[: division_of(sizes).values].view(sizes)


def _scale_in(block: Tensor, sizes: tuple[int, ...]) -> Tensor:
    at = division_of(sizes).scale
    return block[at : at + 4 * sizes[0]].view(torch.float32)


def _zero_in(block: Tensor, sizes: tuple[int, ...]) -> Tensor:
    at = division_of(sizes)
    return block[at.zero : at.end].view(torch.int32)


class QuantisedTensor(torch.Tensor):
    """value = scale (q - zero).

    q: int8[batch, height, width, channels], [batch, length, features] or [batch, features],
    contiguous; scale: float32[batch]; zero: int32[batch]."""

    q: Any = _Part(_q_in)
    scale: Any = _Part(_scale_in)
    zero: Any = _Part(_zero_in)
    sizes: tuple[int, ...]  # of q
    block: Tensor | None = None  # of `lying_in`
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
        like = division_of(sizes)
        made: QuantisedTensor = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.strides, dtype=torch.float32
        )
        made.sizes = sizes
        return made

    @classmethod
    def lying_in(cls, block: Tensor, sizes: tuple[int, ...]) -> QuantisedTensor:
        """Of one piece of memory, int8 as `division_of` divides it: q, scale and zero, each from a
        cache line's boundary on. The three are made of it once somebody asks, which mostly nobody
        does."""
        made = cls._of(sizes)
        made.block = block
        return made

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What keeps the values: the block, or q, scale and zero."""
        return (self.q, self.scale, self.zero) if self.block is None else (self.block,)

    @classmethod
    def of_parts(cls, parts: tuple[Tensor, ...], sizes: tuple[int, ...]) -> QuantisedTensor:
        return cls(*parts) if len(parts) == 3 else cls.lying_in(parts[0], sizes)

    def with_q(self, q: Tensor) -> QuantisedTensor:
        """Other values with these scales and zero points, as their own: parts of a block would keep
        all of it."""
        return QuantisedTensor(q, self.scale.clone(), self.zero.clone())

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantisedTensor(shape={tuple(self.shape)}, grad_fn={self.grad_fn})"

    def values(self) -> Tensor:
        """The float32 values, without a gradient: [batch, channels, height, width] or [batch,
        features]. A tensor of its own, no view of another one: a layer may change it in place,
        which autograd forbids with views from a step of ours."""
        note_reading("values")
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
            elif name == "backward":
                _each(kwargs.get("inputs"), _whole)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        native = _native_form(name, kwargs)
        if native is not None:
            found = native(*args, **kwargs)
            if found is not NotImplemented:
                return found
        in_place = changes_in_place(name)
        if (in_place and args and isinstance(args[0], cls)) or isinstance(kwargs.get("out"), cls):
            instead = "make another one" if name == "__setitem__" else f"use {name.rstrip('_')} and its result"
            raise UsageError(f"{name} changes an int8 tensor in place, which is not possible: {instead}")
        note_reading(name)
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
            return cls.of_parts(args[0].parts, args[0].sizes)
        return func(*_values(args), **_values(kwargs or {}))


class _Dequantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: QuantisedTensor) -> Tensor:
        return x.values()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]


def dequantise(x: Tensor) -> Tensor:
    """Give the float32 values of an int8 tensor, with its gradient; a plain tensor as it is."""
    return _Dequantise.apply(x) if isinstance(x, QuantisedTensor) else x


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
    """x, whose gradient comes by as a whole. Raises UsageError where it no longer does."""
    if x.taken:
        raise UsageError(
            "the norm that took this convolution's result computes both gradients in one step, so this one does not come by: "
            "call retain_grad() or register_hook() before the norm"
        )
    return x


def _plain(thing: Any) -> Any:
    """With float32 tensors, through which gradients flow, in the place of int8 tensors."""
    return _each(thing, dequantise)


def _values(thing: Any) -> Any:
    return _each(thing, QuantisedTensor.values)
