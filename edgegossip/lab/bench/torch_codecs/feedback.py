"""Error feedback around another rival: the memory is decoded from what was sent."""

from __future__ import annotations

import torch
from torch import Tensor

from edgegossip.lab.bench.torch_codecs.base import Parts, TorchCodec


class ErrorFeedback:
    """a = v + decay * memory; send Q(a); memory = a - Q(a)."""

    def __init__(self, codec: TorchCodec, decay: float) -> None:
        self.codec, self.decay = codec, decay
        self._memory: dict[int, Tensor] = {}

    def encode(self, v: Tensor, k: int) -> Parts:
        memory = self._memory.get(k)
        a = v.clone() if memory is None else v.add(memory, alpha=self.decay)
        parts = self.codec.encode(a, k)
        self._memory[k] = a.sub_(self.codec.decode(parts, v.shape))
        return parts

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return self.codec.decode(parts, shape)
