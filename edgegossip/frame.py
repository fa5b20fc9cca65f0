"""The version 1 wire frame: one message between two boards, or between a board and the coordinator.
Pure.

docs/wire-format.md describes it byte by byte. `build` makes the pieces, `parse` checks every field
before it believes any. Peer identity is not in the frame: it comes from the transport. Neither is a
length trusted: a receiver that reads a stream calls `parse_header` on the first HEADER_BYTES and
refuses by version, size, run or model before it reads on."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from edgegossip.codecs.base import MAX_PARAMS_BYTES, Codec
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, PeerError, UsageError

MAGIC = b"\x89EGF"  # the high bit of the first byte catches links and tools that are not clean for 8 bits
VERSION = 1
HEADER_BYTES = 72
LEAST_FRAME_BYTES = 1024  # that a frame counts for where kept bytes are bounded: a flood of tiny ones is bounded too
RUN_ID_BYTES = 16
MAX_AUX_ENTRIES = 32

_FIELDS = struct.Struct("<4sBBHHHHHQ16sIIQQI")  # everything but the header's own CRC
_HEADER = struct.Struct(_FIELDS.format + "I")
_CRC = struct.Struct("<I")
_AUX = struct.Struct("<Bd")
_U16, _U32, _U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1
AUX_BYTES = _AUX.size  # of one entry
_EMPTY_AUX: Mapping[int, float] = MappingProxyType({})


class Kind(IntEnum):
    """What the body is."""

    MODEL = 1  # a whole model
    DIFFERENCE = 2  # to be added to a replica that both ends hold
    GRADIENT = 3
    UPDATE = 4  # a board's change of the coordinator's model
    STATE = 5  # a full replica or model, after a gap or for a newcomer
    HELLO = 6  # no body: opens a stream of differences, or asks the other end to do so


class Aux(IntEnum):
    """Tags of the small numbers that travel beside the body. Unknown tags from 1 to 255 are kept
    and passed on."""

    PUSH_SUM_WEIGHT = 1
    LOSS = 2  # mean training loss over the examples seen
    EXAMPLES = 3  # that the board holds: what its update weighs
    LEARNING_RATE = 4
    STEPS = 5  # optimiser steps taken
    SESSION = 6  # of the stream that the message belongs to; chosen by its receiver, below 2^48
    SHARE = 7  # push-sum: the part of the public vector that is handed over, (0, 1]
    INCARNATION = 8  # push-sum: which history the sender's totals belong to, below 2^48
    PART = 9  # of a state of several vectors, from 0
    PARTS = 10  # how many there are
    MODEL = 11  # 1: the last part is the sender's model, for one that was left behind; of a HELLO: it has none
    FRESH = 12  # the sender has nothing of the other's yet; a fingerprint of what its replicas start from
    PHASE = 13  # of the topology's period, for messages about a stream
    ANSWER = 14  # 1: to the exchange of this session and sequence, which the receiver began
    SETTLED = 15  # sequence of the last exchange with the receiver that is over for the sender, who began it
    EPOCH = 16  # of a stream's message, and of a HELLO that opens one: the sender's process, below 2^48
    LEVELS = 17  # quantisation levels that a coordinator asks its boards to use in this round
    CHALLENGE = 18  # of a HELLO: a number that the answer to it brings back, below 2^48
    SPLIT = 19  # the body is two, one after the other: bytes of the first
    STAMP = 20  # gradient tracking: which rounds an edge's correction sums up, below 2^48; 0: none
    CORRECTION = 21  # SCAFFOLD's way down: the second of two bodies corrects this board's steps; bytes of the first


@dataclass(frozen=True)
class Frame:
    """One message. `body` is what the codec made of the vector; `aux` holds small finite numbers by
    tag (see Aux)."""

    kind: Kind
    codec_id: int  # uint16, 0 is invalid
    codec_params: bytes  # at most codecs.base.MAX_PARAMS_BYTES
    layout_hash: int  # uint64
    run_id: bytes  # 16 bytes
    round: int  # uint32
    sequence: int  # uint64, counts this sender's frames on this edge from 1
    key: int  # uint64, of the codec's generator
    body: bytes | memoryview
    aux: Mapping[int, float] = field(default_factory=lambda: _EMPTY_AUX)


@dataclass(frozen=True, slots=True)
class Header:
    """The checked fixed part of a frame: all that can be known before the rest has arrived."""

    kind: Kind
    codec_id: int
    params_bytes: int  # at most MAX_PARAMS_BYTES
    aux_bytes: int  # a multiple of 9, at most 9 * MAX_AUX_ENTRIES
    layout_hash: int
    run_id: bytes
    round: int
    body_bytes: int  # at most Limits.max_body_bytes
    sequence: int
    key: int
    payload_crc: int  # CRC-32 of parameters, aux and body

    @property
    def frame_bytes(self) -> int:
        """Return the size of the whole frame."""
        return HEADER_BYTES + self.params_bytes + self.aux_bytes + self.body_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver accepts."""

    max_body_bytes: int = 256 * 2**20

    @classmethod
    def of(cls, layout: Layout, bodies: int = 1) -> Limits:
        """Return room for so many bodies of this model, whatever the codec: 4 bytes a value, 64 a
        tensor and 4 KiB each. Raises UsageError for a model that no frame holds in fp32, as full
        states are sent."""
        most = bodies * (4 * layout.size + 64 * len(layout.tensors) + 4096)
        if most > _U32:
            raise UsageError(
                f"a model of {layout.size} values does not fit one message, which holds {_U32} bytes, "
                f"{_U32 // (4 * bodies)} values in fp32: share fewer of its tensors"
            )
        return cls(most)


