"""A codec: eight bits a value, of which seven say how large it is, on a logarithmic scale."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgegossip import plugins
from edgegossip.codecs import Family
from edgegossip.codecs.base import StatelessCodec
from edgegossip.codecs.checks import require_body_bytes, require_input, require_out, write
from edgegossip.codecs.claims import Claims
from edgegossip.types import DecodeError

# Sizes from 2^-15.75 to 1, eight to an octave; 0 for what is smaller. Borders lie in the middle.
SIZES = np.concatenate([[0.0], np.exp2(np.arange(-126, 1) / 8.0)]).astype(np.float32)
BORDERS = np.exp2(np.arange(-15, 0, 2) / 16.0)


@dataclass(frozen=True, slots=True)
class Log8(StatelessCodec):
    """Rounds each value to the nearest size. Body: float32, the largest size, then int8[n]."""

    name: ClassVar[str] = "log8"
    wire_id: ClassVar[int] = plugins.wire_id("log8")

    def encode(self, x, state, ctx):
        require_input(x, state)
        scale = np.float32(np.abs(x).max(initial=0.0))
        parts, octaves = np.frexp(np.abs(x, dtype=np.float64) / (float(scale) or 1.0))
        codes = np.clip(119 + 8 * octaves + np.searchsorted(BORDERS, parts), 0, 127)
        return scale.tobytes() + np.where(x < 0, -codes, codes).astype(np.int8).tobytes(), state

    def decode(self, body, layout, out=None, weight=None):
        require_out(layout, out, weight, body)
        data = require_body_bytes(body, 4 + layout.size, self.name)
        scale, codes = np.frombuffer(data[:4], np.float32)[0], np.frombuffer(data[4:], np.int8)
        if not (math.isfinite(scale) and scale >= 0.0) or (codes == -128).any():
            raise DecodeError("the log8 body has a scale or a code that no encoder writes")
        values = np.sign(codes) * SIZES[np.abs(codes)] * scale
        if out is None:
            return values
        write(values, out, weight)
        return out

    def claims(self, x, layout):
        half_a_step, smallest = 2.0 ** (1 / 16) - 1.0, 2.0**-15.75
        return Claims(variance=half_a_step**2 + layout.size * smallest**2)


LOG8 = Family("log8", Log8, "8 bits a value on a logarithmic scale", wire_id=Log8.wire_id)
