"""Embedding tables: rows of a float32 table as int8 samples. A lookup has no products, so no weight
is rounded before.

Sequences [batch, length, features] are int8 tensors, too, with one scale a sample; a linear layer
takes them as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgegossip.int8.functional import draw_key, flat, fresh
from edgegossip.int8.tensor import QuantisedTensor, dequantise
from edgegossip.native import int8 as native
from edgegossip.types import UsageError


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, wide: bool, key: int) -> QuantisedTensor:
        length = ids.shape[1] if ids.dim() == 2 else 1
        ctx.shape = native.EmbeddingShape(len(ids), length, *weight.shape)
        ctx.save_for_backward(ids)
        ctx.padding, ctx.wide, ctx.key = padding, wide, key
        made = fresh((*ids.shape, weight.shape[1]))
        native.embedding(ctx.shape, flat(ids), flat(weight), made.places, threads=torch.get_num_threads())
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        dw = torch.empty(ctx.shape.rows, ctx.shape.width)
        native.embedding_backward(
            ctx.shape,
            flat(ids),
            flat(g),
            ctx.key,
            ctx.wide,
            ctx.padding,
            flat(dw),
            threads=torch.get_num_threads(),
        )
        return None, dw, None, None, None


def embedding(ids: Tensor, weight: Tensor, padding: int | None = None, dw: int = 16) -> Tensor:
    """Rows of weight [rows, features] by ids: [batch] or [batch, length] in int8, a scale for each
    first index; other ids [...] give plain float32 [..., features]. The row `padding` gets no
    gradient. Raises UsageError for an id that is no row."""
    plain = ids.to(torch.int64)
    if plain.numel() == 0:
        return torch.nn.functional.embedding(plain, weight, padding)
    if int(plain.min()) < 0 or int(plain.max()) >= len(weight):
        raise UsageError(
            f"ids from {int(plain.min())} to {int(plain.max())}: the embedding has rows 0 to {len(weight) - 1}"
        )
    key = draw_key() if torch.is_grad_enabled() else 0
    if plain.dim() in (1, 2):
        made: Tensor = _Embedding.apply(plain.contiguous(), weight, padding, dw == 16, key)
        return made
    rows = _Embedding.apply(plain.reshape(len(plain) if plain.dim() else 1, -1), weight, padding, dw == 16, key)
    return dequantise(rows).reshape(*ids.shape, weight.shape[1])
