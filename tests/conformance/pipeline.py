"""What a receiver does with bytes from a peer, for the tests that send it bad ones; and a frame
maker that does not check."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from edgegossip import codecs, frame
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

LAYOUT = Layout.of([TensorSpec("fc.weight", (2, 3)), TensorSpec("fc.bias", (3,)), TensorSpec("bn.mean", (1,), False)])
LIMITS = frame.Limits.of(LAYOUT)
RUN_ID = bytes(range(16))
HEADER = struct.Struct("<4sBBHHHHHQ16sIIQQII")
NAMES = [
    "magic",
    "version",
    "kind",
    "flags",
    "codec_id",
    "params_bytes",
    "aux_bytes",
    "reserved",
    "layout_hash",
    "run_id",
    "round",
    "body_bytes",
    "sequence",
    "key",
    "payload_crc",
    "header_crc",
]


def receive(data: bytes, out: Vec | None = None, weight: float | None = None) -> tuple[frame.Frame, Vec]:
    """Everything between the transport and the algorithm. Raises PeerError."""
    message = frame.parse(data, LIMITS)
    frame.expect(message, run_id=RUN_ID, layout_hash=LAYOUT.hash)
    codec = codecs.from_wire(message.codec_id, message.codec_params)
    return message, codec.decode(message.body, LAYOUT, out, weight)


def raw_frame(params: bytes = b"", aux: bytes = b"", body: bytes = bytes(4 * LAYOUT.size), **fields: Any) -> bytes:
    """A frame with any field values at all; lengths and CRCs are right unless given. Shares no code
    with the product."""
    values = {
        "magic": b"\x89EGF",
        "version": 1,
        "kind": 1,
        "flags": 0,
        "codec_id": 1,
        "params_bytes": len(params),
        "aux_bytes": len(aux),
        "reserved": 0,
        "layout_hash": LAYOUT.hash,
        "run_id": RUN_ID,
        "round": 3,
        "body_bytes": len(body),
        "sequence": 1,
        "key": 7,
        "payload_crc": zlib.crc32(params + aux + body),
        "header_crc": None,
    } | fields
    if values["header_crc"] is None:
        values["header_crc"] = 0
        values["header_crc"] = zlib.crc32(HEADER.pack(*(values[n] for n in NAMES))[:68])
    return HEADER.pack(*(values[n] for n in NAMES)) + params + aux + body


def aux_entry(tag: int, value: float) -> bytes:
    return struct.pack("<Bd", tag, value)


def reseal(data: bytes) -> bytes:
    """The same bytes with both CRCs made right, so that a mutation reaches the checks behind
    them."""
    if len(data) < HEADER.size:
        return data
    head = data[:64] + struct.pack("<I", zlib.crc32(data[72:]))
    return head + struct.pack("<I", zlib.crc32(head)) + data[72:]
