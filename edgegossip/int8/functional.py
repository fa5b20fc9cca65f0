"""The int8 layers as functions with gradients. Inputs may be plain float32 tensors, which are then
quantised. Flattening, slicing and zero padding change no value, so neither do scales and zero
points.

Every gradient passes through quantisers as if they were not there (straight-through estimator).
Saved for the backward pass are int8 tensors, a scale and zero point a sample, and references to the
weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from edgegossip.int8 import memory
from edgegossip.int8.tensor import QuantisedTensor, dequantise, division_of, implements, note, note_without_step
from edgegossip.native import int8 as native
from edgegossip.types import UsageError

Pair = tuple[int, int]
_KEY_BITS = 63


def quantise(x: Tensor) -> QuantisedTensor:
    """x float[batch, channels, height, width], [batch, length, features] or [batch, features] in
    int8, with a scale and zero point a sample."""
    if isinstance(x, QuantisedTensor):
        return x
    made: QuantisedTensor = _Quantise.apply(x)
    note(made, "quantise", (x,))
    return made


def quantise_maps(x: Tensor) -> QuantisedTensor:
    """x [batch, channels, height, width]. Raises UsageError for another number of dimensions."""
    if isinstance(x, QuantisedTensor) and len(x.sizes) == 4:
        return x
    if x.dim() != 4:
        raise UsageError(f"this int8 layer takes [batch, channels, height, width], not {list(x.shape)}")
    return quantise(x)


# Element types as the kernels name them.
_FORMATS = {torch.float32: "f", torch.int8: "b", torch.uint8: "B", torch.int32: "i", torch.int64: "q"}


def flat(t: Tensor | None) -> Any:
    """A tensor's memory (a copy where it has gaps), as the kernels take it: address, elements,
    their format, and who keeps it. Raises UsageError for parameters of another type than float32,
    or elsewhere than in this machine's memory."""
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


def place_of(t: Tensor) -> Any:
    """`flat` of memory without gaps, whatever the order of its dimensions."""
    return t.data_ptr(), t.numel(), _FORMATS[t.dtype], t


def maps_in(block: Tensor, sizes: tuple[int, ...]) -> native.Maps:
    """Of a block of memory as `QuantisedTensor.lying_in` takes it."""
    values, scale, zero, *_ = division_of(sizes)
    at, batch = block.data_ptr(), sizes[0]
    return native.Maps((at, values, "b", block), (at + scale, batch, "f", block), (at + zero, batch, "i", block))  # type: ignore[arg-type]


def maps_of(parts: Sequence[Tensor], sizes: tuple[int, ...]) -> native.Maps:
    """Of an int8 tensor's `parts`, which a backward pass gets."""
    return native.Maps(*map(flat, parts)) if len(parts) == 3 else maps_in(parts[0], sizes)


def maps(x: QuantisedTensor) -> native.Maps:
    """`maps_of` an int8 tensor, worked out once."""
    if x.places is None:
        x.places = maps_of(x.parts, x.sizes)
    made: native.Maps = x.places
    return made


def parts_for(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Empty q int8[sizes], scale and zero."""
    return memory.empty(sizes, torch.int8), torch.empty(sizes[0]), torch.empty(sizes[0], dtype=torch.int32)


Fresh: TypeAlias = Callable[[tuple[int, ...]], QuantisedTensor]  # an empty one, whose q has these sizes


def fresh(sizes: tuple[int, ...]) -> QuantisedTensor:
    """For what may be saved for a backward pass: q by itself has a quarter of its gradient's size,
    which leaves no gaps where one comes to lie in the other's memory."""
    made = QuantisedTensor(*parts_for(sizes))
    made.places = maps_of(made.parts, sizes)
    return made


def fresh_in_one(sizes: tuple[int, ...]) -> QuantisedTensor:
    """In one piece of memory, with no tensor of each part. Without a backward pass, where small
    layers take no longer than these tensors."""
    block = memory.empty((division_of(sizes).end,), torch.int8)
    made = QuantisedTensor.lying_in(block, sizes)
    made.places = maps_in(block, sizes)
    return made


def nhwc(x: Tensor) -> Tensor:
    """[batch, channels, height, width] -> contiguous [batch, height, width, channels]; no copy
    where channels come last."""
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous()


def place_of_maps(x: Tensor) -> Any:
    """`flat` of x as `nhwc` has it."""
    order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    if x.dtype == torch.float32 and x.is_cpu and x.is_contiguous(memory_format=order):
        return place_of(x)
    return flat(nhwc(x))


def nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def draw_key() -> int:
    """Key of one stochastic rounding, from torch's random state."""
    return int(torch.randint(0, 2**_KEY_BITS - 1, ()))


def keep_in_step(training: bool) -> None:
    """Draws the key that a layer has no use for, in a pass of training without gradients: torch's
    reentrant checkpoints make such a pass and then a second one with gradients, whose other draws
    (dropout) have to be the same."""
    if training and not torch.is_grad_enabled():
        draw_key()


def _quantised(x: Tensor) -> QuantisedTensor:
    if not x.numel():
        raise UsageError(f"int8 layers take tensors with values in them, not {list(x.shape)}")
    if x.device.type != "cpu" or not x.is_floating_point() or x.dim() not in (2, 3, 4):
        raise UsageError(
            "int8 layers take floating-point tensors of 2 to 4 dimensions on a CPU, "
            f"not {x.dtype}{list(x.shape)} on {x.device}"
        )
    values = nhwc(x.to(torch.float32))
    made = fresh(tuple(values.shape))
    native.quantise(flat(values), len(values), made.places, threads=torch.get_num_threads())
    return made


class _Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> QuantisedTensor:
        return _quantised(x)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]


