"""What all rivals are, and packing of small codes into bytes."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from edgegossip.layout import Layout

Parts: TypeAlias = tuple[Tensor, ...]  # what would be sent of one tensor


class TorchCodec(Protocol):
    """One codec on single tensors. What it remembers of tensor k (its index in the model) it keeps
    itself."""

    def encode(self, v: Tensor, k: int) -> Parts:
        """Of float32 v of any shape."""

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        """float32 of this shape."""


def encode_model(codec: TorchCodec, x: Tensor, layout: Layout) -> list[Parts]:
    """Every tensor of float32[layout.size]."""
    return [codec.encode(v, k) for k, v in enumerate(views(x, layout))]


def decode_model(codec: TorchCodec, parts: list[Parts], out: Tensor, layout: Layout) -> Tensor:
    """Into float32[layout.size]."""
    for one, view in zip(parts, views(out, layout), strict=True):
        view.copy_(codec.decode(one, view.shape))
    return out


def size_bytes(parts: list[Parts]) -> int:
    return sum(t.numel() * t.element_size() for one in parts for t in one)


def views(x: Tensor, layout: Layout) -> list[Tensor]:
    """Shaped views of the layout's tensors, empty ones included."""
    pieces = x.split([t.size for t in layout.tensors])
    return [piece.view(t.shape) for piece, t in zip(pieces, layout.tensors, strict=True)]


def width(bits: int) -> int:
    """Bits that a code takes in memory: the next of 1, 2, 4, 8 and 16."""
    return next(w for w in (1, 2, 4, 8, 16) if w >= bits)


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes below 2^bits -> uint8, 8 / width(bits) of them a byte, first in the low bits;
    int32 codes of more than 8 bits -> int16."""
    w = width(bits)
    if w == 16:
        return codes.to(torch.int16)
    if w == 8:
        return codes
    a_byte = 8 // w
    codes = torch.nn.functional.pad(codes, (0, -codes.numel() % a_byte)).view(-1, a_byte)
    packed = codes[:, 0].clone()
    for k in range(1, a_byte):
        packed |= codes[:, k] << (k * w)
    return packed


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Inverse of `pack`: n codes, uint8 (int32 of more than 8 bits)."""
    w = width(bits)
    if w == 16:
        return packed.to(torch.int32) & 0xFFFF
    if w == 8:
        return packed
    mask = (1 << w) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, w)], dim=1).view(-1)[:n]