@dataclass(slots=True)
class PayloadSum:
    """The checksum of the last payload that was built, for frames with one body to several
    neighbours: it is summed up once. The body must not change as long as this is in use."""

    head: bytes = b""
    body: bytes | memoryview | None = None
    crc: int = 0

    def of(self, head: bytes, body: bytes | memoryview) -> int:
        """Return the CRC-32 of both, one after the other."""
        if body is not self.body or head != self.head:
            self.head, self.body, self.crc = head, body, zlib.crc32(body, zlib.crc32(head))
        return self.crc


def build(frame: Frame, summed: PayloadSum | None = None) -> tuple[bytes, bytes | memoryview]:
    """Return the header with parameters and aux, and the body as it is (no copy): send one after
    the other. `summed` goes from one frame with the same body to the next.

    Raises UsageError on a field that does not fit the wire.
    """
    body = _bytes_like(frame.body)
    _check_fields(frame, len(body))
    aux = _pack_aux(frame.aux)
    payload_head = bytes(frame.codec_params) + aux
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        frame.kind,
        0,
        frame.codec_id,
        len(frame.codec_params),
        len(aux),
        0,
        frame.layout_hash,
        frame.run_id,
        frame.round,
        len(body),
        frame.sequence,
        frame.key,
        (PayloadSum() if summed is None else summed).of(payload_head, body),
    )
    return fields + _CRC.pack(zlib.crc32(fields)) + payload_head, body


def parse_header(data: bytes | bytearray | memoryview, limits: Limits) -> Header:
    """Check the first HEADER_BYTES of a frame. Raises DecodeError; allocates nothing that depends
    on them."""
    if len(data) < HEADER_BYTES:
        raise DecodeError(f"a frame starts with {HEADER_BYTES} bytes of header, only {len(data)} arrived")
    # fmt: off
    (magic, version, kind, flags, codec_id, params_bytes, aux_bytes, reserved, layout_hash, run_id, round_, body_bytes,
     sequence, key, payload_crc, header_crc) = _HEADER.unpack_from(data)
    # fmt: on
    if magic != MAGIC:
        raise DecodeError(f"not an edgegossip frame: it starts with {magic.hex(' ')} instead of {MAGIC.hex(' ')}")
    if version != VERSION:
        raise DecodeError(f"the frame has wire version {version}, this build speaks version {VERSION} only")
    if zlib.crc32(data[: _FIELDS.size]) != header_crc:
        raise DecodeError("the frame's header is damaged: its CRC does not match")
    known = _KINDS.get(kind)
    if known is None:
        raise DecodeError(f"unknown frame kind {kind}; version {VERSION} has 1 to {max(_KINDS)}")
    if flags or reserved:
        raise DecodeError(f"flags {flags:#06x} and reserved field {reserved:#06x} must both be 0 in version {VERSION}")
    if codec_id == 0:
        raise DecodeError("codec id 0 is not a codec")
    if params_bytes > MAX_PARAMS_BYTES:
        raise DecodeError(f"{params_bytes} bytes of codec parameters exceed the limit of {MAX_PARAMS_BYTES}")
    if aux_bytes % _AUX.size or aux_bytes > _AUX.size * MAX_AUX_ENTRIES:
        raise DecodeError(
            f"{aux_bytes} bytes of aux values are not 0 to {MAX_AUX_ENTRIES} entries of {_AUX.size} bytes each"
        )
    if sequence == 0:
        raise DecodeError("sender sequence 0 is invalid: frames are counted from 1")
    if body_bytes > limits.max_body_bytes:
        raise DecodeError(f"a body of {body_bytes} bytes exceeds the limit of {limits.max_body_bytes}")
    return Header(
        known, codec_id, params_bytes, aux_bytes, layout_hash, run_id, round_, body_bytes, sequence, key, payload_crc
    )


def parse(data: bytes | bytearray | memoryview, limits: Limits) -> Frame:
    """Check a whole frame. Its body is a read-only view of `data`: keep `data` unchanged as long as
    the body is in use.

    Raises DecodeError on anything but exactly one valid frame. `build(parse(data, limits))` gives
    the bytes of `data` again."""
    view = _flat(memoryview(data))
    header = parse_header(view, limits)
    if len(view) != header.frame_bytes:
        fault = "truncated" if len(view) < header.frame_bytes else "followed by bytes that do not belong to it"
        raise DecodeError(f"the frame is {fault}: {len(view)} bytes arrived, its header says {header.frame_bytes}")
    if zlib.crc32(view[HEADER_BYTES:]) != header.payload_crc:
        raise DecodeError("the frame's payload is damaged: its CRC does not match")
    aux_start = HEADER_BYTES + header.params_bytes
    body_start = aux_start + header.aux_bytes
    return Frame(
        kind=header.kind,
        codec_id=header.codec_id,
        codec_params=bytes(view[HEADER_BYTES:aux_start]),
        layout_hash=header.layout_hash,
        run_id=header.run_id,
        round=header.round,
        sequence=header.sequence,
        key=header.key,
        body=view[body_start:].toreadonly(),
        aux=_unpack_aux(view[aux_start:body_start]),
    )


