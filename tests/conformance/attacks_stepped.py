"""Attack frames against dither and deadzone, for the model of pipeline.LAYOUT."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tests.conformance.pipeline import raw_frame

DITHER, DEADZONE = 17, 18
_INVALID = "the {} body is invalid: {}"
_EARLY, _CODER, _SCALE = "it ends early", "its entropy coder *", "a scale is not finite, *"
_TABLE, _STREAM = "its code table is not *", "a stream of codes ends early or late, *"
_CODE, _PADDING = "a code is none *", "unused bits are set"
_HEAD = struct.pack("<fB", 1.0, 0)
_SHIFTS = b"\x80\x80\x80"
_ZEROS = b"\0"
_LOW = b"\0\0\1\0"  # a state as it must end


def _dead(string: bytes, why: str, head: bytes = _HEAD + _SHIFTS) -> tuple[bytes, str]:
    return raw_frame(codec_id=DEADZONE, body=head + string), _INVALID.format("deadzone", why)


def _bits(*fields: tuple[int, int]) -> bytes:
    """(value, width) one after the other, low bits first."""
    total = at = 0
    for value, width in fields:
        total |= value << at
        at += width
    return total.to_bytes((at + 7) // 8, "little")


def _coded(
    *models: tuple[int, int], count: int = 1, places: int = 0, magnitudes: int = 1, lanes: int = 0, escapes: int = 0
) -> bytes:
    return _bits((2, 2), (count - 1, 4), (places, 1), (magnitudes, 1), (lanes, 1), (escapes, 1), *models)


_MODEL = ((1, 7), (0, 5), (4, 5))  # magnitudes 0 and 1
_NOT_ONE = _MODEL[0], (31, 5), (31, 5)  # no symbol at all

ATTACKS: Mapping[str, tuple[bytes, str]] = {
    "dither-params": (
        raw_frame(codec_id=DITHER, params=b"\1", body=bytes(8) + _HEAD + _ZEROS),
        "dither has no wire parameters, the frame carries 1 bytes of them",
    ),
    "dither-without-key": (raw_frame(codec_id=DITHER, body=_HEAD + _ZEROS), _INVALID.format("dither", _EARLY)),
    "deadzone-empty-body": _dead(b"", _EARLY, head=b""),
    "deadzone-without-string": _dead(b"", _EARLY),
    "deadzone-nan-step": _dead(_ZEROS, _SCALE, struct.pack("<fB", float("nan"), 0) + _SHIFTS),
    "deadzone-infinite-step": _dead(_ZEROS, _SCALE, struct.pack("<fB", float("inf"), 0) + _SHIFTS),
    "deadzone-negative-step": _dead(_ZEROS, _SCALE, struct.pack("<fB", -1.0, 0) + _SHIFTS),
    "deadzone-flags-of-4": _dead(_ZEROS, _CODER, struct.pack("<fB", 1.0, 4) + _SHIFTS),
    "deadzone-no-matrix-to-sort": _dead(_ZEROS, _CODER, struct.pack("<fBI", 1.0, 2, 1) + _ZEROS + _SHIFTS),
    "deadzone-step-0-sorted": _dead(b"", _CODER, struct.pack("<fB", 0.0, 2)),
    "deadzone-eighths-cut": _dead(b"", _EARLY, struct.pack("<fB2b", 1.0, 1, 0, 0)),
    "deadzone-a-tensor-beyond-float32": _dead(_ZEROS, _SCALE, struct.pack("<fB3b", 3e38, 1, 0, 8, 0) + _SHIFTS),
    "deadzone-after-step-0": _dead(b"", _STREAM, struct.pack("<fB", 0.0, 0) + b"\0"),
    "deadzone-string-of-kind-3": _dead(b"\3", _CODER),
    "deadzone-zeros-and-more": _dead(b"\0\0", _STREAM),
    "deadzone-zeros-with-bits": _dead(b"\4", _STREAM),
    "deadzone-plain-of-width-0": _dead(_bits((1, 2), (0, 5)), _CODER),
    "deadzone-plain-cut": _dead(_bits((1, 2), (8, 5), (0, 100)), _EARLY),
    "deadzone-plain-of-width-31-cut": _dead(_bits((1, 2), (31, 5), (0, 64)), _EARLY),
    "deadzone-plain-and-more": _dead(_bits((1, 2), (1, 5), (0, 16)) + b"\0", _STREAM),
    "deadzone-16-models": _dead(_coded(count=16) + bytes(40), _TABLE),
    "deadzone-four-tables": _dead(_coded(places=1) + bytes(40), _TABLE),
    "deadzone-levels-cut": _dead(_coded((127, 7)), _EARLY),
    "deadzone-no-symbol": _dead(_coded(*_NOT_ONE) + bytes(4), _TABLE),
    "deadzone-models-with-bits": _dead(_coded(*_MODEL, (1, 5)) + bytes(4), _PADDING),
    "deadzone-states-cut": _dead(_coded(*_MODEL) + bytes(3), _EARLY),
    "deadzone-32-states-cut": _dead(_coded(*_MODEL, lanes=1) + bytes(64), _EARLY),
    "deadzone-half-a-word": _dead(_coded(*_MODEL) + bytes(5), _EARLY),
    "deadzone-word-left": _dead(_coded((0, 7)) + _LOW + bytes(2), _STREAM),
    "deadzone-state-left": _dead(_coded((0, 7)) + b"\1\0\1\0", _STREAM),
    "deadzone-words-cut": _dead(_coded(*_MODEL) + b"\0\0\0\xff", _STREAM),
    "deadzone-no-escapes": _dead(_coded((0, 7), escapes=1) + b"\0\0" + bytes(4), _STREAM),
    "deadzone-more-escapes-than-values": _dead(_coded((0, 7), escapes=1) + b"\xff\xff\xff\xff\7" + bytes(9), _STREAM),
    "deadzone-escapes-of-4-gib": _dead(_coded((0, 7), escapes=1) + b"\1\xff\xff\xff\xff\7" + bytes(4), _EARLY),
    "deadzone-escapes-unused": _dead(_coded((0, 7), escapes=1) + b"\1\1" + _bits((1, 2), (1, 5), (1, 1)) + _LOW, _CODE),
    "deadzone-strings-without-end": _dead((_coded((0, 7), escapes=1) + b"\1\x30") * 6 + bytes(8), "*"),
}
