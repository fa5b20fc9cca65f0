"""Integer training: convolutions, Range EvoNorm, additions and pooling of int8 maps, forward and
backward (docs/int8.md).

A batch of maps is `Maps`: q int8[batch * height * width * channels], in that order of dimensions,
and one scale float32 and zero point int32 a sample; the value of q is scale (q - zero). A scale of
NaN marks a sample with values that are not finite. Weights, biases and gradients are float32,
one-dimensional views of [out][in / groups][kernel_h][kernel_w], [out] and
[batch][height][width][channels]. Sums of integers are exact; all results have the same bits on
every instruction set and with any number of threads. Memory that is no array's is a tuple (address,
elements, format, owner); what is written overlaps nothing else (but the output of `relu` may be its
q). `isa`, `threads` and errors as in `edgegossip.native`; ValueError also for an impossible shape.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.native import _native

Floats: TypeAlias = NDArray[np.float32]


class Maps(NamedTuple):
    """int8 maps of a batch, one-dimensional."""

    q: NDArray[np.int8]
    scale: Floats  # float32[batch]
    zero: NDArray[np.int32]  # int32[batch], -128 .. 127

    @classmethod
    def empty(cls, batch: int, size: int) -> Maps:
        """Return room for `batch` samples of `size` values."""
        return cls(np.empty(batch * size, np.int8), np.empty(batch, np.float32), np.empty(batch, np.int32))


class ConvShape(NamedTuple):
    """A convolution without dilation. A linear layer is a 1x1 convolution of 1x1 maps."""

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    groups: int

    @property
    def out_height(self) -> int:
        """Return the rows of an output map."""
        return (self.height + 2 * self.pad_h - self.kernel_h) // self.stride_h + 1

    @property
    def out_width(self) -> int:
        """Return the columns of an output map."""
        return (self.width + 2 * self.pad_w - self.kernel_w) // self.stride_w + 1


class PoolShape(NamedTuple):
    """A pooling layer."""

    batch: int
    height: int
    width: int
    channels: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    out_height: int
    out_width: int


class PadShape(NamedTuple):
    """Maps, and zeros on either side of rows, columns and channels."""

    batch: int
    height: int
    width: int
    channels: int
    above: int
    below: int
    before: int
    after: int
    first: int
    last: int


class SliceShape(NamedTuple):
    """Every `step`th row, column and channel of maps, `count` of them, from the `first` on."""

    height: int
    width: int
    channels: int
    row: int
    row_step: int
    rows: int
    column: int
    column_step: int
    columns: int
    channel: int
    channel_step: int
    taken: int


class NormShape(NamedTuple):
    """Range EvoNorm: `groups` of channels and `chunks` of pixels, divisors of both."""

    batch: int
    pixels: int
    channels: int
    groups: int
    chunks: int


class NormParameters(NamedTuple):
    """float32[channels] each."""

    v: Floats
    gamma: Floats
    beta: Floats


class EmbeddingShape(NamedTuple):
    """Samples of `length` ids each of a table of `rows` rows."""

    batch: int
    length: int
    rows: int
    width: int


class AttentionShape(NamedTuple):
    """Attention of `queries` to `keys` tokens of a sample, by heads of `width` features."""

    batch: int
    queries: int
    keys: int
    heads: int
    width: int


class AttentionPass(NamedTuple):
    """A call of attention, the same forward and backward.

    q [batch][queries][heads][width]; k and v [batch][keys][heads][width]. `seen` uint8: not 0
    where a query sees a key, [mask[0]][mask[1]][mask[2]][keys], the sizes of `mask` being batch,
    heads and queries, or 1 for the same everywhere; None: all. A share `dropped`, 0 to below 1, of
    the probabilities is dropped, and the rest grows. `key`: of dropout and stochastic rounding."""

    shape: AttentionShape
    q: Maps
    k: Maps
    v: Maps
    seen: NDArray[np.uint8] | None
    mask: tuple[int, int, int]
    dropped: float
    key: int


class LayerNormShape(NamedTuple):
    """Range layer norm of samples of `tokens` tokens; `chunks` divides their features."""

    batch: int
    tokens: int
    features: int
    chunks: int


def quantise(x: Floats, batch: int, out: Maps, isa: str | None = None, threads: int | None = None) -> None:
    """Quantise each sample: scale = (max - min) / 255 at least 1e-30, the extremes taken of x and
    0; zero = -128 - min / scale rounded; q = clamp(trunc(x (1 / scale) + (zero + 128.5)), 0, 255) -
    128."""
    _native.int8_quantise(x, batch, *out, isa, threads)


def add(a: Maps, b: Maps, out: Maps, isa: str | None = None, threads: int | None = None) -> None:
    """Compute a + b, quantised anew."""
    _native.int8_add(*a, *b, *out, isa, threads)


def conv(
    shape: ConvShape,
    x: Maps,
    weight: Floats,
    bias: Floats | None,
    out: Maps | Floats,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute y = (sum of (q - zero) w) (scale of x) (scale of w) + bias, quantised anew, or as it
    is into a float32 `out`.

    w is the weight in units of its scale, max |weight| / 127 of the output channel, rounded to
    nearest even."""
    if isinstance(out, Maps):
        _native.int8_conv(shape, *x, weight, bias, *out, None, isa, threads)
    else:
        _native.int8_conv(shape, *x, weight, bias, None, None, None, out, isa, threads)


