"""Steps and their entropy code: the same bytes and values on every instruction set, also where 32
lanes are read as vectors, and damaged bodies that no instruction set takes for good."""

import struct

import numpy as np
import pytest

from edgegossip.native import stepped
from tests.native.everywhere import ISAS

N = 150_003
OFFSETS = np.array([0, 100_000, 100_000, 100_007, N])
COLUMNS = np.array([250, 0, 0, 1])
EIGHTHS = np.array([-3, 0, 17, 96], np.int8)
KEYS = pytest.mark.parametrize("key", [None, 0x0123_4567_89AB_CDEF])


def vector():
    rng = np.random.default_rng(4)
    loud = np.exp2(rng.integers(-9, 3, N // 300 + 1)).repeat(300)[:N]
    x = (rng.standard_normal(N) ** 3 * loud).astype(np.float32)
    x[:100_000].reshape(400, 250)[:] *= np.exp2(rng.integers(-4, 2, 250))
    return x


@KEYS
@pytest.mark.parametrize("step", [0.001, 0.2, 4.0])
@pytest.mark.parametrize("eighths", [stepped.ONE_STEP, EIGHTHS], ids=["one step", "own steps"])
def test_every_instruction_set_makes_and_reads_the_same(key, step, eighths):
    x = vector()
    bodies = {stepped.encode(x, OFFSETS, COLUMNS, key, step, eighths, isa=isa) for isa in ISAS}
    assert len(bodies) == 1
    body, decoded = bodies.pop(), set()
    for isa in ISAS:
        out = np.ones(N, np.float32)
        assert stepped.decode(body, OFFSETS, COLUMNS, key is not None, N, out, 0.3, isa=isa) == 0
        stored = np.empty(N, np.float32)
        assert stepped.decode(body, OFFSETS, COLUMNS, key is not None, N, stored, isa=isa) == 0
        assert np.array_equal(out, np.ones(N, np.float32) + np.float32(0.3) * stored)
        decoded.add(stored.tobytes())
    assert len(decoded) == 1
    assert len({stepped.error(x, OFFSETS, COLUMNS, step, eighths, isa=isa) for isa in ISAS}) == 1
    bits = {stepped.bits(x, OFFSETS, COLUMNS, key, step, eighths, isa=isa) for isa in ISAS}
    assert len(bits) == 1
    if step >= 0.2:  # below, most values are escapes, and what these take is a guess
        assert bits.pop() == pytest.approx(8 * len(body), rel=0.03)


@KEYS
def test_a_damaged_body_is_judged_alike_and_a_sum_left_alone(key):
    """Cut at many places, and with bytes changed: refused or finite, on all instruction sets."""
    x, rng = vector(), np.random.default_rng(5)
    body = stepped.encode(x, OFFSETS, COLUMNS, key, 0.05)
    for trial in range(60):
        damaged = bytearray(body)
        if trial % 3 == 0:
            del damaged[int(rng.integers(len(body))) :]
        else:
            at = int(rng.integers(200 if trial % 3 == 1 else len(body)))
            damaged[at] ^= 1 << int(rng.integers(8))
        results = set()
        for isa in ISAS:
            out = np.ones(N, np.float32)
            fault = stepped.decode(bytes(damaged), OFFSETS, COLUMNS, key is not None, N, out, 1.0, isa=isa)
            assert np.isfinite(out).all() and (fault == 0 or (out == 1).all())
            results.add((fault, out.tobytes()))
        assert len(results) == 1
        if trial % 3 == 0:
            assert fault != 0


@pytest.mark.parametrize("eighths", [stepped.ONE_STEP, EIGHTHS], ids=["one step", "steps of tensors"])
@pytest.mark.parametrize("step", [0.01, 1.0, 30.0])
def test_the_error_that_is_told_is_that_of_what_arrives(step, eighths):
    x, out = vector(), np.empty(N, np.float32)
    assert (
        stepped.decode(stepped.encode(x, OFFSETS, COLUMNS, None, step, eighths), OFFSETS, COLUMNS, False, N, out) == 0
    )
    error = float(((out.astype(np.float64) - x) ** 2).sum())
    assert stepped.error(x, OFFSETS, COLUMNS, step, eighths) == pytest.approx(error, rel=1e-3)


@KEYS
def test_sorted_columns_cost_less_and_arrive_in_their_places(key):
    """Columns of a loudness each: the same values, in fewer bytes than where no rows are known."""
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((100, 640)) * np.exp2(rng.integers(-5, 3, 640))).astype(np.float32).reshape(-1)
    offsets, plain, rows = np.array([0, x.size]), np.array([0]), np.array([640])
    sizes = []
    for columns in (plain, rows):
        body, out = stepped.encode(x, offsets, columns, key, 0.5), np.empty(x.size, np.float32)
        assert stepped.decode(body, offsets, columns, key is not None, x.size, out) == 0
        assert np.abs(out - x).max() <= 0.5
        assert stepped.bits(x, offsets, columns, key, 0.5) == pytest.approx(8 * len(body), rel=0.03)
        sizes.append(len(body))
    assert sizes[1] < 0.9 * sizes[0]


def test_columns_that_are_alike_are_left_alone():
    x = np.random.default_rng(7).standard_normal(100 * 640).astype(np.float32)
    bodies = {stepped.encode(x, np.array([0, x.size]), np.array([columns]), None, 0.5) for columns in (0, 640)}
    assert len(bodies) == 1


@pytest.mark.parametrize("isa", ISAS)
def test_a_class_of_columns_that_is_none(isa):
    """16 columns of plain classes of 5 bits each; the last one is 15, the most, or 16."""
    offsets, columns = np.array([0, 128]), np.array([16])
    for last, fault in ((15, 0), (16, -7)):
        bits = 1 | 5 << 2 | sum(min(j, last) << 7 + 5 * j for j in range(15)) | last << 82
        classes = bits.to_bytes(11, "little")
        body = struct.pack("<fBI", 1.0, 2, len(classes)) + classes + b"\x80\x80\x80\0"
        assert stepped.decode(body, offsets, columns, False, 128, isa=isa) == fault
        cut = struct.pack("<fBI", 1.0, 2, len(classes) + 5) + classes + b"\x80\x80\x80\0"
        assert stepped.decode(cut, offsets, columns, False, 128, isa=isa) == -2


@pytest.mark.parametrize("isa", ISAS)
def test_integers_of_a_body_are_its_values(isa):
    """Of step 1, in sorted columns too; what holds others, or other steps, is refused."""
    x, out = np.clip(np.rint(vector()), -2, 2), np.empty(N, np.int8)
    body = stepped.encode(x, OFFSETS, COLUMNS, None, 1.0)
    assert body[4] == 2  # sorted
    assert stepped.integers(body, OFFSETS, COLUMNS, 2, out, isa) == 0
    np.testing.assert_array_equal(out, x)
    assert stepped.integers(body, OFFSETS, COLUMNS, 1, out, isa) == -7
    assert stepped.integers(body[:-1], OFFSETS, COLUMNS, 2, out, isa) != 0
    for other in (
        stepped.encode(2 * x, OFFSETS, COLUMNS, None, 2.0),
        stepped.encode(x, OFFSETS, COLUMNS, None, 1.0, EIGHTHS),
        stepped.encode(np.float32(1.1) * x, OFFSETS, COLUMNS, None, 1.0),  # its means are no integers
    ):
        assert stepped.decode(other, OFFSETS, COLUMNS, False, N, isa=isa) == 0
        assert stepped.integers(other, OFFSETS, COLUMNS, 2, out, isa) == -7
    zeros = stepped.encode(0 * x, OFFSETS, COLUMNS, None, 0.0)
    assert stepped.integers(zeros, OFFSETS, COLUMNS, 2, out, isa) == 0 and not out.any()
