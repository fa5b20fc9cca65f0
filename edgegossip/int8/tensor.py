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
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from edgegossip.int8 import memory
from edgegossip.native import int8 as native
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
_INT8_FORMS: dict[str, tuple[Callable[..., Any], frozenset[str] | None]] = {}


def implements(*names: str) -> Callable[[_Function], _Function]:
    """Register a function as the int8 form of torch's functions and methods of these names, as in
    PyTorch's "Extending torch".

    It takes the function's own arguments and returns NotImplemented for those that it cannot serve;
    then, and for every other function, the values go through float32."""

    def register(function: _Function) -> _Function:
        parameters = inspect.signature(function).parameters.values()
        named = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        known = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else named
        _INT8_FORMS.update(dict.fromkeys(names, (function, known)))
        return function

    return register


def _int8_form(name: str, keywords: Iterable[str]) -> Callable[..., Any] | None:
    """Find the int8 form of a function called with these keywords, if it knows them all: torch may
    have others."""
    function, known = _INT8_FORMS.get(name, (None, None))
    return function if known is None or known.issuperset(keywords) else None


class Function(torch.autograd.Function):
    """A step of autograd, with the types that torch's own lacks."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any) -> Any:
            """Call `forward`, and have `backward` called for its gradients."""


class Recorder(Protocol):
    """Hears what layers compute, while a predictor is made (`predictor.Tape`)."""

    def record(self, made: Tensor, step: str, inputs: tuple[Tensor, ...], details: tuple[Any, ...]) -> None:
        """Note that `made` is what `step` of `_native.Int8Program` makes of the inputs and the
        details; tensors among these are parameters."""


RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def record(made: Tensor, step: str, inputs: tuple[Tensor, ...], *details: Any) -> None:
    """Tell the recorder, if there is one; see `Recorder.record`."""
    recorder = RECORDER.get()
    if recorder is not None:
        recorder.record(made, step, inputs, details)


def refuse_reading(what: str) -> None:
    """Refuse a look at the values of int8 tensors while a recorder listens: a list of steps does
    not have them. Raises UsageError."""
    if RECORDER.get() is not None:
        raise UsageError(
            f"the model reads float32 values of int8 tensors ({what}); a predictor needs int8 layers alone"
        )


def refuse_recording(what: str) -> None:
    """Refuse what a predictor has no step for, while a recorder listens. Raises UsageError."""
    if RECORDER.get() is not None:
        raise UsageError(f"a predictor has no step for {what}: call the model itself")


def changes_in_place(name: str) -> bool:
    """Tell whether a function of this name does: mul_, which `y *= 2` is called too, or
    __setitem__."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class BlockLayout(NamedTuple):
    """Says how q [*sizes], its scales and zero points share a block of memory, and which float32
    tensor that block stands for."""

    values: int  # of q
    scale: int  # where the scales begin, in bytes
    zero: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@lru_cache(maxsize=1024)  # a model's layers have few sizes