class Way(NamedTuple):
    """How a convolution is done. In one piece: autograd looks at every argument of a function."""

    shape: native.ConvShape
    wide: bool  # gradients of 16 bits for the weights'
    key: int  # of stochastic rounding


class Origin(NamedTuple):
    """The convolution that gave an int8 tensor: what the layer after it needs to take the backward
    pass over (`fused`)."""

    x: QuantisedTensor
    weight: Tensor
    bias: Tensor | None
    way: Way


@lru_cache(maxsize=1024)
def output_sizes(shape: native.ConvShape) -> tuple[int, int, int, int]:
    """Of q."""
    return shape.batch, shape.out_height, shape.out_width, shape.outputs


def _convolved(
    x: QuantisedTensor, weight: Tensor, bias: Tensor | None, shape: native.ConvShape, into: Fresh = fresh
) -> QuantisedTensor:
    made = into(output_sizes(shape))
    native.conv(shape, maps(x), flat(weight), flat(bias), made.places, threads=torch.get_num_threads())
    return made


def _product(x: QuantisedTensor, weight: Tensor, bias: Tensor | None, shape: native.ConvShape) -> Tensor:
    values = memory.empty((*x.sizes[:-1], shape.outputs))
    native.conv(shape, maps(x), flat(weight), flat(bias), place_of(values), threads=torch.get_num_threads())
    return values


class _Conv(torch.autograd.Function):
    """`as_values`: the result is a plain float32 tensor (linear layers), else an int8 tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        x: QuantisedTensor,
        weight: Tensor,
        bias: Tensor | None,
        way: Way,
        as_values: bool,
    ) -> Tensor:
        ctx.save_for_backward(*x.parts, weight)
        ctx.way, ctx.sizes, ctx.has_bias = way, x.sizes, bias is not None
        return (_product if as_values else _convolved)(x, weight, bias, way.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *parts, weight = ctx.saved_tensors
        shape, wide, key = ctx.way
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        dx = memory.empty_nchw(ctx.sizes) if of_x else None
        dw = memory.empty(tuple(weight.shape)) if of_weight else None
        db = torch.empty(shape.outputs) if of_bias and ctx.has_bias else None
        native.conv_backward(
            shape,
            maps_of(parts, ctx.sizes),
            flat(weight),
            place_of_maps(g),
            key,
            wide,
            None if dx is None else place_of(dx),
            flat(dw),
            flat(db),
            threads=torch.get_num_threads(),
        )
        return dx, dw, db, None, None


@lru_cache(maxsize=1024)
def conv_shape(
    maps: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair, groups: int
) -> native.ConvShape:
    batch, height, width, inputs = maps
    outputs, _, kernel_h, kernel_w = weight
    if inputs != weight[1] * groups:
        raise UsageError(f"this int8 convolution takes {weight[1] * groups} channels, not {inputs}")
    if height + 2 * padding[0] < kernel_h or width + 2 * padding[1] < kernel_w:
        raise UsageError(f"a map of {height} x {width} is smaller than the kernel of {kernel_h} x {kernel_w}")
    return native.ConvShape(batch, height, width, inputs, outputs, kernel_h, kernel_w, *stride, *padding, groups)


class Convolution(NamedTuple):
    """What a convolutional layer has, in the order in which `conv2d` takes it."""

    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    groups: int
    dw: int


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, groups: int, dw: int = 16
) -> Tensor:
    """Convolution of x [batch, in, height, width] by weight [out, in / groups, kernel_h, kernel_w].
    See `native.int8.conv`."""
    x = quantise_maps(x)
    shape = conv_shape(x.sizes, weight.shape, stride, padding, groups)
    if not torch.is_grad_enabled():
        made = _convolved(x, weight, bias, shape, fresh_in_one)
        note(made, "conv", (x,), shape, weight, bias, False)
        return made
    way = Way(shape, dw == 16, draw_key())
    y: QuantisedTensor = _Conv.apply(x, weight, bias, way, False)
    y.origin = Origin(x, weight, bias, way)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dw: int = 16) -> Tensor:
    """Multiply x [..., in] by weight [out, in]; the result is a plain float32 tensor [..., out].

    A sample is x[0] of [batch, in] or [batch, length, in]; of other shapes each row is one."""
    rows = quantise(x if x.dim() in (2, 3) else dequantise(x).reshape(-1, x.shape[-1]))
    batch, length, features = rows.sizes if len(rows.sizes) == 3 else (rows.sizes[0], 1, rows.sizes[1])
    if features != weight.shape[1]:
        raise UsageError(f"this int8 layer takes {weight.shape[1]} features, not {features}")
    shape = native.ConvShape(batch, 1, length, features, weight.shape[0], 1, 1, 1, 1, 0, 0, 1)
    if torch.is_grad_enabled():
        y: Tensor = _Conv.apply(rows, weight, bias, Way(shape, dw == 16, draw_key()), True)
    else:
        y = _product(rows, weight, bias, shape)
        note(y, "conv", (rows,), shape, weight, bias, True)
    return y if x.dim() in (2, 3) else y.reshape(*x.shape[:-1], weight.shape[0])


def _sum(a: QuantisedTensor, b: QuantisedTensor, into: Fresh = fresh) -> QuantisedTensor:
    made = into(a.sizes)
    native.add(maps(a), maps(b), made.places, threads=torch.get_num_threads())
    return made


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, a: QuantisedTensor, b: QuantisedTensor) -> QuantisedTensor:
        return _sum(a, b)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


@implements("add", "__add__", "__radd__", "__iadd__")
def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + other of two int8 tensors of one shape; anything else is not for int8."""
    a, b = input, other
    both = isinstance(a, QuantisedTensor) and isinstance(b, QuantisedTensor)
    if not both or alpha != 1 or a.sizes != b.sizes:
        return NotImplemented
    if torch.is_grad_enabled():
        return _Add.apply(a, b)
    made = _sum(a, b, fresh_in_one)
    note(made, "add", (a, b))
    return made


