"""Attack frames for atomo and powersgd, of rank 1: of the model's tensors the first, 2 x 3, then is
a matrix."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from tests.conformance.pipeline import raw_frame

ATOMO, POWERSGD = 14, 15
_NAN, _INF = struct.pack("<f", np.nan), struct.pack("<f", np.inf)
_REST = bytes(16)  # fc.bias and bn.mean, as fp32


def _atomo(body: bytes, params: bytes = b"\1") -> bytes:
    return raw_frame(codec_id=ATOMO, params=params, body=body)


def _power(body: bytes, params: bytes = b"\1\0") -> bytes:
    return raw_frame(codec_id=POWERSGD, params=params, body=body)


def _atoms(count: int, numbers: bytes) -> bytes:
    return struct.pack("<H", count) + numbers


_IN_WEIGHT = "the powersgd body holds NaN, infinite or impossible values in tensor fc.weight"
_PARAMS = "powersgd needs 2 bytes of parameters, rank and form of values (0 or 1), got "
_HALF = bytes(2 * 2)  # left of one column

ATTACKS: Mapping[str, tuple[bytes, str]] = {
    "atomo-no-params": (_atomo(_atoms(0, _REST), b""), "atomo needs 1 byte of parameters, the rank, got 0"),
    "atomo-rank-0": (_atomo(_atoms(0, _REST), b"\0"), "the atomo parameters name rank 0; ranks are 1 to 64"),
    "atomo-rank-65": (_atomo(_atoms(0, _REST), b"\x41"), "the atomo parameters name rank 65; ranks are 1 to 64"),
    "atomo-empty-body": (_atomo(b""), "the atomo body ends before tensor fc.weight"),
    "atomo-too-many-atoms": (
        _atomo(_atoms(2, bytes(40) + _REST)),
        "the atomo body has 2 atoms in tensor fc.weight, at most 1 can be",
    ),
    "atomo-claimed-65534-atoms": (
        _atomo(_atoms(65534, _REST)),
        "the atomo body has 65534 atoms in tensor fc.weight, at most 1 can be",
    ),
    "atomo-cut-in-atom": (_atomo(_atoms(1, bytes(19))), "the atomo body ends within tensor fc.weight"),
    "atomo-cut-in-values": (_atomo(_atoms(65535, bytes(23))), "the atomo body ends within tensor fc.weight"),
    "atomo-long-body": (_atomo(_atoms(0, _REST + b"\0")), "the atomo body ends after 18 bytes, got 19"),
    "atomo-nan-in-atom": (
        _atomo(_atoms(1, bytes(16) + _NAN + _REST)),
        "the atomo body holds NaN or infinite values in tensor fc.weight",
    ),
    "atomo-infinity-in-values": (
        _atomo(_atoms(65535, _INF + bytes(20) + _REST)),
        "the atomo body holds NaN or infinite values in tensor fc.weight",
    ),
    "atomo-infinity-last": (
        _atomo(_atoms(0, _REST[4:] + _INF)),
        "the atomo body holds NaN or infinite values in tensor bn.mean",
    ),
    "powersgd-no-params": (_power(bytes(36), b""), _PARAMS),
    "powersgd-form-2": (_power(bytes(36), b"\1\2"), f"{_PARAMS}01 02"),
    "powersgd-rank-0": (_power(bytes(36), b"\0\0"), "the powersgd parameters name rank 0; ranks are 1 to 64"),
    "powersgd-rank-255": (_power(bytes(36), b"\xff\0"), "the powersgd parameters name rank 255; ranks are 1 to 64"),
    "powersgd-short-body": (_power(bytes(35)), "powersgd needs a body of 36 bytes for this model, got 35"),
    "powersgd-long-body": (_power(bytes(40)), "powersgd needs a body of 36 bytes for this model, got 40"),
    "powersgd-nan-left": (_power(_NAN + bytes(32)), _IN_WEIGHT),
    "powersgd-infinity-right": (_power(bytes(16) + _INF + bytes(16)), _IN_WEIGHT),
    "powersgd-nan-bias": (_power(bytes(20) + _NAN + bytes(12)), _IN_WEIGHT.replace("fc.weight", "fc.bias")),
    "powersgd-fp16-nan-scale": (_power(_HALF + _NAN + bytes(14), b"\1\1"), _IN_WEIGHT),
    "powersgd-fp16-infinite-scale": (_power(_HALF + _INF + bytes(14), b"\1\1"), _IN_WEIGHT),
    "powersgd-fp16-negative-scale": (_power(_HALF + struct.pack("<f", -1) + bytes(14), b"\1\1"), _IN_WEIGHT),
    "powersgd-fp16-infinity-right": (_power(_HALF + bytes(4) + b"\0\x7c" + bytes(12), b"\1\1"), _IN_WEIGHT),
}
