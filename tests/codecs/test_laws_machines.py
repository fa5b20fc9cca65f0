"""Same bytes and same values from every instruction set and any number of threads, across the
borders of blocks."""

from __future__ import annotations

import dataclasses
import os
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs, native
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec
from tests.codecs.case import Case
from tests.codecs.cases import CASES, FIRST, MORE, model, values

CTX = codecs.Ctx(key=0xFEED_5678_9ABC_DEF0, round=3, loss=0.5, lr=0.1)
# Tensors before, on and after the border of a block of 65536 values, and one that starts at an odd
# place.
LAYOUT = Layout.of(
    [
        TensorSpec("a", (70_001,)),
        TensorSpec("b", (131_072,)),
        TensorSpec("c", (3,)),
        TensorSpec("d", (257, 256)),
        TensorSpec("e", (65_535,)),
    ]
)

EXAMPLES = 500
BLOCK = 65536

every_codec = pytest.mark.parametrize("case", CASES, ids=str)


# Other parameters of a codec are slow, a third of a second each; on smaller models the next law
# takes any line.
@pytest.mark.parametrize("case", [*FIRST, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)], ids=str)
def test_instruction_sets_and_threads_do_not_matter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(LAYOUT.size) ** 3).astype(np.float32)
    x[70_001:90_000] = 0  # blocks that differ in what suits them
    codec = case.codec()
    if "bytes" in case.params:  # for the models of the other laws, which are smaller
        codec = dataclasses.replace(codec, bytes=40 * case.params["bytes"])
    state = codec.init(LAYOUT)
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


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Layout, Vec]:
    """A model as the other laws have them; one in twenty has a tensor that ends about the border of
    a block, and another one behind it."""
    seed = draw(st.integers(0, 2**32 - 1))
    layout, x, rng = model(seed)
    if rng.random() >= 0.05:
        return layout, x
    sizes = BLOCK * rng.integers(1, 3, 2) + rng.integers(-2, 3, 2)
    more = [TensorSpec("border", (int(sizes[0]),)), TensorSpec("behind", (int(sizes[1]),))]
    layout = Layout.of((*layout.tensors, *more))
    return layout, values(layout, rng)


def made_on(case: Case, layout: Layout, x: Vec, isa: str, threads: int) -> tuple[bytes, bytes, bytes]:
    """Body, values and sum."""
    with mock.patch.dict(os.environ, EDGEGOSSIP_ISA=isa, EDGEGOSSIP_THREADS=str(threads)):
        codec = case.codec()
        body = bytes(codec.encode(x, codec.init(layout), CTX)[0])
        total = np.full(layout.size, 2, np.float32)
        with np.errstate(over="ignore"):
            return body, codec.decode(body, layout).tobytes(), codec.decode(body, layout, total, 0.25).tobytes()


def no_machine_matters(case: Case, vector: tuple[Layout, Vec], isa: str, threads: int) -> None:
    assert made_on(case, *vector, isa, threads) == made_on(case, *vector, "portable", 1)


machines = {"isa": st.sampled_from(native.available_isas()), "threads": st.integers(1, 9)}


@settings(max_examples=150)
@given(case=st.sampled_from(CASES), vector=vectors(), **machines)
def test_any_instruction_set_and_number_of_threads_give_the_same(
    case: Case, vector: tuple[Layout, Vec], isa: str, threads: int
) -> None:
    no_machine_matters(case, vector, isa, threads)
