"""Order-0 entropy of the symbols that a quantised codec sends, counted in a body of its `raw`
stage.

Reads the wire format on its own (docs/wire-format.md: "Quantised codecs"), so that the figure does
not rest on the code that it judges. With the same key and state all stages send the same symbols.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs import Body, Codec
from edgegossip.codecs.theory import entropy_bits
from edgegossip.layout import Layout
from edgegossip.types import UsageError

_RAW = 0
_CHUNK = 1 << 20  # codes


@dataclass(frozen=True, slots=True)
class CodeForm:
    """How a raw body holds its codes: bytes before the first section, bits a code, values a scale
    of 2 bytes (0: a tensor has one of 4)."""

    head_bytes: int
    bits: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Entropy:
    """Bits a value: with a distribution of its own for each tensor (mean over all values), and one
    for all."""

    by_tensor: float
    overall: float


def code_form(codec: Codec[Any], body: Body) -> CodeForm | None:
    """The form of this codec's raw bodies; None for a codec without quantised symbols."""
    params, wire_id = codec.wire_params(), codec.wire_id
    if wire_id in (5, 6):  # qsgd, qsgd-inf
        return CodeForm(0, *struct.unpack("<BI", params))
    if wire_id == 7:  # elastiquant
        bits, _, bucket = struct.unpack_from("<BBI", params)
        return CodeForm(0, bits, bucket)
    if wire_id == 8:  # elasticl: its number of levels leads the body
        return CodeForm(2, 1 + struct.unpack_from("<H", body)[0].bit_length(), 0)
    bits_a_code = {9: 4, 10: 2, 11: 1}  # co3, terngrad, signsgd
    return CodeForm(0, bits_a_code[wire_id], 0) if wire_id in bits_a_code else None


def entropy(body: Body, layout: Layout, form: CodeForm) -> Entropy:
    """Entropy of the codes in a raw body. Raises UsageError when the body has another stage or
    size."""
    data = np.frombuffer(body, np.uint8)
    at, bits, everything = form.head_bytes, 0.0, np.zeros(1 << form.bits, np.int64)
    for tensor in layout.tensors:
        if not tensor.size:
            continue
        scale_bytes = 2 * -(-tensor.size // form.bucket) if form.bucket else 4
        start = at + 1 + scale_bytes
        at = start + (tensor.size * form.bits + 7) // 8
        if at > data.size or data[start - 1 - scale_bytes] != _RAW:
            raise UsageError(f"the section of tensor {tensor.name} is not a raw one")
        counts = _counts(data[start:at], tensor.size, form.bits)
        bits += entropy_bits(counts) * tensor.size
        everything += counts
    if at != data.size:
        raise UsageError(f"a raw body of {data.size} bytes has {data.size - at} bytes after its last section")
    return Entropy(bits / layout.size, entropy_bits(everything))


def _counts(packed: NDArray[np.uint8], n: int, bits: int) -> NDArray[np.int64]:
    """How often each of the 2^bits codes occurs among n, packed from the lowest bit on."""
    counts = np.zeros(1 << bits, np.int64)
    weights = 1 << np.arange(bits, dtype=np.int64)
    step = _CHUNK * bits // 8
    for first in range(0, packed.size, step):
        here = min(_CHUNK, n - first * 8 // bits)
        if bits == 8:
            codes = packed[first : first + step]
        elif bits == 4:
            pair = packed[first : first + step]
            codes = np.stack((pair & 15, pair >> 4), axis=1).reshape(-1)[:here]
        else:
            stream = np.unpackbits(packed[first : first + step], bitorder="little")[: here * bits]
            codes = stream.reshape(here, bits) @ weights
        counts += np.bincount(codes, minlength=1 << bits)
    return counts
