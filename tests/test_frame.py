"""The wire frame: what is built is what is parsed, byte for byte; fields that do not fit are
refused on both sides."""

from __future__ import annotations

import dataclasses
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs, frame
from edgegossip.frame import Aux, Frame, Header, Kind, Limits
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, PeerError, UsageError
from tests.conformance.pipeline import raw_frame

LIMITS = Limits(max_body_bytes=10_000)
RUN_ID = bytes(range(16))
U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1

frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    codec_id=st.integers(1, U16),
    codec_params=st.binary(max_size=512),
    layout_hash=st.integers(0, U64),
    run_id=st.binary(min_size=16, max_size=16),
    round=st.integers(0, U32),
    sequence=st.integers(1, U64),
    key=st.integers(0, U64),
    body=st.binary(max_size=300),
    aux=st.dictionaries(st.integers(1, 255), st.floats(allow_nan=False, allow_infinity=False), max_size=32),
)


def example(**changes: Any) -> Frame:
    return dataclasses.replace(Frame(Kind.MODEL, 1, b"", 5, RUN_ID, 3, 1, 7, b"body", {Aux.LOSS: 0.5}), **changes)


def joined(message: Frame) -> bytes:
    return b"".join(frame.build(message))


@settings(max_examples=100)
@given(frames)
def test_parse_undoes_build(message: Frame) -> None:
    data = joined(message)
    parsed = frame.parse(data, LIMITS)
    assert dataclasses.replace(parsed, body=bytes(parsed.body), aux=dict(parsed.aux)) == message
    assert list(parsed.aux) == sorted(message.aux)
    assert joined(parsed) == data


@settings(max_examples=100)
@given(frames)
def test_header_says_how_much_is_to_come(message: Frame) -> None:
    data = joined(message)
    header = frame.parse_header(memoryview(data)[: frame.HEADER_BYTES], LIMITS)
    assert header.frame_bytes == len(data)
    assert (header.params_bytes, header.body_bytes) == (len(message.codec_params), len(message.body))
    for name in ("kind", "codec_id", "layout_hash", "run_id", "round", "sequence", "key"):
        assert getattr(header, name) == getattr(message, name)


@pytest.mark.parametrize(
    "container", [bytes, bytearray, lambda b: memoryview(bytearray(b)), lambda b: np.frombuffer(b, np.uint8).data]
)
def test_parse_takes_any_buffer(container: Any) -> None:
    parsed = frame.parse(container(joined(example())), LIMITS)
    assert bytes(parsed.body) == b"body"
    assert parsed.codec_params == b"" and isinstance(parsed.run_id, bytes)


def test_body_is_never_copied() -> None:
    body = bytes(range(256)) * 16
    head, tail = frame.build(example(body=body))
    assert tail is body
    data = head + body
    parsed = frame.parse(data, LIMITS)
    assert isinstance(parsed.body, memoryview) and parsed.body.obj is data
    assert parsed.body.readonly
    assert frame.parse(bytearray(data), LIMITS).body.readonly


def test_one_body_to_several_neighbours_is_summed_up_once() -> None:
    body, other = bytes(100), bytes(99) + b"1"
    messages = [example(body=body), example(body=body, sequence=2), example(body=body, aux={}), example(body=other)]
    summed = frame.PayloadSum()
    for message in (*messages, messages[0]):
        assert b"".join(frame.build(message, summed)) == joined(message)


def test_body_may_be_a_view_of_wider_elements() -> None:
    numbers = np.arange(6, dtype="<f4").reshape(2, 3)
    head, body = frame.build(example(body=numbers.data))
    assert frame.parse(head + bytes(body), LIMITS).body == numbers.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": 9}, "frame kind 9 is not one of MODEL, DIFFERENCE, GRADIENT, UPDATE, STATE, HELLO"),
        ({"codec_id": 0}, "frame field codec_id must be an integer from 1 to 65535, got 0"),
        ({"layout_hash": -1}, f"frame field layout_hash must be an integer from 0 to {U64}, got -1"),
        ({"round": U32 + 1}, f"frame field round must be an integer from 0 to {U32}, got {U32 + 1}"),
        ({"round": 1.0}, f"frame field round must be an integer from 0 to {U32}, got 1.0"),
        ({"sequence": 0}, f"frame field sequence must be an integer from 1 to {U64}, got 0"),
        ({"run_id": b"short"}, "a run id is 16 bytes, this one is b'short'"),
        ({"codec_params": bytes(513)}, "513 bytes of codec parameters exceed the limit of 512"),
        ({"aux": {0: 1.0}}, "aux tag 0 is not a whole number from 1 to 255"),
        ({"aux": {1.5: 1.0}}, "aux tag 1.5 is not a whole number from 1 to 255"),
        ({"aux": {2: float("nan")}}, "aux value LOSS is nan; only finite numbers travel"),
        ({"aux": {77: float("inf")}}, "aux value tag 77 is inf; only finite numbers travel"),
        ({"aux": dict.fromkeys(range(1, 34), 0.0)}, "a frame carries at most 32 aux values, this one has 33"),
        ({"body": [1]}, "a frame's body must be bytes or a contiguous memoryview, not list"),
        ({"body": memoryview(b"abcd")[::2]}, "a frame's body must be bytes or a contiguous memoryview, not memoryview"),
    ],
)
def test_build_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        frame.build(example(**changes))


