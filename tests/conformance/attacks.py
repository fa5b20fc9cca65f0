"""The attack frames under attacks/: what each tries, as bytes, and the sentence a receiver must
refuse it with (a final * stands for any rest).

`python -m tests.conformance.regenerate` writes the files; the test reads them from there, so that
what was refused once stays refused whatever becomes of this table's helpers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from edgegossip import codecs
from tests.conformance import attacks_lowrank as lowrank
from tests.conformance import attacks_quantised as quantised
from tests.conformance import attacks_stepped as stepped
from tests.conformance.pipeline import LAYOUT, RUN_ID, aux_entry, raw_frame
from tests.conformance.reference_stepped import deadzoned

_GOOD = raw_frame(aux=aux_entry(1, 0.5))
_N = LAYOUT.size
_SHAPES = tuple(t.shape for t in LAYOUT.tensors)
_NAN, _INF = struct.pack("<f", np.nan), struct.pack("<f", np.inf)
_ZEROS16, _ZEROS32 = bytes(2 * _N), bytes(4 * _N)

# The first value of two tensors, a gap of 0 in a Rice code with parameter 0, and the only value of
# the third.
_TOPK = b"\1\1\x40\0\0\x80\x3f" * 2 + b"\0\0\0\x80\x3f"


def _minmax(*pairs: tuple[float, float]) -> bytes:
    return b"".join(struct.pack("<ff", *p) for p in pairs) + bytes(_N)


def _eden(*scales: bytes) -> bytes:
    """A key and a block of 32 values of 2 bits for each tensor; scales 1 but for those given."""
    ones = [struct.pack("<f", 1.0)] * (3 - len(scales))
    return bytes(8) + b"".join(scale + bytes(8) for scale in (*scales, *ones))


def _sparseloco(*integers: float, sizes: tuple[float, ...] = (1.0, 2.0) * 3) -> bytes:
    """The first integers, zeros for the rest, and the magnitudes of each tensor."""
    steps = deadzoned(np.array(integers + (0.0,) * (_N - len(integers)), np.float32), _SHAPES, step=1.0)
    return struct.pack(f"<{len(sizes)}f", *sizes) + steps


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


_HASH = f"{LAYOUT.hash:016x}"

ATTACKS: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "a frame starts with 72 bytes of header, only 0 arrived"),
    "header-cut": (_GOOD[:71], "a frame starts with 72 bytes of header, only 71 arrived"),
    "http-request": (
        b"GET / HTTP/1.1\r\nHost: board-0\r\n" + b"X" * 80,
        "not an edgegossip frame: it starts with 47 45 54 20 instead of 89 45 47 46",
    ),
    "pickle": (
        b"\x80\x04\x95" + bytes(100),
        "not an edgegossip frame: it starts with 80 04 95 00 instead of 89 45 47 46",
    ),
    "seven-bit-link": (
        bytes(b & 0x7F for b in _GOOD),
        "not an edgegossip frame: it starts with 09 45 47 46 instead of 89 45 47 46",
    ),
    "version-0": (raw_frame(version=0), "the frame has wire version 0, this build speaks version 1 only"),
    "version-2": (raw_frame(version=2), "the frame has wire version 2, this build speaks version 1 only"),
    "header-bit-flipped": (_flip(_GOOD, 8 * 41), "the frame's header is damaged: its CRC does not match"),
    "header-crc-flipped": (_flip(_GOOD, 8 * 70), "the frame's header is damaged: its CRC does not match"),
    "kind-0": (raw_frame(kind=0), "unknown frame kind 0; version 1 has 1 to 6"),
    "kind-255": (raw_frame(kind=255), "unknown frame kind 255; version 1 has 1 to 6"),
    "flags": (raw_frame(flags=1), "flags 0x0001 and reserved field 0x0000 must both be 0 in version 1"),
    "reserved": (raw_frame(reserved=0x8000), "flags 0x0000 and reserved field 0x8000 must both be 0 in version 1"),
    "codec-0": (raw_frame(codec_id=0), "codec id 0 is not a codec"),
    "params-513": (
        raw_frame(params=bytes(513)),
        "513 bytes of codec parameters exceed the limit of 512",
    ),
    "params-claimed-65535": (
        raw_frame(params_bytes=65535),
        "65535 bytes of codec parameters exceed the limit of 512",
    ),
    "params-swallow-body": (
        raw_frame(params_bytes=40, body_bytes=0),
        "fp32 has no wire parameters, the frame carries 40 bytes of them",
    ),
    "aux-not-whole-entries": (
        raw_frame(aux=bytes(10)),
        "10 bytes of aux values are not 0 to 32 entries of 9 bytes each",
    ),
    "aux-33-entries": (
        raw_frame(aux=b"".join(aux_entry(t + 1, 0.0) for t in range(33))),
        "297 bytes of aux values are not 0 to 32 entries of 9 bytes each",
    ),
    "aux-tag-0": (raw_frame(aux=aux_entry(0, 1.0)), "aux tag 0 after 0: tags must start at 1 and increase"),
    "aux-tag-twice": (
        raw_frame(aux=aux_entry(1, 1.0) + aux_entry(1, 2.0)),
        "aux tag 1 after 1: tags must start at 1 and increase",
    ),
    "aux-tags-fall": (
        raw_frame(aux=aux_entry(9, 1.0) + aux_entry(2, 2.0)),
        "aux tag 2 after 9: tags must start at 1 and increase",
    ),
    "aux-nan-weight": (
        raw_frame(aux=aux_entry(1, float("nan"))),
        "aux value PUSH_SUM_WEIGHT is not a finite number",
    ),
    "aux-infinite-unknown": (
        raw_frame(aux=aux_entry(200, float("-inf"))),
        "aux value tag 200 is not a finite number",
    ),
    "sequence-0": (raw_frame(sequence=0), "sender sequence 0 is invalid: frames are counted from 1"),
    "body-claimed-4-gib": (
        raw_frame(body_bytes=2**32 - 1),
        "a body of 4294967295 bytes exceeds the limit of 4328",
    ),
    "body-one-over-limit": (raw_frame(body=bytes(4329)), "a body of 4329 bytes exceeds the limit of 4328"),
    "truncated-by-one": (
        raw_frame()[:-1],
        "the frame is truncated: 111 bytes arrived, its header says 112",
    ),
    "header-only": (raw_frame()[:72], "the frame is truncated: 72 bytes arrived, its header says 112"),
    "one-byte-after": (
        raw_frame() + b"\0",
        "the frame is followed by bytes that do not belong to it: 113 bytes arrived, its header says 112",
    ),
    "two-frames": (
        raw_frame() + raw_frame(),
        "the frame is followed by bytes that do not belong to it: 224 bytes arrived, its header says 112",
    ),
    "body-bit-flipped": (_flip(_GOOD, 8 * 100), "the frame's payload is damaged: its CRC does not match"),
    "payload-crc-wrong": (raw_frame(payload_crc=0), "the frame's payload is damaged: its CRC does not match"),
    "other-run": (
        raw_frame(run_id=bytes(16)),
        f"the peer is in another run: {'00' * 16}, ours is {RUN_ID.hex()}",
    ),
    "other-model": (
        raw_frame(layout_hash=LAYOUT.hash ^ 1),
        f"the peer trains another model: layout {LAYOUT.hash ^ 1:016x}, ours is {_HASH}; "
        "all boards need the same model and the same edgegossip version",
    ),
    "codec-unknown": (raw_frame(codec_id=65535), "unknown codec id 65535; this build knows 1 (fp32), 2 (fp16)*"),
    "fp32-params": (raw_frame(params=b"\0"), "fp32 has no wire parameters, the frame carries 1 bytes of them"),
    "fp32-short-body": (raw_frame(body=_ZEROS32[4:]), "fp32 needs a body of 40 bytes for this model, got 36"),
    "fp32-empty-body": (raw_frame(body=b""), "fp32 needs a body of 40 bytes for this model, got 0"),
    "fp32-long-body": (raw_frame(body=_ZEROS32 + b"\0"), "fp32 needs a body of 40 bytes for this model, got 41"),
    "fp32-nan-first": (raw_frame(body=_NAN + _ZEROS32[4:]), "the fp32 body holds NaN or infinite values"),
    "fp32-infinity-last": (raw_frame(body=_ZEROS32[4:] + _INF), "the fp32 body holds NaN or infinite values"),
    "fp32-signalling-nan": (
        raw_frame(body=struct.pack("<I", 0x7F800001) + _ZEROS32[4:]),
        "the fp32 body holds NaN or infinite values",
    ),
    "fp16-params": (
        raw_frame(codec_id=2, params=b"\1\2", body=_ZEROS16),
        "fp16 has no wire parameters, the frame carries 2*",
    ),
    "fp16-fp32-body": (raw_frame(codec_id=2), "fp16 needs a body of 20 bytes for this model, got 40"),
    "fp16-infinity": (
        raw_frame(codec_id=2, body=b"\x00\x7c" + _ZEROS16[2:]),
        "the fp16 body holds NaN or infinite values",
    ),
    "fp16-nan": (raw_frame(codec_id=2, body=_ZEROS16[2:] + b"\x01\xfc"), "the fp16 body holds NaN or infinite values"),
    "topk-params": (
        raw_frame(codec_id=12, params=b"\1", body=_TOPK),
        "topk has no wire parameters, the frame carries 1 bytes of them",
    ),
    "topk-empty-body": (
        raw_frame(codec_id=12, body=b""),
        "the topk body ends too early or too late, seen at tensor fc.weight",
    ),
    "topk-short-body": (
        raw_frame(codec_id=12, body=_TOPK[:-1]),
        "the topk body ends too early or too late, seen at tensor bn.mean",
    ),
    "topk-long-body": (
        raw_frame(codec_id=12, body=_TOPK + b"\0"),
        "the topk body ends too early or too late, seen as a whole",
    ),
    "topk-claims-34-billion-values": (
        raw_frame(codec_id=12, body=b"\1\xff\xff\xff\xff\x7f" + _TOPK),
        "the topk body has an invalid head, seen at tensor fc.weight",
    ),
    "topk-count-without-end": (
        raw_frame(codec_id=12, body=b"\1" + b"\xff" * 20),
        "the topk body has an invalid head, seen at tensor fc.weight",
    ),
    "topk-position-beyond-tensor": (
        raw_frame(codec_id=12, body=b"\1\1\x41\0\0" + _TOPK),
        "the topk body has invalid positions, seen at tensor fc.weight",
    ),
    "topk-escape-beyond-tensor": (
        raw_frame(codec_id=12, body=b"\1\1\0\0\0\xc0\xff\xff\xff\x1f" + bytes(8)),
        "the topk body has invalid positions, seen at tensor fc.weight",
    ),
    "topk-bitmap-of-more": (
        raw_frame(codec_id=12, body=b"\2\3\x0f" + bytes(30)),
        "the topk body has invalid positions, seen at tensor fc.weight",
    ),
    "topk-bitmap-of-few": (
        raw_frame(codec_id=12, body=b"\2\2\x03" + bytes(30)),
        "the topk body has an invalid head, seen at tensor fc.weight",
    ),
    "topk-gaps-of-many": (
        raw_frame(codec_id=12, body=b"\1\3" + bytes(30)),
        "the topk body has an invalid head, seen at tensor fc.weight",
    ),
    "topk-drawn-positions": (
        raw_frame(codec_id=12, body=b"\3" + _TOPK[1:]),
        "the topk body has an invalid head, seen at tensor fc.weight",
    ),
    "topk-nan": (
        raw_frame(codec_id=12, body=_TOPK[:-4] + _NAN),
        "the topk body has values not finite, seen at tensor bn.mean",
    ),
    "topk-infinite-half": (
        raw_frame(codec_id=12, body=b"\5\1\x40\0\x7c" + _TOPK[7:]),
        "the topk body has values not finite, seen at tensor fc.weight",
    ),
    "randk-without-seed": (
        raw_frame(codec_id=13, body=bytes(7)),
        "the randk body ends too early or too late, seen as a whole",
    ),
    "randk-with-positions": (
        raw_frame(codec_id=13, body=bytes(8) + _TOPK),
        "the randk body has an invalid head, seen at tensor fc.weight",
    ),
    "randk-more-than-all": (
        raw_frame(codec_id=13, body=bytes(8) + b"\3\7" + bytes(28)),
        "the randk body has an invalid head, seen at tensor fc.weight",
    ),
    "randk-infinity": (
        raw_frame(codec_id=13, body=bytes(8) + b"\3\1" + _INF + b"\3\1" + bytes(4) + b"\0" + bytes(4)),
        "the randk body has values not finite, seen at tensor fc.weight",
    ),
    "eden-no-params": (
        raw_frame(codec_id=21, body=_eden()),
        "eden has 1 byte of wire parameters, the frame carries 0",
    ),
    "eden-params-long": (
        raw_frame(codec_id=21, params=b"\2\0", body=_eden()),
        "eden has 1 byte of wire parameters, the frame carries 2",
    ),
    "eden-0-bits": (raw_frame(codec_id=21, params=b"\0", body=_eden()), "eden with 0 bits does not exist"),
    "eden-255-bits": (raw_frame(codec_id=21, params=b"\xff", body=_eden()), "eden with 255 bits does not exist"),
    "eden-empty-body": (
        raw_frame(codec_id=21, params=b"\2", body=b""),
        "eden needs a body of 44 bytes for this model, got 0",
    ),
    "eden-key-alone": (
        raw_frame(codec_id=21, params=b"\2", body=bytes(8)),
        "eden needs a body of 44 bytes for this model, got 8",
    ),
    "eden-long-body": (
        raw_frame(codec_id=21, params=b"\2", body=_eden() + b"\0"),
        "eden needs a body of 44 bytes for this model, got 45",
    ),
    "eden-of-other-bits": (
        raw_frame(codec_id=21, params=b"\1", body=_eden()),
        "eden needs a body of 32 bytes for this model, got 44",
    ),
    "eden-nan-scale": (
        raw_frame(codec_id=21, params=b"\2", body=_eden(_NAN)),
        "the eden body has an invalid scale in tensor fc.weight",
    ),
    "eden-infinite-scale": (
        raw_frame(codec_id=21, params=b"\2", body=_eden(bytes(4), _INF)),
        "the eden body has an invalid scale in tensor fc.bias",
    ),
    "eden-negative-scale": (
        raw_frame(codec_id=21, params=b"\2", body=_eden(bytes(4), bytes(4), struct.pack("<f", -1.0))),
        "the eden body has an invalid scale in tensor bn.mean",
    ),
    "eden-negative-zero": (
        raw_frame(codec_id=21, params=b"\2", body=_eden(struct.pack("<f", -0.0))),
        "the eden body has an invalid scale in tensor fc.weight",
    ),
    "minmax8-params": (
        raw_frame(codec_id=3, params=b"\0", body=_minmax((0, 1), (0, 1), (0, 1))),
        "minmax8 has no wire parameters, the frame carries 1 bytes of them",
    ),
    "minmax8-short-body": (
        raw_frame(codec_id=3, body=_minmax((0, 1), (0, 1))),
        "minmax8 needs a body of 34 bytes for this model, got 26",
    ),
    "minmax8-swapped": (
        raw_frame(codec_id=3, body=_minmax((1, 0), (0, 1), (0, 1))),
        "the minmax8 body has an invalid minimum and maximum for tensor fc.weight",
    ),
    "minmax8-nan-maximum": (
        raw_frame(codec_id=3, body=_minmax((0, 1), (0, float("nan")), (0, 1))),
        "the minmax8 body has an invalid minimum and maximum for tensor fc.bias",
    ),
    "minmax8-infinite-minimum": (
        raw_frame(codec_id=3, body=_minmax((0, 1), (0, 1), (float("-inf"), 1))),
        "the minmax8 body has an invalid minimum and maximum for tensor bn.mean",
    ),
    "sparseloco-params": (
        raw_frame(codec_id=20, params=b"\0", body=_sparseloco(1.0)),
        "sparseloco has no wire parameters, the frame carries 1 bytes of them",
    ),
    "sparseloco-magnitudes-cut": (
        raw_frame(codec_id=20, body=bytes(23)),
        "the sparseloco body ends within its magnitudes",
    ),
    "sparseloco-without-integers": (
        raw_frame(codec_id=20, body=bytes(24)),
        "the sparseloco body is invalid: it ends early",
    ),
    "sparseloco-negative-magnitude": (
        raw_frame(codec_id=20, body=_sparseloco(1.0, sizes=(1.0, 2.0, -1.0, 2.0, 1.0, 2.0))),
        "the sparseloco body has magnitudes that are no sizes",
    ),
    "sparseloco-nan-magnitude": (
        raw_frame(codec_id=20, body=_sparseloco(1.0, sizes=(1.0, 2.0, 1.0, 2.0, 1.0, float("nan")))),
        "the sparseloco body has magnitudes that are no sizes",
    ),
    "sparseloco-three": (
        raw_frame(codec_id=20, body=_sparseloco(1.0, -3.0)),
        "the sparseloco body is invalid: a code is none of this codec's",
    ),
    **{
        f"sparseloco-{name}": (
            raw_frame(codec_id=20, body=_sparseloco(1.0)[:at] + part + _sparseloco(1.0)[to:]),
            "the sparseloco body is invalid: a code is none of this codec's",
        )
        for name, at, part, to in (
            ("half", 24, struct.pack("<f", 0.5), 28),
            ("eighths", 28, b"\1\0\0\0", 29),
            ("shifted", 29, b"\x81", 30),
        )
    },
    **lowrank.ATTACKS,
    **stepped.ATTACKS,
    **{
        name: attack
        for name, attack in quantised.ATTACKS.items()
        if quantised.codec_of(attack[0]) in codecs.REGISTRY.by_wire_id
    },
}