class _ReLU(torch.autograd.Function):
    """Of int8 or float32, which is quantised first: one step, as small layers take no longer than
    two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> QuantisedTensor:
        if isinstance(x, QuantisedTensor):
            made = x.with_q(memory.empty(x.sizes, torch.int8))
            q = x.q
        else:
            made = _quantised(x)
            q = made.q
        native.relu(place_of(q), place_of(made.zero), place_of(made.q), threads=torch.get_num_threads())
        ctx.save_for_backward(made.q, made.zero)
        ctx.sizes = made.sizes
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        q, zero = ctx.saved_tensors
        dx = memory.empty_nchw(ctx.sizes)
        native.relu_backward(flat(q), flat(zero), place_of_maps(g), place_of(dx), threads=torch.get_num_threads())
        return dx


@implements("relu")
def relu(input: Any, inplace: bool = False) -> Any:
    """max(x, 0). Values that the quantiser made 0 count as not positive. `inplace` is taken and
    changes nothing."""
    if torch.is_grad_enabled():
        both: QuantisedTensor = _ReLU.apply(input)
        return both
    x = quantise(input)
    made = _ReLU.apply(x)
    note(made, "relu", (x,))
    return made


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.save_for_backward(*x.parts)
        ctx.sizes = x.sizes
        made = fresh(x.sizes)
        native.gelu(maps(x), made.places, threads=torch.get_num_threads())
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dx = memory.empty_nchw(ctx.sizes)
        x = maps_of(ctx.saved_tensors, ctx.sizes)
        native.gelu_backward(x, place_of_maps(g), place_of(dx), threads=torch.get_num_threads())
        return dx


@implements("gelu")
def gelu(input: Any, *, approximate: str = "none") -> Any:
    """x Phi(x) of int8, or of float32 that is quantised first: a table of 256 entries a sample."""
    if approximate != "none":
        return NotImplemented
    note_without_step("GELU")
    made: QuantisedTensor = _Gelu.apply(quantise(input))
    return made


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: QuantisedTensor) -> QuantisedTensor:
        ctx.shape = tuple(x.shape)
        return x.with_q(nchw(x.q).reshape(len(x.q), -1).contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].reshape(ctx.shape)


@implements("flatten")
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
    """g [batch, height, width, channels] as a kernel takes it whose pixels may lie apart: how far,
    in floats, and where."""
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


@implements("__getitem__")
def getitem(x: Any, index: Any) -> Any:
    """x[:, :, ::2, ::2] and other slices of [batch, channels, height, width]; any other index is
    not for int8."""
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


@implements("view", "reshape")
def reshape(input: Any, *shape: Any) -> Any:
    """x.view(batch, -1) and x.reshape(batch, -1), as `flatten`; any other shape is not for int8."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not isinstance(input, QuantisedTensor) or len(sizes) != 2:
        return NotImplemented
    batch = len(input)
    if sizes[0] not in (batch, -1) or sizes[1] not in (input.numel() // max(batch, 1), -1) or sizes == (-1, -1):
        return NotImplemented
    return flatten(input, 1)


@implements("contiguous")
def as_it_is(input: Any, *_: Any, **__: Any) -> Any:
    """`contiguous`: every int8 tensor is."""
    return input if isinstance(input, QuantisedTensor) else NotImplemented


@implements("dropout", "dropout1d", "dropout2d")
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Nothing in eval mode, or of a share of 0; else not for int8."""
    return NotImplemented if (training and p > 0) or not isinstance(input, QuantisedTensor) else input


@implements("pad")
def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """`torch.nn.functional.pad` of channels, rows and columns with zeros; anything else is not for
    int8."""
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
