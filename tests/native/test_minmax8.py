"""minmax8: the exact bytes and values, on every instruction set; what hostile bodies do is the
laws' and the attack frames'."""

import numpy as np
import pytest
from hypothesis import strategies as st

from edgegossip import native
from tests.conformance import reference
from tests.native.everywhere import on_every_isa

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


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
