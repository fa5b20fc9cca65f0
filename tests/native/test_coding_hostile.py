"""Sections that no encoder wrote: only faults or finite values come of them, and nothing is read
beyond the body."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.native import coding
from edgegossip.native.coding import FAULTS
from edgegossip.types import UsageError
from tests.native import sections
from tests.native.faults import BAD_SCALE, BAD_STREAM, BAD_TABLE, ENDS_EARLY, survives
from tests.native.sections import CO3_TABLES, FP4, SIGN, TERNARY, decode, encode, exact, geometric, log2, uniform


def small_sections():
    """(quantiser, n, section) of every coder, transport and width."""
    made = {}
    for q, n, density, choice in [
        (TERNARY, 61, 0.5, "raw"),
        (SIGN, 61, 1, "raw"),
        (uniform(3, 8), 40, 0.9, "raw"),
        (uniform(11), 25, 0.9, "raw"),
        (TERNARY, 900, 0.5, "huffman"),
        (log2(3, 64), 700, 0.5, "huffman"),
        (uniform(4), 500, 0.5, "huffman"),
        (geometric(5, 512), 500, 0.5, "huffman"),
        (uniform(4), 9001, 0.5, "huffman"),
        (FP4, 500, 0.6, "huffman"),
        (uniform(4), 900, 0.05, "huffman"),
        (uniform(12), 2000, 0.01, "huffman"),
        (uniform(4, 8), 90, 0.1, "elias"),
        (uniform(16), 400, 0.05, "elias"),
    ]:
        x, scales = exact(q, *sections.sparse_levels(q, n, density))
        tables = CO3_TABLES if q is FP4 else coding.NO_TABLES
        body = encode(q, x, choice, scales, tables=tables, preferred=5 if q is FP4 else -1)
        made[f"{q.kind.name}-{q.bits}-{n}-{body[0]}"] = (q, n, body, tables)
    return made


SECTIONS = small_sections()


def test_the_sections_have_every_coder():
    assert {body[0] for _, _, body, _ in SECTIONS.values()} == {0, 1, 2, 3}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_byte_changed(name, at_the_edge):
    q, n, body, tables = SECTIONS[name]
    assert survives(q, at_the_edge(body), n, tables) == len(body)
    positions = [*range(min(len(body), 250)), *range(250, len(body), 17)]
    for at in positions:
        for change in (0x01, 0x80, 0xFF, 0x10):
            survives(q, at_the_edge(body[:at] + bytes([body[at] ^ change]) + body[at + 1 :]), n, tables)


@pytest.mark.parametrize("name", SECTIONS)
def test_cut_and_lengthened(name, at_the_edge):
    q, n, body, tables = SECTIONS[name]
    head = 1 + q.scale_bytes(n)
    for size in [*range(min(len(body), 120)), *range(120, len(body), 23), len(body) - 1]:
        assert survives(q, at_the_edge(body[:size]), n, tables) == ENDS_EARLY
        if size < head + 4 or body[0] == 0:
            continue
        shorter = body[:head] + struct.pack("<I", size - head - 4) + body[head + 4 : size]
        assert survives(q, at_the_edge(shorter), n, tables) in FAULTS  # the length is right, the payload is cut
    assert survives(q, at_the_edge(body + b"\0" * 9), n, tables) == len(body)  # another section may follow
    if body[0]:
        longer = body[:head] + struct.pack("<I", len(body) - head - 3) + body[head + 4 :] + b"\0"
        assert survives(q, at_the_edge(longer), n, tables) == BAD_STREAM
        for lie in (2**31 - 1, 2**31, 2**32 - 1, len(body)):
            lied = body[:head] + struct.pack("<I", lie) + body[head + 4 :]
            assert survives(q, at_the_edge(lied), n, tables) == ENDS_EARLY


@pytest.mark.parametrize("name", SECTIONS)
def test_of_another_size(name, at_the_edge):
    q, _, body, tables = SECTIONS[name]
    for n in (1, 2, 63, 1024, 70_000):
        survives(q, at_the_edge(body), n, tables)


@settings(max_examples=100)
@given(
    q=st.sampled_from([TERNARY, uniform(4), uniform(6), uniform(13), FP4, SIGN]),
    coder=st.integers(0, 5),
    payload=st.binary(max_size=90),
    n=st.integers(1, 300),
    table=st.integers(0, 3),
)
def test_noise(at_the_edge, q, coder, payload, n, table):
    """Any payload, most of them behind a table that is one."""
    if coder in (1, 2):
        payload = (
            bytes([table]) + payload if coder == 1 else bytes([payload[0] % 20 if payload else 0, table]) + payload
        )
    head = bytes([coder]) + struct.pack("<f", 1.5)
    body = head + payload if coder == 0 else head + struct.pack("<I", len(payload)) + payload
    survives(q, at_the_edge(body), n, CO3_TABLES if q is FP4 else coding.NO_TABLES)


Q4 = uniform(4)


def test_the_state_is_only_what_the_caller_passes():
    """A section with the table of the one before needs that one."""
    q, n = uniform(8), 3000
    x, scales = exact(q, np.arange(n) % 30, np.arange(n) % 2 == 0)
    state = coding.new_state()
    first = encode(q, x, "huffman", scales, state)
    second = encode(q, x, "huffman", scales, state)
    assert first[9] == 3 and second[9] == 0 and len(second) == len(first) - 128
    assert first[0] == second[0] == 1 and decode(q, second, n) == BAD_TABLE
    state = coding.new_state()
    assert decode(q, first + second, n, at=0, state=state) == len(first)
    assert decode(q, first + second, n, at=len(first), state=state) == len(first) + len(second)


IN_BUCKETS = uniform(2, 8)


def test_every_scale_of_a_bucket():
    """All that are finite, with a code of the largest level behind each; then each that is not."""
    patterns = np.arange(0xFF00, dtype=np.uint16)
    body, n = b"\0" + patterns.tobytes() + b"\x55\x55" * patterns.size, 8 * patterns.size
    out = np.empty(n, np.float32)
    assert decode(IN_BUCKETS, body, n, out) == decode(IN_BUCKETS, body, n) == len(body)
    np.testing.assert_array_equal(out, np.repeat((patterns.astype(np.uint32) << 15).view(np.float32), 8))
    for pattern in range(0xFF00, 0x10000):
        for before in (b"", b"\0\x7f"):  # it is the first, or the second
            bad = b"\0" + before + pattern.to_bytes(2, "little") + b"\x55\x55" * (1 + bool(before))
            assert decode(IN_BUCKETS, bad, 16 if before else 8) == BAD_SCALE


def call(**changes):
    q, n = changes.pop("q", Q4), changes.pop("n", 4)
    offsets, state = np.array([0, n]), changes.pop("state", coding.new_state())
    room = np.empty(changes.pop("room", coding.bound_of(offsets, q, "auto")), np.uint8)
    changes["preferred"] = np.array([changes.pop("preferred", -1)])
    return coding.encode_all(q, np.ones(n, np.float32), offsets, [1], "auto", state, room, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"room": 10}, "out is smaller than the sections may be"),
        ({"state": bytearray(513)}, "state"),
        ({"scales": np.ones(2, np.float32)}, "scales"),
        ({"scales": np.full(1, 1.3, np.float32), "q": IN_BUCKETS}, "8 bits of mantissa"),
        ({"tables": np.ones(17, np.uint8)}, "static tables must be whole rows"),
        ({"tables": np.ones(16, np.uint8), "preferred": 1}, "there is no such static table"),
        ({"threads": 0}, "threads=0"),
        ({"isa": "z80"}, "z80"),
    ],
)
def test_callers_mistakes(changes, message):
    with pytest.raises((ValueError, UsageError), match=message):
        call(**changes)
