"""Integer training's kernels against the same mathematics in numpy: integers and float operations
bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.native import int8
from tests.native import reference_int8 as reference
from tests.native.everywhere import ISAS, on_every_isa

F = np.float32
KEY = 0x123456789ABCDEF


def quantised(values, isa=None, threads=None):
    out = int8.Maps.empty(len(values), values[0].size)
    int8.quantise(values.ravel(), len(values), out, isa, threads)
    return out


def same(maps, expected):
    q, scale, zero = expected
    np.testing.assert_array_equal(maps.scale, scale)
    np.testing.assert_array_equal(maps.zero, zero)
    np.testing.assert_array_equal(maps.q, q.ravel())


@st.composite
def shapes(draw):
    def pick(*choices):
        return draw(st.sampled_from(choices))

    kernel = pick(1, 3, 5, 7)
    groups = pick(1, 1, 1, 2, 3)
    inputs, outputs = groups * draw(st.integers(1, 20)), groups * draw(st.integers(1, 20))
    if pick(0, 0, 0, 1):  # depthwise
        groups = inputs
        outputs = inputs * pick(1, 2)
    stride, pad = pick(1, 1, 2, 3), draw(st.integers(0, kernel))
    low = max(1, kernel - 2 * pad)
    height, width = draw(st.integers(low, low + 8)), draw(st.integers(low, low + 8))
    return int8.ConvShape(
        draw(st.integers(1, 5)),
        height,
        width,
        inputs,
        outputs,
        kernel,
        kernel,
        stride,
        pick(stride, 1),
        pad,
        pad,
        groups,
    )


def by_input(weight, groups):
    """Integer weights and scales by input channel; every group has inputs of its own."""
    parts = [reference.weight_codes(part, 1) for part in np.split(weight, groups)]
    return np.concatenate([w for w, _ in parts]), np.concatenate([s for _, s in parts])


def check_conv(shape, seed, isa, threads):
    rng = np.random.default_rng(seed)
    n, stride, pad = shape.batch, (shape.stride_h, shape.stride_w), (shape.pad_h, shape.pad_w)
    kernel = (shape.kernel_h, shape.kernel_w)
    values = rng.normal(0.3, 1, (n, shape.height, shape.width, shape.inputs)).astype(F)
    weight = rng.normal(size=(shape.outputs, shape.inputs // shape.groups, *kernel)).astype(F)
    bias = rng.normal(size=shape.outputs).astype(F)
    x = quantised(values, isa, threads)
    q, scale, zero = reference.quantise(values)
    same(x, (q, scale, zero))

    centred = q.astype(np.int64) - zero[:, None, None, None]
    codes, weight_scale = reference.weight_codes(weight, 0)
    sums = reference.conv_sums(centred, codes, stride, pad, shape.groups)
    y = sums.astype(F) * (weight_scale * scale[:, None, None, None]) + bias
    out = np.full(y.size, np.nan, F)
    int8.conv(shape, x, weight.ravel(), bias, out, isa, threads)
    np.testing.assert_array_equal(out, y.ravel())
    made = int8.Maps.empty(n, y[0].size)
    int8.conv(shape, x, weight.ravel(), bias, made, isa, threads)
    same(made, reference.quantise(y))

    g = rng.normal(size=y.shape).astype(F)
    narrow, narrow_scale = reference.round8(g, KEY)
    codes, weight_scale = by_input(weight, shape.groups)
    sums = reference.conv_data_sums(narrow, codes, values.shape, stride, pad, shape.groups)
    dx = sums.astype(F) * (weight_scale * narrow_scale[:, None, None, None])
    for wide in (False, True):
        found_dx, found_dw, found_db = (np.full(size, np.nan, F) for size in (values.size, weight.size, len(bias)))
        int8.conv_backward(shape, x, weight.ravel(), g.ravel(), KEY, wide, found_dx, found_dw, found_db, isa, threads)
        np.testing.assert_array_equal(found_dx, dx.ravel())
        used, used_scale = reference.round16(g) if wide else (narrow, narrow_scale)
        per_sample = reference.conv_weight_sums(used, centred, kernel, stride, pad, shape.groups)
        factor = (scale * used_scale).astype(np.float64)[:, None, None, None, None]
        dw = (per_sample * factor).sum(0)
        # Sums over samples are float32: a few roundings of the largest term.
        bound = (np.abs(per_sample) * factor).sum(0).max() * 2.0**-22 * (n + 2)
        if y[0].size == shape.outputs:  # one pixel a sample: scaled gradients of many samples share a 16-bit scale
            most = np.abs(used * factor[..., 0]).max()
            bound += n * np.abs(centred).max() * most * 0.51 / 32512
        np.testing.assert_allclose(found_dw.reshape(dw.shape), dw, rtol=0, atol=bound)
        np.testing.assert_allclose(found_db, g.sum((0, 1, 2), dtype=np.float64), rtol=0, atol=1e-3)


@settings(max_examples=15)
@given(shapes(), st.integers(0, 2**32), st.sampled_from(ISAS), st.integers(1, 3))
def test_convolutions_are_the_reference_bit_for_bit(shape, seed, isa, threads):
    check_conv(shape, seed, isa, threads)


@on_every_isa
@pytest.mark.parametrize(
    "shape",
    [
        int8.ConvShape(70, 1, 1, 40, 33, 1, 1, 1, 1, 0, 0, 1),  # a linear layer
        int8.ConvShape(70, 2, 2, 40, 33, 2, 2, 1, 1, 0, 0, 1),  # one output, not linear: more samples than go together
        int8.ConvShape(1, 40, 39, 2, 3, 3, 3, 1, 1, 1, 1, 1),  # so many pixels that 16-bit sums are spilt
        int8.ConvShape(2, 1, 600, 1, 2, 1, 3, 1, 1, 0, 1, 1),  # and so many in one row
        int8.ConvShape(9, 1, 1, 33, 5, 1, 1, 3, 1, 1, 0, 1),  # one output that sees padding alone: no linear layer
        int8.ConvShape(9, 5, 5, 16, 48, 3, 3, 2, 2, 1, 1, 1),
        int8.ConvShape(
            700, 4, 4, 20, 9, 3, 3, 1, 1, 1, 1, 1
        ),  # few pixels, and parts of a batch that go in several blocks
        int8.ConvShape(2, 6, 6, 4, 2, 1, 1, 3, 3, 0, 0, 1),  # inputs that no output sees
        int8.ConvShape(2, 5, 19, 16, 16, 3, 3, 1, 1, 1, 1, 1),  # rows of a strip and some pixels
        int8.ConvShape(2, 4, 37, 8, 36, 3, 3, 1, 1, 0, 2, 1),  # the same for three panels, and more padding
        int8.ConvShape(3, 9, 41, 12, 20, 5, 5, 2, 2, 2, 2, 1),  # backward: phases of three taps and of two
        int8.ConvShape(3, 8, 10, 32, 48, 3, 3, 1, 1, 1, 1, 1),  # by tiles of two by two outputs
        int8.ConvShape(2, 12, 10, 80, 72, 3, 3, 1, 1, 0, 1, 2),  # the same, of two groups and not backward
        int8.ConvShape(3, 16, 20, 16, 36, 3, 3, 1, 1, 1, 1, 1),  # of four by four, and backward of two by two
        int8.ConvShape(2, 20, 16, 64, 32, 3, 3, 1, 1, 1, 1, 2),  # of four by four both ways, of two groups
    ],
)
def test_special_shapes(shape, isa):
    check_conv(shape, 5, isa, 2)


def linear_weights(centred, used, factor):
    """float32[outputs, inputs] of 256 samples at a time: their gradients times `factor`, with one
    scale of 16 bits."""
    dw = np.zeros((used.shape[1], centred.shape[1]), F)
    for first in range(0, len(used), 256):
        rows = slice(first, first + 256)
        integers, scale = reference.round16((factor[rows, None] * used[rows].astype(F))[None])
        dw += scale[0] * (integers[0].T @ centred[rows]).astype(F)
    return dw


@settings(max_examples=15)
@given(
    st.tuples(st.integers(1, 530), st.integers(1, 130), st.integers(1, 150)),
    st.integers(0, 2**32),
    st.sampled_from(ISAS),
    st.integers(1, 3),
    st.booleans(),
)
def test_weight_gradients_of_linear_layers_are_the_reference_bit_for_bit(sizes, seed, isa, threads, wide):
    batch, inputs, outputs = sizes
    rng = np.random.default_rng(seed)
    shape = int8.ConvShape(batch, 1, 1, inputs, outputs, 1, 1, 1, 1, 0, 0, 1)
    values = rng.normal(0.3, 1, (batch, inputs)).astype(F)
    g = (rng.normal(size=(batch, outputs)) * rng.lognormal(0, 2, (batch, 1))).astype(F)
    q, scale, zero = reference.quantise(values)
    used, used_scale = reference.round16(g) if wide else reference.round8(g, KEY)
    dw = np.full(inputs * outputs, np.nan, F)
    x = quantised(values, isa)
    weight = rng.normal(size=inputs * outputs).astype(F)
    int8.conv_backward(shape, x, weight, g.ravel(), KEY, wide, None, dw, None, isa, threads)
    expected = linear_weights(q.astype(np.int64) - zero[:, None], used, scale * used_scale)
    np.testing.assert_array_equal(dw.reshape(expected.shape), expected)


@on_every_isa
def test_integer_sums_of_linear_layers_at_their_largest_do_not_overflow(isa):
    shape = int8.ConvShape(512, 1, 1, 40, 9, 1, 1, 1, 1, 0, 0, 1)
    x = int8.Maps(np.full(512 * 40, 127, np.int8), np.ones(512, F), np.full(512, -128, np.int32))
    dw = np.empty(360, F)
    int8.conv_backward(shape, x, np.ones(360, F), np.ones(512 * 9, F), KEY, True, None, dw, None, isa)
    (g16,), (scale,) = reference.round16(np.ones((1, 1), F))
    np.testing.assert_array_equal(
        dw, linear_weights(np.full((512, 40), 255), np.full((512, 9), g16[0]), np.full(512, scale)).ravel()
    )


@on_every_isa
@pytest.mark.parametrize("row", [0, 100, 299])
def test_a_gradient_that_is_not_finite_reaches_the_weights_of_a_linear_layer(isa, row):
    shape = int8.ConvShape(300, 1, 1, 5, 4, 1, 1, 1, 1, 0, 0, 1)
    x, g = quantised(np.random.default_rng(0).normal(size=(300, 5)).astype(F), isa), np.ones((300, 4), F)
    g[row, 2] = np.nan
    dw = np.zeros(20, F)
    int8.conv_backward(shape, x, np.ones(20, F), g.ravel(), KEY, True, None, dw, None, isa)
    assert np.isnan(dw).all()


@on_every_isa
def test_integer_sums_at_their_largest_do_not_overflow(isa):
    """All values at the ends of their ranges: 16-bit gradients of 65 * 65 pixels, whose sum exceeds
    an int32 many times."""
    shape = int8.ConvShape(1, 65, 65, 1, 1, 1, 1, 1, 1, 0, 0, 1)
    x = int8.Maps(np.full(65 * 65, 127, np.int8), np.ones(1, F), np.array([-128], np.int32))
    dw = np.empty(1, F)
    int8.conv_backward(shape, x, np.ones(1, F), np.ones(65 * 65, F), KEY, True, None, dw, None, isa)
    g16, scale = reference.round16(np.ones((1, 65, 65, 1), F))
    assert dw[0] == F(g16.sum() * 255) * scale[0]
    shape = int8.ConvShape(1, 1, 1, 65536, 1, 1, 1, 1, 1, 0, 0, 1)
    x = int8.Maps(np.full(65536, 127, np.int8), np.ones(1, F), np.array([-128], np.int32))
    out = np.empty(1, F)
    int8.conv(shape, x, np.ones(65536, F), None, out, isa)
    assert out[0] == F(65536 * 255 * 127) * F(F(1) / F(127))


@on_every_isa
@pytest.mark.parametrize(("size", "channels"), [(8, 1024), (16, 32)])  # of tiles of two by two outputs, of four by four
def test_tiles_at_the_ends_of_their_ranges_are_exact(isa, size, channels):
    """Values and weights at the ends of their ranges, the same in all channels: parts of tiles are
    larger than their sums, and these are the largest that there are."""
    random = np.random.default_rng(3)
    shape = int8.ConvShape(1, size, size, channels, 32, 3, 3, 1, 1, 1, 1, 1)
    q = random.choice([np.int8(127), np.int8(-128)], (size, size))
    q[4:8, 4:8] = 127
    x = int8.Maps(np.repeat(q.ravel(), channels), np.ones(1, F), np.array([-128], np.int32))
    signs = random.choice([F(1), F(-1)], (32, 3, 3))
    signs[0] = 1
    out = np.empty(size * size * 32, F)
    int8.conv(shape, x, np.repeat(signs[:, None], channels, 1).ravel(), None, out, isa)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(q.astype(np.int64) + 128, 1), (3, 3))
    sums = channels * 127 * np.einsum("yxab,oab->yxo", windows, signs.astype(np.int64))
    np.testing.assert_array_equal(out, (sums.astype(F) * F(F(1) / F(127))).ravel())


HARD = {
    "zeros": np.zeros((2, 30), F),
    "constant": np.full((2, 30), 0.7, F),
    "negative constant": np.full((1, 5), -3.0, F),
    "denormal": np.linspace(-1e-40, 3e-40, 30, dtype=F)[None],
    "huge": np.linspace(-3.4e38, 3.4e38, 77, dtype=F)[None],
    "one huge among small": np.array([[1e-3, -2e-3, 3e38] * 11], F),
    "all positive": np.linspace(5, 6, 65, dtype=F)[None],
    "one value": np.array([[2.5]], F),
}


@on_every_isa
@pytest.mark.parametrize("name", HARD)
def test_hard_values(name, isa):
    values = HARD[name]
    made = quantised(values, isa)
    same(made, reference.quantise(values))
    found = (made.q.reshape(values.shape).astype(np.float64) - made.zero[:, None]) * made.scale[:, None]
    assert (np.abs(found - values) <= 0.5001 * np.maximum(made.scale, reference.FLOOR)[:, None] * 1.01).all()
    assert ((values != 0) | (found == 0)).all(), "zero must stay zero, or padding would not be"


@on_every_isa
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_result(bad, isa):
    values = np.ones((3, 50), F)
    values[1, 49] = bad
    x = quantised(values, isa)
    np.testing.assert_array_equal(np.isnan(x.scale), [False, True, False])
    shape = int8.ConvShape(3, 5, 5, 2, 2, 1, 1, 1, 1, 0, 0, 1)
    y = int8.Maps.empty(3, 50)
    int8.conv(shape, x, np.ones(4, F), None, y, isa)
    np.testing.assert_array_equal(np.isnan(y.scale), [False, True, False])
    int8.conv(shape, quantised(np.ones((3, 50), F), isa), np.array([1, bad, 1, 1], F), None, y, isa)
    assert np.isnan(y.scale).all()
    g = np.ones(150, F)
    g[7] = bad
    dx, dw = np.empty(150, F), np.empty(4, F)
    int8.conv_backward(shape, quantised(np.ones((3, 50), F)), np.ones(4, F), g, KEY, True, dx, dw, None, isa)
    assert np.isnan(dx[:50]).all() and np.isfinite(dx[50:]).all() and np.isnan(dw).all()


@on_every_isa
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", [(1, 4), (4, 1), (5, 5)])
def test_a_sample_that_is_not_finite_reaches_all_weights(size, wide, isa):
    """Those of taps that see padding alone, too."""
    height, width = size
    shape = int8.ConvShape(2, height, width, 8, 8, 3, 3, 1, 3, 1, 2, 1)
    values = np.ones((2, height * width * 8), F)
    values[1, 0] = np.nan
    g = np.ones(2 * shape.out_height * shape.out_width * 8, F)
    dw = np.empty(8 * 8 * 9, F)
    int8.conv_backward(shape, quantised(values), np.ones(8 * 8 * 9, F), g, KEY, wide, None, dw, None, isa)
    assert np.isnan(dw).all()


@on_every_isa
def test_shapes_that_cannot_be_are_refused(isa):
    x = quantised(np.ones((1, 4), F))
    out = np.empty(4, F)
    for shape, message in [
        (int8.ConvShape(1, 2, 2, 1, 1, 3, 3, 1, 1, 0, 0, 1), "kernel is larger"),
        (int8.ConvShape(1, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 2), "groups must divide"),
        (int8.ConvShape(1, 2, 2, 1, 1, 1, 1, 1, 1, -1, 0, 1), "out of range"),
        (int8.ConvShape(2**30, 2**30, 2, 1, 1, 1, 1, 1, 1, 0, 0, 1), "too large"),
        (int8.ConvShape(1, 1, 1, 65537, 1, 1, 1, 1, 1, 0, 0, 1), "65536"),
        (int8.ConvShape(1, 2, 2, 1, 2, 1, 1, 1, 1, 0, 0, 1), "elements"),
    ]:
        with pytest.raises(ValueError, match=message):
            int8.conv(shape, x, np.ones(1, F), None, out, isa)
    bad = int8.Maps(x.q, x.scale, np.array([128], np.int32))
    with pytest.raises(ValueError, match="zero points"):
        int8.conv(int8.ConvShape(1, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 1), bad, np.ones(1, F), None, out, isa)


def test_slices_outside_the_map_are_refused():
    inside = int8.SliceShape(4, 4, 2, 1, 2, 2, 0, 3, 2, 0, 1, 2)
    q, out = np.arange(64, dtype=np.int8), np.empty(16, np.int8)
    int8.slice_maps(inside, 2, q, out)
    assert np.array_equal(out.reshape(2, 2, 2, 2), q.reshape(2, 4, 4, 2)[:, 1::2, ::3])
    g, dx = np.arange(3 * 7 + 2, dtype=F), np.empty(32, F)
    int8.slice_backward(inside, 1, 7, g, dx)
    assert np.array_equal(np.flatnonzero(dx), [9, 14, 15, 24, 25, 30, 31])
    for change, message in [
        ({"row": 2}, "outside"),
        ({"channel": -1}, "out of range"),
    ]:
        with pytest.raises(ValueError, match=message):
            int8.slice_maps(inside._replace(**change), 2, q, out)
        with pytest.raises(ValueError, match=message):
            int8.slice_backward(inside._replace(**change), 1, 7, g, dx)
    with pytest.raises(ValueError, match="divide"):
        int8.relu(q, np.zeros(3, np.int32), q)
    for zero in (-129, 128):
        points = np.array([0, zero], np.int32)
        for call in (
            lambda points: int8.relu(q, points, q.copy()),
            lambda points: int8.relu_backward(q, points, np.ones(64, F), np.empty(64, F)),
            lambda points: int8.pad(int8.PadShape(2, 4, 4, 2, *[0] * 6), q, points, q.copy()),
        ):
            with pytest.raises(ValueError, match="zero points"):
                call(points)