def block_layout(sizes: tuple[int, ...]) -> BlockLayout:
    """Lay out q [*sizes] and what belongs to it, each from a cache line's boundary on."""
    values, batch = math.prod(sizes), sizes[0]
    scale = -(-values // _LINE) * _LINE
    zero = scale + -(-4 * batch // _LINE) * _LINE
    shape, strides = sizes, None
    if len(sizes) == 4:
        _, height, width, channels = sizes
        row = width * channels
        shape, strides = (batch, channels, height, width), (height * row, 1, row, channels)
    return BlockLayout(values, scale, zero, zero + 4 * batch, shape, strides)


class _Part:
    """Makes q, scale or zero of a tensor that lies in one block once somebody asks: then the
    instance has its own, which Python finds before this."""

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
    return block[: block_layout(sizes).values].view(sizes)


def _scale_in(block: Tensor, sizes: tuple[int, ...]) -> Tensor:
    at = block_layout(sizes).scale
    return block[at : at + 4 * sizes[0]].view(torch.float32)


def _zero_in(block: Tensor, sizes: tuple[int, ...]) -> Tensor:
    at = block_layout(sizes)
    return block[at.zero : at.end].view(torch.int32)


class QuantisedTensor(torch.Tensor):
    """Holds value = scale (q - zero), with one scale and zero point a sample.

    Attributes:
        q: int8[batch, height, width, channels], [batch, length, features] or [batch, features],
            contiguous.
        scale: float32[batch].
        zero: int32[batch].

    To torch it has the shape [batch, channels, height, width], or that of q, and float32.
    """

    q: Any = _Part(_q_in)
    scale: Any = _Part(_scale_in)
    zero: Any = _Part(_zero_in)
    sizes: tuple[int, ...]  # of q
    block: Tensor | None = None  # of `from_block`
    producer: Any = None  # functional.Producer, where a convolution gave this and gradients may be asked for
    fused: bool = False  # a layer made one step of the backward pass of that convolution and itself
    kernel_maps: Any = None  # native.Maps of the three, once a kernel asked for them (`maps`)

    @staticmethod
    def __new__(cls, q: Tensor, scale: Tensor, zero: Tensor) -> QuantisedTensor:
        """Make a tensor of its three parts."""
        made = cls._of(q.shape)
        made.q, made.scale, made.zero = q, scale, zero
        return made

    @classmethod
    def _of(cls, sizes: tuple[int, ...]) -> QuantisedTensor:
        like = block_layout(sizes)
        made: QuantisedTensor = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.strides, dtype=torch.float32
        )
        made.sizes = sizes
        return made

    @classmethod
    def from_block(cls, block: Tensor, sizes: tuple[int, ...]) -> QuantisedTensor:
        """Make a tensor of one piece of memory, int8, as `block_layout` divides it. Its q, scale
        and zero are made once somebody asks, which mostly nobody does."""
        made = cls._of(sizes)
        made.block = block
        return made

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Return what keeps the values: the block, or q, scale and zero."""
        return (self.q, self.scale, self.zero) if self.block is None else (self.block,)

    @classmethod
    def of_parts(cls, parts: tuple[Tensor, ...], sizes: tuple[int, ...]) -> QuantisedTensor:
        """Make a tensor of another's `parts`."""
        return cls(*parts) if len(parts) == 3 else cls.from_block(parts[0], sizes)

    def with_q(self, q: Tensor) -> QuantisedTensor:
        """Make a tensor of other values with copies of these scales and zero points: parts of a
        block would keep all of it."""
        return QuantisedTensor(q, self.scale.clone(), self.zero.clone())

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantisedTensor(shape={tuple(self.shape)}, grad_fn={self.grad_fn})"

    def values(self) -> Tensor:
        """Return the float32 values, without a gradient.

        They are a tensor of their own and no view of another one: a layer may change it in place,
        which autograd forbids with views from a step of ours."""
        refuse_reading("values")
        wide = (-1, *[1] * (self.q.dim() - 1))
        q = self.q.permute(0, 3, 1, 2) if self.q.dim() == 4 else self.q
        made: Tensor = q.to(torch.float32)  # the difference of two bytes is exact
        return made.sub_(self.zero.view(wide)).mul_(self.scale.view(wide))

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
        int8_form = _int8_form(name, kwargs)
        if int8_form is not None:
            found = int8_form(*args, **kwargs)
            if found is not NotImplemented:
                return found
        in_place = changes_in_place(name)
        if (in_place and args and isinstance(args[0], cls)) or isinstance(kwargs.get("out"), cls):
            instead = "make another one" if name == "__setitem__" else f"use {name.rstrip('_')} and its result"
            raise UsageError(f"{name} changes an int8 tensor in place, which is not possible: {instead}")
        refuse_reading(name)
        return func(*_plain(args), **_plain(kwargs))

    # x += y may give another object, so it stays possible.
    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]
        return self + other

    def __isub__(self, other: Any) -> Any:  # type: ignore[misc]
        return self - other

    def __imul__(self, other: Any) -> Any:  # type: ignore[misc]
        return self * other

    def __itruediv__(self, other: Any) -> Any:  # type: ignore[misc]
        return self / other

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Below autograd: only its own bookkeeping comes here with int8 tensors."""
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls.of_parts(args[0].parts, args[0].sizes)
        return func(*_values(args), **_values(kwargs or {}))


class _Dequantise(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: QuantisedTensor) -> Tensor:
        return x.values()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]


def dequantise(x: Tensor) -> Tensor:
    """Return the float32 values of an int8 tensor, with its gradient; a plain tensor as it is."""
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
    if x.fused:
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


def quantise(x: Tensor) -> QuantisedTensor:
    """Round x to int8, with a scale and zero point a sample; an int8 tensor stays as it is.

    x is float[batch, channels, height, width], [batch, length, features] or [batch, features] on a
    CPU. Raises UsageError for another one."""
    if isinstance(x, QuantisedTensor):
        return x
    made: QuantisedTensor = _Quantise.apply(x)
    record(made, "quantise", (x,))
    return made


def quantise_maps(x: Tensor) -> QuantisedTensor:
    """Round feature maps x [batch, channels, height, width], as `quantise` does. Raises UsageError
    for another number of dimensions."""
    if isinstance(x, QuantisedTensor) and len(x.sizes) == 4:
        return x
    if x.dim() != 4:
        raise UsageError(f"this int8 layer takes [batch, channels, height, width], not {list(x.shape)}")
    return quantise(x)


# Element types as the kernels name them.
_FORMATS = {torch.float32: "f", torch.int8: "b", torch.uint8: "B", torch.int32: "i", torch.int64: "q"}


def buffer_of(t: Tensor | None) -> Any:
    """Return a tensor's memory (a copy where it has gaps), as the kernels take it: address,
    elements, their format, and who keeps it.

    Raises UsageError for parameters of another type than float32, or elsewhere than in this
    machine's memory."""
    if t is None:
        return None
    form = _FORMATS.get(t.dtype)
    if form is None or not t.is_cpu:
        raise UsageError(
            f"int8 layers compute on a CPU with parameters and gradients of float32, not with {t.dtype} on {t.device}"
        )
    if not t.is_contiguous():
        t = t.detach().contiguous()
    return t.data_ptr(), t.numel(), form, t


