"""Entropy of known symbols, read from raw bodies."""

import struct
from dataclasses import dataclass

import numpy as np
import pytest

from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError
from lab.bench.codecs import CodeForm, code_form, entropy
from tests.conformance import reference_quantised


def packed(codes, bits):
    stream = ((np.asarray(codes)[:, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1)
    return np.packbits(stream, bitorder="little").tobytes()


def section(codes, bits, buckets):
    """Without buckets one scale for the tensor."""
    return b"\0" + (struct.pack("<H", 0x7F00) * buckets or struct.pack("<f", 1)) + packed(codes, bits)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 11, 16])
def test_known_distributions(bits):
    # Two equally likely symbols in one tensor, one symbol in the other, which has three times as
    # many values.
    first, second = np.tile([0, (1 << bits) - 1], 8), np.zeros(48, int)
    layout = Layout.of([TensorSpec("a", (4, 4)), TensorSpec("none", (0,)), TensorSpec("b", (48,))])
    body = b"head" + section(first, bits, 2) + section(second, bits, 6)
    found = entropy(body, layout, CodeForm(4, bits, 8))
    assert found.by_tensor == pytest.approx(0.25)
    p = 8 / 64
    assert found.overall == pytest.approx(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def test_other_bodies_are_refused():
    layout = Layout.of([TensorSpec("a", (16,))])
    whole = section(np.zeros(16, int), 4, 0)
    for body in (b"\1" + whole[1:], whole[:-1], whole + b"\0", b""):
        with pytest.raises(UsageError):
            entropy(body, layout, CodeForm(0, 4, 0))


@dataclass(frozen=True)
class Named:
    """As much of a codec as `code_form` asks for."""

    wire_id: int
    params: bytes = b""

    def wire_params(self):
        return self.params


@pytest.mark.parametrize(
    ("wire_id", "form"),
    [
        ((5, struct.pack("<BI", 3, 64)), CodeForm(0, 3, 64)),
        ((6, struct.pack("<BI", 16, 0)), CodeForm(0, 16, 0)),
        ((7, struct.pack("<BBId", 8, 0, 512, 0.9)), CodeForm(0, 8, 512)),
        ((8, b""), CodeForm(2, 5, 0)),
        ((9, b""), CodeForm(0, 4, 0)),
        ((10, b""), CodeForm(0, 2, 0)),
        ((11, b""), CodeForm(0, 1, 0)),
        ((12, b""), None),
        ((1, b""), None),
    ],
)
def test_forms_of_the_codecs(wire_id, form):
    assert code_form(Named(*wire_id), struct.pack("<H", 9)) == form


@pytest.mark.parametrize(
    ("wire_id", "encode", "decode"),
    [
        (8, reference_quantised.elasticl, reference_quantised.elasticl_values),
        (10, reference_quantised.terngrad, reference_quantised.terngrad_values),
        (11, reference_quantised.signsgd, reference_quantised.signsgd_values),
    ],
)
def test_bodies_of_the_plain_reference(wire_id, encode, decode):
    # With one scale a tensor, codes and values correspond, so both have the same entropy.
    shapes = ((7, 9), (0,), (150,))
    x = np.random.default_rng(4).standard_normal(213).astype(np.float32)
    body, bits = encode(x, shapes, "raw"), 0.0
    values = np.array(decode(body, shapes, "raw"))
    for part in (values[:63], values[63:]):
        p = np.unique(part, return_counts=True)[1] / part.size
        bits -= (p * np.log2(p)).sum() * part.size / values.size
    layout = Layout.of([TensorSpec(str(k), shape) for k, shape in enumerate(shapes)])
    found = entropy(body, layout, code_form(Named(wire_id), body))
    assert found.by_tensor == pytest.approx(bits) and found.overall > 0
