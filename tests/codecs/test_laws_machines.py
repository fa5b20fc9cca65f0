"""Same bytes and same values from every instruction set and any number of threads, across the borders of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs, native
from edgegossip.layout import Layout, TensorSpec
from tests.codecs.case import Case
from tests.codecs.cases import CASES

CTX = codecs.Ctx(key=0xFEED_5678_9ABC_DEF0, round=3, loss=0.5, lr=0.1)
# Tensors before, on and after the border of a block of 65536 values, and one that starts at an odd place.
LAYOUT = Layout.of(
    [
        TensorSpec("a", (70_001,)),
        TensorSpec("b", (131_072,)),
        TensorSpec("c", (3,)),
        TensorSpec("d", (257, 256)),
        TensorSpec("e", (65_535,)),
    ]
)

every_codec = pytest.mark.parametrize("case", CASES, ids=str)


@every_codec
def test_instruction_sets_and_threads_do_not_matter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(LAYOUT.size) ** 3).astype(np.float32)
    x[70_001:90_000] = 0  # blocks that differ in what suits them
    codec, state = case.codec(), case.codec().init(LAYOUT)
    bodies, values, sums = set(), set(), set()
    for isa, threads in [(isa, 1) for isa in native.available_isas()] + [(native.isa(), t) for t in (2, 3, 7)]:
        monkeypatch.setenv("EDGEGOSSIP_ISA", isa)
        monkeypatch.setenv("EDGEGOSSIP_THREADS", str(threads))
        body = bytes(codec.encode(x, state, CTX)[0])
        out = np.full(LAYOUT.size, 2, np.float32)
        codec.decode(body, LAYOUT, out, 0.25)
        y = codec.decode(body, LAYOUT)
        assert np.isfinite(y).all()
        np.testing.assert_array_equal(out, 2 + np.float32(0.25) * y)
        bodies.add(body)
        values.add(y.tobytes())
        sums.add(out.tobytes())
    assert (len(bodies), len(values), len(sums)) == (1, 1, 1)
    if case.claims.bound:
        assert (np.abs(y.astype(np.float64) - x) <= case.claims.bound(x, LAYOUT)).all()