def dense_buffer(t: Tensor) -> Any:
    """Return `buffer_of` of memory without gaps, whatever the order of its dimensions."""
    return t.data_ptr(), t.numel(), _FORMATS[t.dtype], t


def maps_in_block(block: Tensor, sizes: tuple[int, ...]) -> native.Maps:
    """Return the buffers in a block of memory as `QuantisedTensor.from_block` takes it."""
    values, scale, zero, *_ = block_layout(sizes)
    at, batch = block.data_ptr(), sizes[0]
    return native.Maps((at, values, "b", block), (at + scale, batch, "f", block), (at + zero, batch, "i", block))  # type: ignore[arg-type]


def maps_of(parts: Sequence[Tensor], sizes: tuple[int, ...]) -> native.Maps:
    """Return the buffers of an int8 tensor's `parts`, which a backward pass gets."""
    return native.Maps(*map(buffer_of, parts)) if len(parts) == 3 else maps_in_block(parts[0], sizes)


def maps(x: QuantisedTensor) -> native.Maps:
    """Return `maps_of` an int8 tensor, worked out once."""
    if x.kernel_maps is None:
        x.kernel_maps = maps_of(x.parts, x.sizes)
    made: native.Maps = x.kernel_maps
    return made


def parts_for(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Make an empty q int8[sizes], scale and zero."""
    return memory.empty(sizes, torch.int8), torch.empty(sizes[0]), torch.empty(sizes[0], dtype=torch.int32)


Allocator: TypeAlias = Callable[[tuple[int, ...]], QuantisedTensor]  # an empty one, whose q has these sizes


def empty_quantised(sizes: tuple[int, ...]) -> QuantisedTensor:
    """Make an empty tensor for what may be saved for a backward pass: q by itself has a quarter of
    its gradient's size, which leaves no gaps where one comes to lie in the other's memory."""
    made = QuantisedTensor(*parts_for(sizes))
    made.kernel_maps = maps_of(made.parts, sizes)
    return made


def empty_in_block(sizes: tuple[int, ...]) -> QuantisedTensor:
    """Make an empty tensor in one piece of memory, with no tensor of each part: for use without a
    backward pass, where small layers take no longer than these tensors."""
    block = memory.empty((block_layout(sizes).end,), torch.int8)
    made = QuantisedTensor.from_block(block, sizes)
    made.kernel_maps = maps_in_block(block, sizes)
    return made


def nhwc(x: Tensor) -> Tensor:
    """Order [batch, channels, height, width] as contiguous [batch, height, width, channels]; no
    copy where channels come last in memory."""
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous()


def buffer_nhwc(x: Tensor) -> Any:
    """Return `buffer_of` x as `nhwc` has it."""
    order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    if x.dtype == torch.float32 and x.is_cpu and x.is_contiguous(memory_format=order):
        return dense_buffer(x)
    return buffer_of(nhwc(x))


def nchw(x: Tensor) -> Tensor:
    """View [batch, height, width, channels] as [batch, channels, height, width]."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def quantise_float(x: Tensor) -> QuantisedTensor:
    """Round a float tensor to int8 without a gradient. Raises as `quantise` does."""
    if not x.numel():
        raise UsageError(f"int8 layers take tensors with values in them, not {list(x.shape)}")
    if x.device.type != "cpu" or not x.is_floating_point() or x.dim() not in (2, 3, 4):
        raise UsageError(
            "int8 layers take floating-point tensors of 2 to 4 dimensions on a CPU, "
            f"not {x.dtype}{list(x.shape)} on {x.device}"
        )
    values = nhwc(x.to(torch.float32))
    made = empty_quantised(tuple(values.shape))
    native.quantise(buffer_of(values), len(values), made.kernel_maps, threads=torch.get_num_threads())
    return made


class _Quantise(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> QuantisedTensor:
        return quantise_float(x)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]
