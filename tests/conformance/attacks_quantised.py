"""Attack frames for the quantised codecs and for codecs inside codecs; attacks.py has the
others."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tests.conformance.pipeline import raw_frame

QSGD, ELASTIQUANT, ELASTICL, CO3, TERNGRAD, SIGNSGD, PER_TENSOR = 5, 7, 8, 9, 10, 11, 16
RAW, HUFFMAN, RUNS, ELIAS, ZSTD = range(5)
BITS_4 = struct.pack("<BI", 4, 512)

# One scale of a bucket or a tensor, and 4 bits a code: 6, 3 and 1 values.
_ONE, _ONE_OF_TENSOR = struct.pack("<H", 0x7F00), struct.pack("<f", 1.0)
_WEIGHT, _BIAS, _MEAN = b"\0" + _ONE + bytes(3), b"\0" + _ONE + bytes(2), b"\0" + _ONE + bytes(1)
GOOD_TENSORS = b"".join(b"\0" + _ONE_OF_TENSOR + bytes(size) for size in (3, 2, 1))
_AT_WEIGHT = "section of tensor fc.weight is invalid: *"


def _first(section: bytes, params: bytes = BITS_4, codec_id: int = QSGD, rest: bytes = _BIAS + _MEAN) -> bytes:
    """A frame whose first section is this one; the others are good."""
    return raw_frame(codec_id=codec_id, params=params, body=section + rest)


def _of_tensor(codec_id: int, section: bytes) -> bytes:
    """The same for a codec with one scale a tensor and 4 bits a code."""
    return raw_frame(codec_id=codec_id, body=section + GOOD_TENSORS[1 + len(_ONE_OF_TENSOR) + 3 :])


def _coded(stage: int, payload: bytes, scale: bytes = _ONE, claimed: int | None = None) -> bytes:
    size = len(payload) if claimed is None else claimed
    return bytes([stage]) + scale + struct.pack("<I", size) + payload


def _float(bits: int) -> bytes:
    return struct.pack("<I", bits)


def _lengths(*lengths: int) -> bytes:
    """A table of all code lengths, of 15 * 15 possible bytes of two codes: these, then none."""
    nibbles = [*lengths, *([0] * (226 - len(lengths)))]
    return bytes([3, *(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))])


_OF = "the qsgd "
_STREAM = struct.pack("<H", 1) + b"\0"

ATTACKS: Mapping[str, tuple[bytes, str]] = {
    "qsgd-params-short": (
        _first(_WEIGHT, BITS_4[:4]),
        "qsgd has 5 bytes of wire parameters, the frame carries 4",
    ),
    "qsgd-1-bit": (_first(_WEIGHT, struct.pack("<BI", 1, 512)), "qsgd with 1 bits*"),
    "qsgd-255-bits": (_first(_WEIGHT, struct.pack("<BI", 255, 512)), "qsgd with 255 bits*"),
    "qsgd-bucket-1": (_first(_WEIGHT, struct.pack("<BI", 4, 1)), "qsgd with*"),
    "qsgd-bucket-4-gib": (_first(_WEIGHT, struct.pack("<BI", 4, 2**32 - 1)), "qsgd with*"),
    "qsgd-empty-body": (raw_frame(codec_id=QSGD, params=BITS_4, body=b""), _OF + _AT_WEIGHT),
    "qsgd-ends-in-scale": (raw_frame(codec_id=QSGD, params=BITS_4, body=_WEIGHT[:2]), _OF + _AT_WEIGHT),
    "qsgd-ends-in-codes": (raw_frame(codec_id=QSGD, params=BITS_4, body=_WEIGHT[:-1]), _OF + _AT_WEIGHT),
    "qsgd-last-tensor-missing": (
        raw_frame(codec_id=QSGD, params=BITS_4, body=_WEIGHT + _BIAS),
        _OF + "section of tensor bn.mean is invalid: *",
    ),
    "qsgd-byte-after": (_first(_WEIGHT, rest=_BIAS + _MEAN + b"\0"), "the qsgd body is followed by 1 bytes*"),
    "qsgd-stage-5": (_first(b"\5" + _WEIGHT[1:]), _OF + _AT_WEIGHT),
    "qsgd-stage-255": (_first(b"\xff" + _WEIGHT[1:]), _OF + _AT_WEIGHT),
    "qsgd-scale-nan": (_first(b"\0\x80\xff" + bytes(3)), _OF + _AT_WEIGHT),
    "qsgd-scale-infinite": (_first(b"\0\x00\xff" + bytes(3)), _OF + _AT_WEIGHT),
    "qsgd-scale-of-ones": (_first(b"\0\xff\xff" + bytes(3)), _OF + _AT_WEIGHT),
    "qsgd-scale-nan-in-last": (
        _first(_WEIGHT, rest=_BIAS + b"\0\x80\xff" + b"\0"),
        _OF + "section of tensor bn.mean is invalid: *",
    ),
    "qsgd-negative-zero": (_first(b"\0" + _ONE + b"\x08\0\0"), _OF + _AT_WEIGHT),
    "qsgd-padding": (
        _first(_WEIGHT, rest=b"\0" + _ONE + b"\0\x10" + _MEAN),
        _OF + "section of tensor fc.bias is invalid: *",
    ),
    "qsgd-payload-4-gib": (_first(_coded(ELIAS, bytes(4), claimed=2**32 - 1)), _OF + _AT_WEIGHT),
    "qsgd-payload-one-too-long": (
        raw_frame(codec_id=QSGD, params=BITS_4, body=_coded(ELIAS, bytes(4), claimed=5)),
        _OF + _AT_WEIGHT,
    ),
    "elias-without-count": (_first(_coded(ELIAS, bytes(3))), _OF + _AT_WEIGHT),
    "elias-4-billion-nonzeros": (_first(_coded(ELIAS, _float(2**32 - 1) + bytes(8))), _OF + _AT_WEIGHT),
    "elias-gap-beyond-tensor": (_first(_coded(ELIAS, _float(1) + bytes([0b00000111, 0]))), _OF + _AT_WEIGHT),
    "elias-word-without-end": (_first(_coded(ELIAS, _float(1) + b"\xff" * 40)), _OF + _AT_WEIGHT),
    "elias-byte-after": (_first(_coded(ELIAS, _float(0) + b"\0")), _OF + _AT_WEIGHT),
    "elias-padding": (_first(_coded(ELIAS, _float(1) + bytes([0b10000000]))), _OF + _AT_WEIGHT),
    "huffman-no-table": (_first(_coded(HUFFMAN, b"")), _OF + _AT_WEIGHT),
    "huffman-table-kind-9": (_first(_coded(HUFFMAN, b"\x09" + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-same-table-as-none": (_first(_coded(HUFFMAN, b"\x00" + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-static-table-of-none": (_first(_coded(HUFFMAN, b"\x01\x00" + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-incomplete": (_first(_coded(HUFFMAN, _lengths(1, 2) + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-over-subscribed": (_first(_coded(HUFFMAN, _lengths(1, 1, 1) + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-code-of-15-bits": (_first(_coded(HUFFMAN, _lengths(*range(1, 15), 15, 15) + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-table-cut": (_first(_coded(HUFFMAN, _lengths(1, 1)[:50])), _OF + _AT_WEIGHT),
    "huffman-zero-marginal": (_first(_coded(HUFFMAN, b"\x02" + bytes(15) + _STREAM)), _OF + _AT_WEIGHT),
    "huffman-stream-cut": (_first(_coded(HUFFMAN, _lengths(1, 1) + struct.pack("<H", 9) + b"\0")), _OF + _AT_WEIGHT),
    "huffman-stream-too-long": (
        _first(_coded(HUFFMAN, _lengths(1, 1) + struct.pack("<H", 2) + bytes(2))),
        _OF + _AT_WEIGHT,
    ),
    "huffman-stream-padding": (
        _first(_coded(HUFFMAN, _lengths(1, 1) + struct.pack("<H", 1) + b"\x80")),
        _OF + _AT_WEIGHT,
    ),
    "huffman-block-after": (_first(_coded(HUFFMAN, _lengths(1, 1) + _STREAM + b"\0")), _OF + _AT_WEIGHT),
    "runs-of-15-bits": (_first(_coded(RUNS, b"\x0f" + b"\x03")), _OF + _AT_WEIGHT),
    "runs-of-other-signs": (_first(_coded(RUNS, b"\x31" + b"\x03")), _OF + _AT_WEIGHT),
    "runs-empty": (_first(_coded(RUNS, b"")), _OF + _AT_WEIGHT),
    "runs-no-table": (_first(_coded(RUNS, b"\x00")), _OF + _AT_WEIGHT),
    "no-coder": (_first(_coded(5, bytes(8))), _OF + _AT_WEIGHT),
    "zstd-nothing": (_first(_coded(ZSTD, b"")), "*"),
    "zstd-not-a-frame": (_first(_coded(ZSTD, b"\x28\xb5\x2f\xfd" + bytes(12))), "*"),
    "elasticl-0-levels": (
        raw_frame(codec_id=ELASTICL, body=struct.pack("<H", 0) + GOOD_TENSORS),
        "the elasticl body has 0 levels; 1 to 32767 are possible",
    ),
    "elasticl-65535-levels": (
        raw_frame(codec_id=ELASTICL, body=struct.pack("<H", 65535) + GOOD_TENSORS),
        "the elasticl body has 65535 levels; 1 to 32767 are possible",
    ),
    "elasticl-ends-in-levels": (
        raw_frame(codec_id=ELASTICL, body=b"\7"),
        "the elasticl body ends within its number of levels",
    ),
    "elastiquant-levels-fall": (
        _first(_WEIGHT, struct.pack("<BBIff", 4, 1, 512, 0.5, 0.25), ELASTIQUANT),
        "the elastiquant parameters describe no increasing levels from 0 to 1",
    ),
    "elastiquant-level-nan": (
        _first(_WEIGHT, struct.pack("<BBIf", 4, 1, 512, float("nan")), ELASTIQUANT),
        "the elastiquant parameters describe no increasing levels from 0 to 1",
    ),
    "elastiquant-ratio-nan": (
        _first(_WEIGHT, struct.pack("<BBId", 4, 0, 512, float("nan")), ELASTIQUANT),
        "the elastiquant parameters describe no increasing levels from 0 to 1",
    ),
    "elastiquant-ratio-too-small": (
        _first(_WEIGHT, struct.pack("<BBId", 8, 0, 512, 1e-30), ELASTIQUANT),
        "the elastiquant parameters describe no increasing levels from 0 to 1",
    ),
    "co3-reserved-exponent": (_of_tensor(CO3, b"\0" + _ONE_OF_TENSOR + b"\6\0\0"), "the co3 " + _AT_WEIGHT),
    "co3-scale-too-small": (_of_tensor(CO3, b"\0" + _float(1) + bytes(3)), "the co3 " + _AT_WEIGHT),
    "co3-scale-nan": (_of_tensor(CO3, b"\0" + _float(0x7FC00000) + bytes(3)), "the co3 " + _AT_WEIGHT),
    "co3-scale-infinite": (_of_tensor(CO3, b"\0" + _float(0x7F800000) + bytes(3)), "the co3 " + _AT_WEIGHT),
    "co3-scale-negative": (_of_tensor(CO3, b"\0" + _float(0xBF800000) + bytes(3)), "the co3 " + _AT_WEIGHT),
    "signsgd-elias": (
        raw_frame(codec_id=SIGNSGD, body=_coded(ELIAS, bytes(4), _ONE_OF_TENSOR)),
        "the signsgd " + _AT_WEIGHT,
    ),
    "terngrad-fourth-code": (
        raw_frame(codec_id=TERNGRAD, body=b"\0" + _ONE_OF_TENSOR + b"\2\0" + (b"\0" + _ONE_OF_TENSOR + b"\0") * 2),
        "the terngrad " + _AT_WEIGHT,
    ),
    "per-tensor-no-codec": (raw_frame(codec_id=PER_TENSOR, body=b""), "the per-tensor parameters name no codec"),
    "per-tensor-in-itself": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", PER_TENSOR, 4) + struct.pack("<HH", 1, 0)),
        "a codec inside per-tensor cannot itself choose by tensor",
    ),
    "per-tensor-9-codecs": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0) * 9),
        "the per-tensor parameters name more than 8 codecs",
    ),
    "per-tensor-params-cut": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 9)),
        "the per-tensor parameters end within a codec's parameters",
    ),
    "per-tensor-entry-cut": (
        raw_frame(codec_id=PER_TENSOR, params=b"\1"),
        "the per-tensor parameters end within an entry",
    ),
    "per-tensor-choices-cut": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0), body=b"\0"),
        "the per-tensor body ends within the choices of 3 tensors",
    ),
    "per-tensor-choice-beyond": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0), body=b"\0\0\1"),
        "the per-tensor body chooses codec 1, there are 1",
    ),
    "per-tensor-length-cut": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0), body=b"\0\0\0\1"),
        "the per-tensor body ends within a length",
    ),
    "per-tensor-length-4-gib": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0), body=b"\0\0\0" + b"\xff" * 4 + bytes(40)),
        "the per-tensor body holds 40 bytes where 4294967295 are announced",
    ),
    "per-tensor-bad-inside": (
        raw_frame(
            codec_id=PER_TENSOR,
            params=struct.pack("<HH", 1, 0),
            body=b"\0\0\0" + _float(40) + _float(0x7FC00000) + bytes(36),
        ),
        "the fp32 body holds NaN or infinite values",
    ),
    "per-tensor-byte-after": (
        raw_frame(codec_id=PER_TENSOR, params=struct.pack("<HH", 1, 0), body=b"\0\0\0" + _float(40) + bytes(41)),
        "the per-tensor body is followed by 1 bytes that do not belong to it",
    ),
}


def codec_of(data: bytes) -> int:
    """The codec id in a frame."""
    return int.from_bytes(data[8:10], "little")
