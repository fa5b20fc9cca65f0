"""minmax8: the exact bytes and values, on every instruction set; what hostile bodies do is the
laws' and the attack frames'."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgegossip import native
from tests.conformance import reference
from tests.native.everywhere import on_every_isa

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def vectors(draw):
    """(x, offsets): up to 5 tensors of random values, narrow ranges around an offset, constants and
    extreme values."""
    tensors = []
    for _ in range(draw(st.integers(0, 5))):
        n = draw(st.one_of(st.integers(0, 70), st.integers(0, 3000)))
        if draw(st.booleans()):
            tensors.append(np.array(draw(st.lists(finite, max_size=12)), np.float32))
            continue
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        scale, offset = 10.0 ** draw(st.integers(-46, 37)), draw(st.sampled_from([0, 1, 1000, 1e6, 1e8]))
        tensors.append(np.clip((rng.standard_normal(n) + offset) * scale, -3.4e38, 3.4e38).astype(np.float32))
    x = np.concatenate([np.empty(0, np.float32), *tensors])
    return x, np.cumsum([0, *(len(t) for t in tensors)], dtype=np.int64)


def encode(x, offsets, isa=None):
    out = np.empty(8 * (len(offsets) - 1) + len(x), np.uint8)
    assert native.minmax8_encode(x, offsets, out, isa) == -1
    return out.tobytes()


def decode(body, offsets, isa=None):
    out = np.empty(offsets[-1], np.float32)
    assert native.minmax8_decode(body, offsets, out, isa=isa) == -1
    return out


def plain(x, offsets):
    """Body and values by the definition."""
    shapes = tuple((int(n),) for n in np.diff(offsets))
    body = reference.minmax8(x, shapes)
    return body, np.array(reference.minmax8_values(body, shapes), np.float32)


@given(vectors())
@example((np.array([-3.4e38, 3.4e38, 0], np.float32), np.array([0, 3])))
@example((np.array([1e-45, 0, -1e-45], np.float32), np.array([0, 3])))
@example((np.array([-0.0, -0.0, 0.0, 1.0], np.float32), np.array([0, 2, 4])))
@example((np.array([16777216, 16777218], np.float32), np.array([0, 0, 2, 2])))
@on_every_isa
def test_bytes_and_values_are_those_of_the_definition(case, isa):
    x, offsets = case
    body = encode(x, offsets, isa)
    expected, values = plain(x, offsets)
    assert (body, decode(body, offsets, isa).tobytes()) == (expected, values.tobytes())


@on_every_isa
@pytest.mark.parametrize("n", [*range(40), 63, 64, 65, 4095, 4096, 4097])
def test_every_length_and_alignment(isa, n):
    room = np.random.default_rng(n).standard_normal(n + 16).astype(np.float32)
    offsets, raw = np.array([0, n]), np.zeros(n + 64, np.uint8)
    for shift in (0, 1, 3, 7):
        x, body = room[shift : shift + n], raw[shift : shift + 8 + n]
        assert native.minmax8_encode(x, offsets, body, isa) == -1
        expected, values = plain(x, offsets)
        assert body.tobytes() == expected
        out = np.full(n + 16, 5, np.float32)
        assert native.minmax8_decode(body, offsets, out[shift : shift + n], isa=isa) == -1
        assert out[shift : shift + n].tobytes() == values.tobytes()
        assert (out[:shift] == 5).all() and (out[shift + n :] == 5).all()


@on_every_isa
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 4095, 4096, 9999])
def test_the_first_tensor_that_is_not_finite_is_named(isa, bad, at):
    x = np.full(10_000, np.finfo(np.float32).max, np.float32)
    x[::2] *= -1
    offsets = np.array([0, 0, 5, 4096, 10_000])
    assert native.first_nonfinite(x, offsets, isa) == -1
    x[at] = np.float32(bad)
    x[-1] = np.float32(bad)
    tensor = int(np.searchsorted(offsets, at, side="right")) - 1
    assert native.first_nonfinite(x, offsets, isa) == tensor
    assert native.minmax8_encode(x, offsets, np.empty(10_032, np.uint8), isa) == tensor