def conv_backward(
    shape: ConvShape,
    x: Maps,
    weight: Floats,
    g: Floats,
    key: int,
    wide: bool,
    dx: Floats | None,
    dw: Floats | None,
    db: Floats | None,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute the gradients of x, weight and bias (None: not asked for) from g, that of the output.

    dx: g in 8 bits per sample, scale max |g| / 127, rounded stochastically by `key`, times the
    weight quantised by input
    channel. dw: sums of g (q - zero) inside a sample are integers, over samples float32; g is those
    8 bits, or if `wide` 16, scale max |g| / 32512, rounded to nearest even. Where a sample has one
    output pixel, the integer sums run over up to 64 samples, whose gradients, times their scales
    and those of x, get one 16-bit scale. db: float32 sums of g itself."""
    _native.int8_conv_backward(shape, *x, weight, g, key, wide, dx, dw, db, isa, threads)


def evonorm(
    shape: NormShape, y: Maps, by: NormParameters, out: Maps, isa: str | None = None, threads: int | None = None
) -> None:
    """Compute z = gamma y hardsigmoid(v y) / (C R + 1e-5) + beta, quantised anew; C and R as in
    `edgegossip.int8.norms`."""
    _native.int8_evonorm(shape, *y, *by, *out, isa, threads)


def evonorm_backward(
    shape: NormShape,
    y: Maps,
    by: NormParameters,
    g: Floats,
    dy: Floats,
    out: NormParameters,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute the gradients of y and of the parameters from g, that of z, with z a function of the
    quantised y. The gradient of the range goes to each chunk's maximum and minimum, in equal parts
    where several values tie."""
    _native.int8_evonorm_backward(shape, *y, *by, g, dy, *out, isa, threads)


def evonorm_s0(
    shape: NormShape,
    y: Floats,
    by: NormParameters,
    z: Floats,
    moments: Floats,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute z = gamma y sigmoid(v y) / sqrt(var + 1e-5) + beta of float32 maps, var the biased
    variance of a (sample, group). `moments` float32[batch * 2 * groups] is for the backward pass:
    of each sample the groups' means, then their 1 / sqrt(var + 1e-5). The shape's chunks do not
    matter."""
    _native.evonorm_s0(shape, y, *by, z, moments, isa, threads)


def evonorm_s0_backward(
    shape: NormShape,
    y: Floats,
    by: NormParameters,
    moments: Floats,
    g: Floats,
    dy: Floats,
    out: NormParameters,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute the gradients of y and of the parameters from g, that of z."""
    _native.evonorm_s0_backward(shape, y, *by, moments, g, dy, *out, isa, threads)


def conv_evonorm(
    shape: ConvShape,
    x: Maps,
    weight: Floats,
    bias: Floats | None,
    y: Maps,
    norm: NormShape,
    by: NormParameters,
    out: Maps,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute `conv` into y, then `evonorm` of y into `out`, a sample at a time. The same bits as
    one after the other."""
    _native.int8_conv_evonorm(shape, *x, weight, bias, *y, norm, *by, *out, isa, threads)


class ConvPass(NamedTuple):
    """A convolution whose gradients are asked for, as `conv_backward` takes it."""

    shape: ConvShape
    x: Maps
    weight: Floats
    key: int
    wide: bool


def conv_evonorm_backward(
    conv: ConvPass,
    norm: NormShape,
    y: Maps,
    by: NormParameters,
    g: Floats,
    dx: Floats | None,
    dw: Floats | None,
    db: Floats | None,
    out: NormParameters,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute `evonorm_backward`, then `conv_backward` of the convolution that gave y, a sample at
    a time: the gradient between them is never in memory as a whole. The same bits as one after the
    other."""
    _native.int8_conv_evonorm_backward(
        conv.shape, *conv.x, conv.weight, norm, *y, *by, g, conv.key, conv.wide, dx, dw, db, *out, isa, threads
    )


max_pool = _native.int8_max_pool
"""Find the largest q of every window, and the places of the first and of the last such one in
it, row * kernel_w + column; at most 256 places. `tap` uint8[2 * outputs]: all first ones, then
all last ones."""

max_pool_backward = _native.int8_max_pool_backward
"""Send the gradient of every output to the place that it came from, or in equal parts to the
first and the last of several. ValueError for a tap outside the map."""

pad = _native.int8_pad
"""Copy maps with their sample's zero point around them."""

slice_maps = _native.int8_slice
"""Copy the rows, columns and channels of maps that the shape names."""

slice_backward = _native.int8_slice_backward
"""Put the gradient of what was taken in its place, with zeros around it. Pixels of g are
`pitch` floats apart."""

relu = _native.int8_relu
"""Compute the larger of q and its sample's zero point."""

relu_backward = _native.int8_relu_backward
"""Keep the gradient where q, which may be the output of `relu`, is above its sample's zero
point, else 0."""


def average_pool(shape: PoolShape, x: Maps, count_padding: bool, out: Floats, threads: int | None = None) -> None:
    """Compute means over windows, float32; the sums are integers."""
    _native.int8_average_pool(shape, *x, count_padding, out, threads)


average_pool_backward = _native.int8_average_pool_backward
"""Give the gradient of every output, divided as its sum was, to all of its window."""


def embedding(
    shape: EmbeddingShape,
    ids: NDArray[np.int64],
    table: Floats,
    out: Maps,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Look up the rows of `table` that `ids` name, quantised as `quantise` does. ValueError for an
    id that is no row."""
    _native.int8_embedding(shape, ids, table, *out, isa, threads)


def embedding_backward(
    shape: EmbeddingShape,
    ids: NDArray[np.int64],
    g: Floats,
    key: int,
    wide: bool,
    padding: int | None,
    dw: Floats,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute the gradient of the table: sums of g over the places that name a row, integers inside
    a sample, float32 over samples. g in 8 bits, or if `wide` in 16, as in `conv_backward`. The row
    `padding` gets none."""
    _native.int8_embedding_backward(shape, ids, g, key, wide, -1 if padding is None else padding, dw, isa, threads)


def attention(call: AttentionPass, out: Floats, isa: str | None = None, threads: int | None = None) -> None:
    """Compute out = softmax(q k^T / sqrt(width)) v by head, float32 [batch][queries][heads][width].

    Scores are integer sums. A probability is e / (sum of e over the keys), e = 255 exp(score less
    the query's largest) rounded to an integer, 0 for keys that the query does not see; so its sums
    with v are integers, too. A query that sees no key gives 0."""
    shape, q, k, v, seen, mask, dropped, key = call
    _native.int8_attention(shape, (*q, *k, *v), seen, mask, dropped, key, out, isa, threads)


def attention_backward(
    call: AttentionPass,
    g: Floats,
    dq: Floats,
    dk: Floats,
    dv: Floats,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Compute the gradients of q, k and v from g, that of `out`. The scores are computed again.

    Every product takes a gradient in 8 bits, scale max / 127, rounded stochastically: that of the
    probabilities g a sample, that of v g over the query's sum of e, those of q and k the gradient
    of the scores, the last two a sample and head."""
    shape, q, k, v, seen, mask, dropped, key = call
    maps = (*q, *k, *v)
    _native.int8_attention_backward(shape, maps, seen, mask, dropped, key, g, dq, dk, dv, isa, threads)


def layernorm(
    shape: LayerNormShape,
    y: Maps,
    gamma: Floats,
    beta: Floats,
    factor: float,
    epsilon: float,
    out: Maps,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """z = gamma (y - mean) / (factor S + epsilon) + beta by token, quantised anew by sample; S is
    the sum of the ranges of the token's chunks, of equal size and next to one another."""
    _native.int8_layernorm(shape, *y, gamma, beta, factor, epsilon, *out, isa, threads)


def layernorm_backward(
    shape: LayerNormShape,
    y: Maps,
    gamma: Floats,
    factor: float,
    epsilon: float,
    g: Floats,
    dy: Floats,
    dgamma: Floats,
    dbeta: Floats,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Gradients of y, gamma and beta from g, that of z. That of the range goes to each chunk's
    maximum and minimum, in equal parts where several values tie."""
    _native.int8_layernorm_backward(shape, *y, gamma, factor, epsilon, g, dy, dgamma, dbeta, isa, threads)


def gelu(x: Maps, out: Maps, isa: str | None = None, threads: int | None = None) -> None:
    """Compute x Phi(x), a table of 256 entries a sample, quantised anew."""
    _native.int8_gelu(*x, *out, isa, threads)


def gelu_backward(x: Maps, g: Floats, dx: Floats, threads: int | None = None) -> None:
    """Compute dx = g (Phi(x) + x phi(x)), from such a table."""
    _native.int8_gelu_backward(*x, g, dx, threads)
