"""Sections large enough for what is read side by side, several symbols or items at a time: damaged,
they end alike everywhere."""

import numpy as np
import pytest

from edgegossip import native
from edgegossip.native.coding import FAULTS
from tests.native import sections
from tests.native.sections import FP4, TERNARY, decode, encode, exact, geometric, uniform

CODER_HUFFMAN, CODER_RUNS = 1, 2


WEIGHT = np.float32(-0.37)


def on_every_instruction_set(q, body, n, threads=1):
    """The verdict, also of a check alone, and, if it is good, the values, also of a sum: the same
    of all instruction sets."""
    first = None
    for isa in native.available_isas():
        how = {"isa": isa, "threads": threads}
        out = np.full(n, np.nan, np.float32)
        verdict = decode(q, body, n, out, **how)
        assert decode(q, body, n, **how) == verdict
        found = verdict, out.tobytes() if verdict > 0 else b""
        first = found if first is None else first
        assert found == first, isa
        if verdict > 0:
            total = np.full(n, 3, np.float32)
            assert decode(q, body, n, total, float(WEIGHT), **how) == verdict
            assert total.tobytes() == (np.float32(3) + WEIGHT * out).tobytes(), isa
    return first


def damaged(body, rng):
    """A bit, a byte or a stretch of it is another."""
    other = bytearray(body)
    at, size = int(rng.integers(len(body))), int(rng.choice([1, 1, 64, 4000]))
    if size == 1:
        other[at] ^= 1 << int(rng.integers(8))
    else:
        other[at : at + size] = rng.integers(0, 256, len(other[at : at + size]), np.uint8).tobytes()
    return other


@pytest.mark.parametrize(
    ("q", "n", "density", "coder"),
    [
        (uniform(4, 512), 140_000, 0.9, CODER_HUFFMAN),
        (geometric(4), 65_536, 0.7, CODER_HUFFMAN),
        (TERNARY, 290_000, 0.6, CODER_HUFFMAN),
        (uniform(4, 512), 290_011, 0.15, CODER_RUNS),
        (TERNARY, 290_003, 0.06, CODER_RUNS),
        (uniform(8, 8), 140_000, 0.1, CODER_RUNS),
        (geometric(4, 8192), 140_000, 0.1, CODER_RUNS),
        (FP4, 140_000, 0.1, CODER_RUNS),
        (uniform(12, 512), 140_000, 0.1, CODER_RUNS),
    ],
)
def test_damaged_large_sections_end_alike_on_every_instruction_set(q, n, density, coder, at_the_edge):
    levels, signs = sections.sparse_levels(q, n, density)
    x, scales = exact(q, levels, signs)
    body, rng = encode(q, x, "huffman", scales), np.random.default_rng(n)
    assert body[0] == coder
    verdict, values = on_every_instruction_set(q, at_the_edge(body), n)
    assert verdict == len(body)
    assert on_every_instruction_set(q, at_the_edge(body), n, threads=3) == (verdict, values)
    np.testing.assert_array_equal(np.frombuffer(values, np.float32), x)
    verdicts = [on_every_instruction_set(q, at_the_edge(damaged(body, rng)), n)[0] for _ in range(40)]
    assert set(verdicts) <= {*FAULTS, len(body)} and min(verdicts) < 0
