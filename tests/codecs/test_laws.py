"""What every codec owes: the laws of the seam, held for each line of the conformance list."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, LocalError, Vec
from tests.codecs.cases import CASES, Case, models

CTX = codecs.Ctx(key=0x1234_5678_9ABC_DEF0, round=7, loss=0.5, lr=0.1)
EXAMPLES = 100  # a law and codec; every codec added here costs the suite about a second a law
BIG = float(np.finfo(np.float32).max)
LAYOUT = Layout.of([TensorSpec("conv.weight", (3, 5)), TensorSpec("empty", (0,)), TensorSpec("fc.bias", (4,))])

every_codec = pytest.mark.parametrize("case", CASES, ids=str)


def encode(case: Case, x: Vec, layout: Layout) -> bytes:
    codec = case.codec()
    return bytes(codec.encode(x, codec.init(layout), CTX)[0])


def assert_within_bound(case: Case, layout: Layout, x: Vec) -> None:
    y = case.codec().decode(encode(case, x, layout), layout)
    assert y.dtype == np.float32 and y.shape == (layout.size,)
    assert np.isfinite(y).all()
    error = np.abs(y.astype(np.float64) - x)
    assert (error <= case.bound(x, layout)).all(), (x, y)


@every_codec
@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models())
def test_round_trip_is_finite_and_within_the_stated_bound(case: Case, model: tuple[Layout, Vec]) -> None:
    assert_within_bound(case, *model)


@every_codec
@pytest.mark.parametrize(
    "values",
    [
        [],
        [3.25],
        [0.0] * 9,
        [-0.0, 0.0],
        [1e-45, -1e-45, 2e-45],
        [1e-39, 5e-39, 0.0],
        [BIG, -BIG],
        [BIG] * 3,
        [-BIG, 0.0, 1e-45],
        [0.1] * 33,
        [1.0, np.nextafter(np.float32(1), np.float32(2))],
        [1e6, 1e6 + 0.25],
        [65504.0, 65520.0, -1e9],
    ],
    ids=lambda v: f"{len(v)}x{v[0]:g}" if v else "empty",
)
def test_round_trip_of_special_inputs(case: Case, values: list[float]) -> None:
    assert_within_bound(case, Layout.of([TensorSpec("t", (len(values),))]), np.array(values, np.float32))


@every_codec
def test_round_trip_across_the_borders_of_chunks(case: Case) -> None:
    layout = Layout.of([TensorSpec("a", (70_001,)), TensorSpec("b", (131_072,)), TensorSpec("c", (3,))])
    x = np.random.default_rng(3).standard_normal(layout.size).astype(np.float32)
    assert_within_bound(case, layout, x)


@every_codec
@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models())
def test_same_input_same_bytes_and_the_input_is_left_alone(case: Case, model: tuple[Layout, Vec]) -> None:
    layout, x = model
    before = x.copy()
    frozen = x.copy()
    frozen.flags.writeable = False
    first = encode(case, x, layout)
    assert encode(case, frozen, layout) == first
    np.testing.assert_array_equal(x, before)


@every_codec
@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models(), weight=st.sampled_from([1.0, 0.0, -0.5, 1 / 3, 1e-30, 2.0]))
def test_out_and_weight(case: Case, model: tuple[Layout, Vec], weight: float) -> None:
    layout, x = model
    codec, body = case.codec(), encode(case, x, layout)
    values = codec.decode(body, layout)
    out = np.full(layout.size, 5, np.float32)
    assert codec.decode(body, layout, out) is out
    np.testing.assert_array_equal(out, values)
    out = np.linspace(-2, 2, layout.size, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = out + np.float32(weight) * values
    assert codec.decode(body, layout, out, weight) is out
    np.testing.assert_array_equal(out, expected)


@every_codec
def test_weight_across_the_borders_of_chunks(case: Case) -> None:
    layout = Layout.of([TensorSpec("a", (70_001,))])
    x = np.random.default_rng(4).standard_normal(layout.size).astype(np.float32)
    codec, body, out = case.codec(), encode(case, x, layout), np.ones(layout.size, np.float32)
    codec.decode(body, layout, out, 0.25)
    np.testing.assert_array_equal(out, 1 + np.float32(0.25) * codec.decode(body, layout))


@every_codec
@settings(max_examples=EXAMPLES, deadline=None)
@given(model=models(), shift=st.integers(0, 7))
def test_the_receiver_rebuilds_the_codec_from_the_frame(case: Case, model: tuple[Layout, Vec], shift: int) -> None:
    """At any alignment of the body, which a frame does not promise."""
    layout, x = model
    codec, body = case.codec(), encode(case, x, layout)
    assert 1 <= codec.wire_id <= 65535 and len(codec.wire_params()) <= codecs.MAX_PARAMS_BYTES
    rebuilt = codecs.from_wire(codec.wire_id, codec.wire_params())
    assert (rebuilt.wire_id, rebuilt.wire_params()) == (codec.wire_id, codec.wire_params())
    view = memoryview(bytes(shift) + body)[shift:]
    np.testing.assert_array_equal(rebuilt.decode(view, layout), codec.decode(body, layout))
    out = np.empty(layout.size, np.float32)
    np.testing.assert_array_equal(rebuilt.decode(view, layout, out), codec.decode(body, layout))


@every_codec
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at, tensor", [(0, "conv.weight"), (14, "conv.weight"), (15, "fc.bias"), (18, "fc.bias")])
def test_a_value_that_is_not_finite_names_its_tensor(case: Case, bad: float, at: int, tensor: str) -> None:
    x = np.ones(LAYOUT.size, np.float32)
    x[at] = bad
    with pytest.raises(LocalError, match=f"^tensor {re.escape(tensor)} holds NaN or infinite values"):
        encode(case, x, LAYOUT)


@every_codec
@pytest.mark.parametrize("x", [np.zeros(18, np.float32), np.zeros(19), np.zeros(38, np.float32)[::2]], ids=str)
def test_a_vector_of_another_shape_or_type_is_the_callers_mistake(case: Case, x: np.ndarray) -> None:
    with pytest.raises(LocalError, match=r"float32\[19\]"):
        encode(case, x, LAYOUT)


def read_only(vec: Vec) -> Vec:
    vec.flags.writeable = False
    return vec


@every_codec
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weight": 0.5}, "a weight needs a vector `out` to add to"),
        ({"out": np.zeros(3, np.float32)}, r"expected a float32\[19\], got float32\[3\]"),
        ({"out": read_only(np.zeros(19, np.float32))}, "the vector `out` is read-only"),
        ({"out": np.zeros(19, np.float32), "weight": np.nan}, "the weight must be a finite float32, got nan"),
        ({"out": np.zeros(19, np.float32), "weight": 1e39}, "the weight must be a finite float32, got 1e\\+39"),
    ],
)
def test_decoding_into_something_impossible(case: Case, arguments: dict[str, Any], message: str) -> None:
    body = encode(case, np.ones(LAYOUT.size, np.float32), LAYOUT)
    with pytest.raises(LocalError, match=f"^{message}$"):
        case.codec().decode(body, LAYOUT, **arguments)


@every_codec
def test_a_body_of_another_size_is_refused(case: Case) -> None:
    body = encode(case, np.ones(LAYOUT.size, np.float32), LAYOUT)
    out = np.full(LAYOUT.size, 7, np.float32)
    for wrong in (b"", body[:-1], body + b"\0", body * 2):
        with pytest.raises(DecodeError):
            case.codec().decode(wrong, LAYOUT, out)
        with pytest.raises(DecodeError):
            case.codec().decode(wrong, LAYOUT)
    assert (out == 7).all()


@every_codec
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_any_body_decodes_to_finite_values_or_leaves_out_untouched(case: Case, data: st.DataObject) -> None:
    body = bytearray(encode(case, np.linspace(-1, 1, LAYOUT.size, dtype=np.float32), LAYOUT))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=4)):
        body[at] = value
    out = np.full(LAYOUT.size, 7, np.float32)
    try:
        case.codec().decode(bytes(body), LAYOUT, out)
    except DecodeError:
        assert (out == 7).all()
        with pytest.raises(DecodeError):
            case.codec().decode(bytes(body), LAYOUT)
    else:
        assert np.isfinite(out).all()


def test_the_conformance_list_is_complete() -> None:
    assert {case.name for case in CASES} == set(codecs.names())