def test_build_refuses_a_body_beyond_32_bits() -> None:
    """A broadcast view: 4 GiB long without 4 GiB of memory would not be contiguous, so the check is
    called alone."""
    with pytest.raises(
        UsageError, match="a body of 4294967296 bytes does not fit one frame, which carries at most 4294967295"
    ):
        frame._check_fields(example(), 2**32)


def test_numpy_integers_are_integers() -> None:
    assert joined(example(key=np.uint64(7), round=np.int64(3))) == joined(example())


def test_size_limit_is_checked_before_the_rest_has_arrived() -> None:
    start = raw_frame(body_bytes=LIMITS.max_body_bytes + 1)[: frame.HEADER_BYTES]
    with pytest.raises(DecodeError, match="^a body of 10001 bytes exceeds the limit of 10000$"):
        frame.parse_header(start, LIMITS)


def test_no_claimed_length_is_allocated() -> None:
    data = raw_frame(body_bytes=2**31)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="truncated"):
        frame.parse(data, Limits(max_body_bytes=2**32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@settings(max_examples=100)
@given(frames, st.data())
def test_one_flipped_bit_is_always_noticed(message: Frame, data: st.DataObject) -> None:
    changed = bytearray(joined(message))
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DecodeError):
        frame.parse(bytes(changed), LIMITS)


@given(frames, st.data())
def test_every_cut_is_noticed(message: Frame, data: st.DataObject) -> None:
    whole = joined(message)
    with pytest.raises(DecodeError):
        frame.parse(whole[: data.draw(st.integers(0, len(whole) - 1))], LIMITS)


def test_limits_of_a_model_hold_every_body_of_it() -> None:
    layout = Layout.of([TensorSpec(f"t{k}", (k,)) for k in range(50)])
    limits = Limits.of(layout)
    x = np.ones(layout.size, np.float32)
    for name in codecs.names():
        codec = codecs.get(name)
        body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(0, 0))
        assert len(body) <= limits.max_body_bytes <= 4 * layout.size + 64 * 50 + 4096
    largest = (U32 - 4096 - 64) // 4
    assert U32 - 4 < Limits.of(Layout.of([TensorSpec("t", (largest,))])).max_body_bytes <= U32
    with pytest.raises(UsageError, match=f"a model of {largest + 1} values does not fit one message"):
        Limits.of(Layout.of([TensorSpec("t", (largest + 1,))]))


def header_of(message: Frame) -> Header:
    return frame.parse_header(joined(message), LIMITS)


@pytest.mark.parametrize("view", [lambda f: f, header_of])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_id": bytes(16)}, f"the peer is in another run: {'00' * 16}, ours is {RUN_ID.hex()}"),
        (
            {"layout_hash": 0xABC},
            "the peer trains another model: layout 0000000000000abc, ours is 0000000000000005; "
            "all boards need the same model and the same edgegossip version",
        ),
        ({"codec_id": 2}, "the peer sent codec id 2 where fp32 (id 1) is expected"),
    ],
)
def test_expect_names_the_difference(view: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PeerError, match=f"^{re.escape(message)}$"):
        frame.expect(view(example(**changes)), run_id=RUN_ID, layout_hash=5, codec=codecs.get("fp32"))


def test_expect_compares_codec_parameters_where_they_are_known() -> None:
    ours = codecs.get("fp32")
    other = example(codec_params=b"\1\2")
    with pytest.raises(PeerError, match=r"^the peer sent fp32 with parameters \[0102\] where \[\] is expected$"):
        frame.expect(other, run_id=RUN_ID, layout_hash=5, codec=ours)
    frame.expect(header_of(other), run_id=RUN_ID, layout_hash=5, codec=ours)


def test_expect_accepts_ours_and_any_codec_unless_told() -> None:
    frame.expect(example(), run_id=RUN_ID, layout_hash=5, codec=codecs.get("fp32"))
    frame.expect(example(codec_id=999), run_id=RUN_ID, layout_hash=5)