def expect(message: Frame | Header, *, run_id: bytes, layout_hash: int, codec: Codec[Any] | None = None) -> None:
    """Raises PeerError when a valid frame is not for us: another run, another model or (given
    `codec`) another codec."""
    if message.run_id != run_id:
        raise PeerError(f"the peer is in another run: {message.run_id.hex()}, ours is {run_id.hex()}")
    if message.layout_hash != layout_hash:
        raise PeerError(
            f"the peer trains another model: layout {message.layout_hash:016x}, ours is {layout_hash:016x}; "
            "all boards need the same model and the same edgegossip version"
        )
    if codec is not None:
        expect_codec(message, codec)


def expect_codec(message: Frame | Header, codec: Codec[Any], sender: str = "the peer") -> None:
    """Raises PeerError, which names the sender, when the body is not one of this codec. A Header
    carries no codec parameters, so only the id is compared there."""
    if message.codec_id != codec.wire_id:
        raise PeerError(
            f"{sender} sent codec id {message.codec_id} where {codec.name} (id {codec.wire_id}) is expected"
        )
    if isinstance(message, Frame) and message.codec_params != codec.wire_params():
        raise PeerError(
            f"{sender} sent {codec.name} with parameters [{message.codec_params.hex()}] where "
            f"[{codec.wire_params().hex()}] is expected"
        )


_KINDS: Mapping[int, Kind] = MappingProxyType({int(k): k for k in Kind})


def _bytes_like(body: bytes | memoryview) -> bytes | memoryview:
    """The same memory as single bytes, so that `len` counts bytes."""
    if isinstance(body, bytes):
        return body
    return _flat(body)


def _flat(body: memoryview) -> memoryview:
    if not isinstance(body, memoryview) or not body.c_contiguous:
        raise UsageError(f"a frame's body must be bytes or a contiguous memoryview, not {type(body).__name__}")
    return body if body.format == "B" and body.ndim == 1 else body.cast("B")


def _check_fields(frame: Frame, body_bytes: int) -> None:
    if frame.kind not in _KINDS:
        raise UsageError(f"frame kind {frame.kind!r} is not one of {', '.join(k.name for k in Kind)}")
    for name, value, low, high in (
        ("codec_id", frame.codec_id, 1, _U16),
        ("layout_hash", frame.layout_hash, 0, _U64),
        ("round", frame.round, 0, _U32),
        ("sequence", frame.sequence, 1, _U64),
        ("key", frame.key, 0, _U64),
    ):
        if not hasattr(value, "__index__") or not low <= value <= high:
            raise UsageError(f"frame field {name} must be an integer from {low} to {high}, got {value!r}")
    if not isinstance(frame.run_id, bytes) or len(frame.run_id) != RUN_ID_BYTES:
        raise UsageError(f"a run id is {RUN_ID_BYTES} bytes, this one is {frame.run_id!r}")
    if len(frame.codec_params) > MAX_PARAMS_BYTES:
        raise UsageError(f"{len(frame.codec_params)} bytes of codec parameters exceed the limit of {MAX_PARAMS_BYTES}")
    if len(frame.aux) > MAX_AUX_ENTRIES:
        raise UsageError(f"a frame carries at most {MAX_AUX_ENTRIES} aux values, this one has {len(frame.aux)}")
    if body_bytes > _U32:
        raise UsageError(f"a body of {body_bytes} bytes does not fit one frame, which carries at most {_U32}")


def _pack_aux(aux: Mapping[int, float]) -> bytes:
    for tag, value in aux.items():
        if not isinstance(tag, int) or not 1 <= tag <= 255:
            raise UsageError(f"aux tag {tag!r} is not a whole number from 1 to 255")
        if not math.isfinite(value):
            raise UsageError(f"aux value {_tag_name(tag)} is {value}; only finite numbers travel")
    return b"".join(_AUX.pack(tag, aux[tag]) for tag in sorted(aux))


def _unpack_aux(data: bytes | memoryview) -> Mapping[int, float]:
    aux: dict[int, float] = {}
    last = 0
    for tag, value in _AUX.iter_unpack(data):
        if tag <= last:
            raise DecodeError(f"aux tag {tag} after {last}: tags must start at 1 and increase")
        if not math.isfinite(value):
            raise DecodeError(f"aux value {_tag_name(tag)} is not a finite number")
        aux[tag] = value
        last = tag
    return MappingProxyType(aux)


def _tag_name(tag: int) -> str:
    return next((known.name for known in Aux if known == tag), f"tag {tag}")
