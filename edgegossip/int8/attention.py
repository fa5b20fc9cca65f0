"""Scaled dot-product attention of int8 samples, and torch's transformer layers around it.

    q, k, v   int8, a scale and zero point a sample
    scores    sums of integers, (q - zero) (k - zero), times their scales and 1 / sqrt(width)
    e         255 exp(score - the query's largest), rounded to an integer; 0 for a key that is
              hidden
    output    (sum over keys of e v) / (sum over keys of e): integers above and below

So a probability needs no scale of its own, and those of a query sum to 1 exactly. Kept for the
backward pass are q, k and v alone; scores are computed again. `DotProductAttention` is the same in
float32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override

from edgegossip.int8 import memory
from edgegossip.int8.functional import draw_key
from edgegossip.int8.tensor import (
    Function,
    QuantisedTensor,
    buffer_of,
    dense_buffer,
    dequantise,
    maps_of,
    quantise,
    refuse_recording,
)
from edgegossip.native import int8 as native
from edgegossip.types import UsageError


class DotProductAttention(nn.Module):
    """Gives softmax(q k^T / sqrt(width)) v by head: attention without its linear layers.

    q float[batch, queries, heads * width], k and v float[batch, keys, heads * width]; `attn_mask`:
    True where a query sees a key, see `mask_of`. In training mode a share `dropout` of the
    probabilities is dropped. A query that sees no key gives zeros.

        y = DotProductAttention(heads=4)(q, k, v, ids != 0)
    """

    def __init__(self, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout

    @override
    def extra_repr(self) -> str:
        return f"heads={self.heads}, dropout={self.dropout}"

    @override
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        a, b, c = (torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        mask = None if attn_mask is None else mask_of(attn_mask)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(a, b, c, attn_mask=mask, dropout_p=dropout)
        if mask is not None:
            y = y.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        return y.transpose(1, 2).flatten(2)


def mask_of(attn_mask: Tensor) -> Tensor:
    """Bring bool[batch, keys], True for the keys that all queries see, to the form [batch, heads,
    queries, keys], in which a 1 stands for the same everywhere; another mask has that form already.
    Raises UsageError for others."""
    if attn_mask.dtype != torch.bool or attn_mask.dim() not in (2, 4):
        raise UsageError(
            "attention takes a mask bool[batch, keys] or bool[batch, heads, queries, keys], True where "
            f"a query sees a key, not {attn_mask.dtype}{list(attn_mask.shape)}"
        )
    return attn_mask[:, None, None, :] if attn_mask.dim() == 2 else attn_mask


class _Call(NamedTuple):
    """Holds what is the same in both passes. In one piece: autograd looks at every argument."""

    shape: native.AttentionShape
    attn_mask: Tensor | None  # uint8
    mask_sizes: tuple[int, int, int]
    dropped: float
    key: int

    def of(self, parts: tuple[Tensor, ...], sizes: tuple[tuple[int, ...], ...]) -> native.AttentionPass:
        """As the kernels take it, of the parts of q, k and v."""
        each = len(parts) // 3
        q, k, v = (maps_of(parts[n * each : (n + 1) * each], sizes[n]) for n in range(3))
        return native.AttentionPass(
            self.shape, q, k, v, buffer_of(self.attn_mask), self.mask_sizes, self.dropped, self.key
        )


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: QuantisedTensor, k: QuantisedTensor, v: QuantisedTensor, call: _Call) -> Tensor:
        parts = tuple(part for x in (q, k, v) for part in (x.q, x.scale, x.zero))
        ctx.call, ctx.sizes = call, (q.sizes, k.sizes, v.sizes)
        ctx.save_for_backward(*parts)
        out = memory.empty(q.sizes)
        native.attention(call.of(parts, ctx.sizes), dense_buffer(out), threads=torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        call = ctx.call.of(ctx.saved_tensors, ctx.sizes)
        dq, dk, dv = (memory.empty(sizes) for sizes in ctx.sizes)
        native.attention_backward(
            call, buffer_of(g), dense_buffer(dq), dense_buffer(dk), dense_buffer(dv), threads=torch.get_num_threads()
        )
        return dq, dk, dv, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, heads: int, attn_mask: Tensor | None = None, dropped: float = 0.0
) -> Tensor:
    """Compute `DotProductAttention` of int8 or float32, as float32. Raises UsageError for shapes
    that do not fit."""
    refuse_recording("attention")
    x, y, z = (quantise(t) for t in (q, k, v))
    fits = x.dim() == y.dim() == 3 and y.shape == z.shape and len(x) == len(y) and x.shape[2] == y.shape[2]
    if not fits or x.shape[2] % heads:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k, v))
        raise UsageError(
            "attention takes q [batch, queries, features], k and v [batch, keys, features] with "
            f"features that its {heads} heads divide, not {shapes}"
        )
    batch, queries, features = x.shape
    keys, mask_sizes = y.shape[1], (1, 1, 1)
    if attn_mask is not None:
        attn_mask = mask_of(attn_mask)
        mask_sizes = (int(attn_mask.shape[0]), int(attn_mask.shape[1]), int(attn_mask.shape[2]))
        whole = (batch, heads, queries)
        if attn_mask.shape[3] != keys or any(m not in (1, w) for m, w in zip(mask_sizes, whole, strict=True)):
            raise UsageError(
                f"this attention takes a mask that fits [{batch}, {heads}, {queries}, {keys}], not {list(attn_mask.shape)}"
            )
        attn_mask = attn_mask.to(torch.uint8).contiguous()
    shape = native.AttentionShape(batch, queries, keys, heads, features // heads)
    key = draw_key() if torch.is_grad_enabled() or dropped else 0
    made: Tensor = _Attention.apply(x, y, z, _Call(shape, attn_mask, mask_sizes, dropped, key))
    return made


def invert_mask(hidden: Tensor | None, what: str) -> Tensor | None:
    """Turn a mask of torch's transformer layers (True, or minus infinity, where a key is hidden) to
    True where it is seen. Raises UsageError for one that adds something else to scores."""
    if hidden is None:
        return None
    if hidden.dtype == torch.bool:
        return ~hidden
    seen = hidden == 0
    if not bool((seen | (hidden == -math.inf)).all()):
        raise UsageError(
            f"int8 attention takes a {what} of 0 and minus infinity, or of bool: other numbers that "
            "are added to scores have no int8 form"
        )
    return seen


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """Does as torch's without its fast path, which computes with the float32 weights of its layers
    and does not call them."""

    @override
    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal=is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
        made: Tensor = self.norm2(x + self._ff_block(x))
        return made


class TransformerEncoder(nn.TransformerEncoder):
    """Does as torch's without nested tensors."""

    @override
    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(
                x,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal),
            )
        return x if self.norm is None else self.norm(x)


def call_layers(model: nn.Module) -> None:
    """Have every encoder of torch's call its layers from now on, whatever it could do instead."""
    for module in model.modules():
        for kind, ours in (
            (nn.TransformerEncoderLayer, TransformerEncoderLayer),
            (nn.TransformerEncoder, TransformerEncoder),
        ):
            if type(module) is kind:
                module.__class__ = ours


def weights_of(q: Tensor, k: Tensor, heads: int, attn_mask: Tensor | None) -> Tensor:
    """Return the probabilities in float32 [batch, heads, queries, keys], for who asks for them
    beside the result."""
    a, b = (torch.unflatten(dequantise(x), -1, (heads, -1)).transpose(1, 2) for x in (q, k))
    scores = a @ b.transpose(2, 3) / math.sqrt(a.shape[3])
    if attn_mask is not None:
        scores = scores.masked_fill(~mask_of(attn_mask), -math.inf)
    return torch.nan_to_num(scores.softmax(-1))
