"""What a round sends: frames that are really encoded, of a vector distributed as gradients are, in
the model's own tensors.

The vector follows a generalised normal law (bench/inputs.py). What an algorithm really sends
differs from round to round: an entropy coder's frames of a sharper distribution are smaller, and of
an algorithm that sends differences of models they change as training goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time
from typing import Any

from edgegossip import codecs, frame
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.lab.bench.inputs import in_layout
from edgegossip.layout import Layout
from edgegossip.types import Vec

LOSS = 1.0  # of level rules that go by it
ENVELOPE_BYTES = 64  # around a frame in gRPC and HTTP/2, and its share of acknowledgements; docs/mesh.md
_AUX: dict[int, float] = {frame.Aux.LOSS: LOSS, frame.Aux.EXAMPLES: 1.0, frame.Aux.SESSION: 1.0, frame.Aux.EPOCH: 1.0}
_TIMED = 2  # encodings; the first one also warms up


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of a codec."""

    codec: str
    payload_bytes: int
    message_bytes: int  # with the frame's head and what carries it
    bits_per_value: float
    encode_s: float  # CPU seconds of encoding and decoding here; not a board's
    decode_s: float


def gradient(layout: Layout, seed: int = 1) -> Vec:
    """float32[layout.size], as a gradient is distributed."""
    return in_layout(layout, seed)


def sent(name: str, params: dict[str, Any], layout: Layout, x: Vec) -> Sent:
    """A message that carries x in this codec. Raises ConfigError for an unknown codec or
    parameter."""
    codec: Codec[Any] = codecs.get(name, **params)
    state, ctx = codec.init(layout), Ctx(key=1, round=0, loss=LOSS, lr=0.1)
    encode_s = decode_s = float("inf")
    for _ in range(_TIMED):
        start = process_time()
        body, _after = codec.encode(x, state, ctx)
        between = process_time()
        codec.decode(body, layout)
        encode_s, decode_s = min(encode_s, between - start), min(decode_s, process_time() - between)
    built = frame.build(
        frame.Frame(
            kind=frame.Kind.GRADIENT,
            codec_id=codec.wire_id,
            codec_params=codec.wire_params(),
            body=body,
            round=0,
            run_id=bytes(frame.RUN_ID_BYTES),
            layout_hash=layout.hash,
            key=1,
            sequence=1,
            aux=_AUX,
        )
    )
    whole = sum(len(piece) for piece in built) + ENVELOPE_BYTES
    return Sent(name, len(body), whole, 8 * len(body) / max(1, layout.size), encode_s, decode_s)
