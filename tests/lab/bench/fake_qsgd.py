"""A plain numpy qsgd that writes the documented raw body, with a `stage` that changes nothing: for
the benchmark's own tests, so that what they expect does not rest on the package's quantisers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True)
class FakeQsgd:
    bits: int = 4
    bucket: int = 64
    stage: str = "raw"
    name: ClassVar[str] = "qsgd"
    wire_id: ClassVar[int] = 5

    def wire_params(self):
        return struct.pack("<BI", self.bits, self.bucket)

    def init(self, layout):
        return layout

    def encode(self, x, layout, ctx):
        rng = np.random.default_rng(ctx.key)
        return b"".join(
            self._section(x[a:b], rng) for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)
        ), layout

    def _section(self, v, rng):
        codes, norms = self._codes(v, rng)
        stream = ((codes[:, None] >> np.arange(self.bits)) & 1).astype(np.uint8).reshape(-1)
        halves = (norms.astype("<f4").view("<u4") >> 15).astype("<u2")
        return b"\0" + halves.tobytes() + np.packbits(stream, bitorder="little").tobytes()

    def _codes(self, v, rng):
        s = 2 ** (self.bits - 1) - 1
        rows = np.pad(v, (0, -v.size % self.bucket)).reshape(-1, self.bucket)
        norms = np.sqrt((rows.astype(float) ** 2).sum(1))
        levels = np.minimum(np.abs(rows) / norms[:, None] * s + rng.random(rows.shape), s).astype(int)
        return (levels | ((rows < 0) & (levels > 0)).astype(int) << (self.bits - 1)).reshape(-1)[: v.size], norms

    def decode(self, body, layout, out=None, weight=None):
        return np.zeros(layout.size, np.float32) if out is None else out


@dataclass(frozen=True, slots=True)
class FakeFeedback:
    codec: FakeQsgd
    decay: float = 1.0
    name: ClassVar[str] = "fed-back"
