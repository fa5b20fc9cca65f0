"""Steps and their entropy code: the same bytes and values on every instruction set, also where 32
lanes are read as vectors, and damaged bodies that no instruction set takes for good."""

import numpy as np
import pytest

from edgegossip.native import stepped
from tests.native.everywhere import ISAS

N = 150_003
OFFSETS = np.array([0, 100_000, 100_000, 100_007, N])
EIGHTHS = np.array([-3, 0, 17, 96], np.int8)
KEYS = pytest.mark.parametrize("key", [None, 0x0123_4567_89AB_CDEF])


def vector():
    rng = np.random.default_rng(4)
    loud = np.exp2(rng.integers(-9, 3, N // 300 + 1)).repeat(300)[:N]
    return (rng.standard_normal(N) ** 3 * loud).astype(np.float32)


@KEYS
@pytest.mark.parametrize("step", [0.001, 0.2, 4.0])
@pytest.mark.parametrize("eighths", [stepped.ONE_STEP, EIGHTHS], ids=["one step", "own steps"])
def test_every_instruction_set_makes_and_reads_the_same(key, step, eighths):
    x = vector()
    bodies = {stepped.encode(x, OFFSETS, key, step, eighths, isa=isa) for isa in ISAS}
    assert len(bodies) == 1
    body, decoded = bodies.pop(), set()
    for isa in ISAS:
        out = np.ones(N, np.float32)
        assert stepped.decode(body, OFFSETS, key is not None, N, out, 0.3, isa=isa) == 0
        stored = np.empty(N, np.float32)
        assert stepped.decode(body, OFFSETS, key is not None, N, stored, isa=isa) == 0
        assert np.array_equal(out, np.ones(N, np.float32) + np.float32(0.3) * stored)
        decoded.add(stored.tobytes())
    assert len(decoded) == 1
    assert len({stepped.error(x, OFFSETS, step, eighths, isa=isa) for isa in ISAS}) == 1
    bits = {stepped.bits(x, OFFSETS, key, step, eighths, isa=isa) for isa in ISAS}
    assert len(bits) == 1
    if step >= 0.2:  # below, most values are escapes, and what these take is a guess
        assert bits.pop() == pytest.approx(8 * len(body), rel=0.03)


@KEYS
def test_a_damaged_body_is_judged_alike_and_a_sum_left_alone(key):
    """Cut at many places, and with bytes changed: refused or finite, on all instruction sets."""
    x, rng = vector(), np.random.default_rng(5)
    body = stepped.encode(x, OFFSETS, key, 0.05)
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
            fault = stepped.decode(bytes(damaged), OFFSETS, key is not None, N, out, 1.0, isa=isa)
            assert np.isfinite(out).all() and (fault == 0 or (out == 1).all())
            results.add((fault, out.tobytes()))
        assert len(results) == 1
        if trial % 3 == 0:
            assert fault != 0


@pytest.mark.parametrize("eighths", [stepped.ONE_STEP, EIGHTHS], ids=["one step", "steps of tensors"])
@pytest.mark.parametrize("step", [0.01, 1.0, 30.0])
def test_the_error_that_is_told_is_that_of_what_arrives(step, eighths):
    x, out = vector(), np.empty(N, np.float32)
    assert stepped.decode(stepped.encode(x, OFFSETS, None, step, eighths), OFFSETS, False, N, out) == 0
    error = float(((out.astype(np.float64) - x) ** 2).sum())
    assert stepped.error(x, OFFSETS, step, eighths) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(
    ("step", "eighths", "message"),
    [
        (-1.0, stepped.ONE_STEP, "step must be"),
        (1e39, stepped.ONE_STEP, "step must be"),
        (1.0, EIGHTHS[:2], "eighths must have 4"),
    ],
)
def test_steps_that_cannot_be(step, eighths, message):
    with pytest.raises(ValueError, match=message):
        stepped.encode(vector(), OFFSETS, None, step, eighths)
