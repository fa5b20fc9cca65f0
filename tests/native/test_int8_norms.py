"""Range EvoNorm, additions and pooling of int8 maps against the same mathematics in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F32

from edgegossip.int8.norms import chunks_of, groups_of
from edgegossip.native import int8
from tests.native import reference_int8 as reference
from tests.native.everywhere import ISAS

F = np.float32


def maps_of(values):
    q, scale, zero = reference.quantise(values)
    return int8.Maps(q.ravel(), scale, zero), (q.astype(np.float64) - wide(zero, q)) * wide(scale.astype(np.float64), q)


def wide(per_sample, like):
    return per_sample.reshape(-1, *[1] * (like.ndim - 1))


def decoded(maps, shape):
    q = maps.q.reshape(shape).astype(np.float64)
    return (q - wide(maps.zero, q)) * wide(maps.scale.astype(np.float64), q)


@settings(max_examples=10)
@given(
    st.sampled_from([1, 3, 7, 8, 16, 24, 40, 64, 100]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(ISAS),
    st.integers(0, 10**6),
)
def test_range_evonorm(channels, batch, height, width, isa, seed):
    rng = np.random.default_rng(seed)
    pixels = height * width
    shape = int8.NormShape(batch, pixels, channels, groups_of(channels), chunks_of(pixels))
    maps, y = maps_of(rng.normal(0.2, 1, (batch, pixels, channels)).astype(F))
    v, gamma, beta = (rng.normal(1, 0.3, channels).astype(F) for _ in range(3))
    by = int8.NormParameters(v, gamma, beta)
    out = int8.Maps.empty(batch, pixels * channels)
    int8.evonorm(shape, maps, by, out, isa, 2)
    z = reference.evonorm(y, v, gamma, beta, shape.groups, shape.chunks)
    spread = np.abs(z).reshape(batch, -1).max(1)[:, None, None]
    # Half a step of the quantiser, and float32 rounding of z.
    assert (np.abs(decoded(out, z.shape) - z) <= 0.501 * wide(out.scale, z) + 1e-5 * spread).all()

    g = rng.normal(size=z.shape).astype(F)
    dy, grads = np.empty(g.size, F), int8.NormParameters(*(np.empty(channels, F) for _ in range(3)))
    int8.evonorm_backward(shape, maps, by, g.ravel(), dy, grads, isa, 2)
    expected = reference.evonorm_gradients(y, v, gamma, g.astype(np.float64), shape.groups, shape.chunks)
    for found, wanted in zip((dy.reshape(y.shape), *grads), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5 * np.abs(wanted).max())


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 200), st.sampled_from(ISAS), st.integers(0, 10**6))
def test_additions(batch, size, isa, seed):
    rng = np.random.default_rng(seed)
    (a, x), (b, y) = (maps_of(rng.normal(m, s, (batch, size)).astype(F)) for m, s in ((0, 1), (3, 0.1)))
    out = int8.Maps.empty(batch, size)
    int8.add(a, b, out, isa, 2)
    total = x + y
    assert (np.abs(decoded(out, total.shape) - total) <= 0.501 * out.scale[:, None] + 1e-6).all()
    terms = [(m.q.reshape(batch, size).astype(np.int32) - m.zero[:, None]).astype(F) * m.scale[:, None] for m in (a, b)]
    q, scale, zero = reference.quantise(terms[0] + terms[1])
    np.testing.assert_array_equal(out.q, q.ravel())
    np.testing.assert_array_equal(out.scale, scale)
    np.testing.assert_array_equal(out.zero, zero)


def halved_gradient(x, g, kernel, stride, pad):
    """Of the largest values of windows of x [batch, height, width, channels]: half for the first,
    half for the last of them."""
    dx = np.zeros(x.shape)
    for y, row in enumerate(g.swapaxes(0, 1)):
        for z, grads in enumerate(row.swapaxes(0, 1)):
            rows = range(max(y * stride - pad, 0), min(y * stride - pad + kernel, x.shape[1]))
            columns = range(max(z * stride - pad, 0), min(z * stride - pad + kernel, x.shape[2]))
            places = [(r, c) for r in rows for c in columns]
            window = np.stack([x[:, r, c] for r, c in places])
            for turn in (1, -1):
                which = window[::turn].argmax(0)
                for k, (r, c) in enumerate(places[::turn]):
                    dx[:, r, c] += np.where(which == k, grads / 2, 0)
    return dx


@settings(max_examples=10)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.booleans(),
    st.integers(3, 9),
    st.integers(3, 9),
    st.sampled_from([5, 16, 37]),
    st.sampled_from(ISAS),
    st.integers(0, 10**6),
)
def test_pooling_is_torchs(kernel, stride, padded, ceil_mode, height, width, channels, isa, seed):
    rng = np.random.default_rng(seed)
    pad = kernel // 2 if padded else 0
    maps, y = maps_of(rng.normal(size=(2, height, width, channels)).astype(F))
    q = torch.from_numpy(maps.q.reshape(2, height, width, channels).astype(F)).permute(0, 3, 1, 2).requires_grad_()
    most = F32.max_pool2d(q, kernel, stride, pad, ceil_mode=ceil_mode)
    out_h, out_w = most.shape[2:]
    shape = int8.PoolShape(2, height, width, channels, kernel, kernel, stride, stride, pad, pad, out_h, out_w)
    out, tap = np.empty(most.numel(), np.int8), np.empty(2 * most.numel(), np.uint8)
    int8.max_pool(shape, maps.q, out, tap, isa, 2)
    np.testing.assert_array_equal(out.reshape(2, out_h, out_w, channels), most.detach().permute(0, 2, 3, 1).numpy())
    g, dx = rng.normal(size=most.shape).astype(F), np.empty(maps.q.size, F)
    int8.max_pool_backward(shape, tap, np.ascontiguousarray(g.transpose(0, 2, 3, 1)).ravel(), dx, 2)
    values = maps.q.reshape(2, height, width, channels)
    wanted = halved_gradient(values, g.transpose(0, 2, 3, 1), kernel, stride, pad)
    np.testing.assert_allclose(dx.reshape(values.shape), wanted, atol=1e-5)
    most.backward(torch.from_numpy(g))
    np.testing.assert_allclose(wanted.sum((1, 2)), q.grad.sum((2, 3)).numpy(), atol=1e-4)

    for counted in (True, False):
        x = torch.from_numpy(y).permute(0, 3, 1, 2).requires_grad_()
        mean = F32.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil_mode, count_include_pad=counted)
        found = np.empty(most.numel(), F)
        int8.average_pool(shape, maps, counted, found, 2)
        np.testing.assert_allclose(
            found.reshape(2, out_h, out_w, channels), mean.detach().permute(0, 2, 3, 1), atol=1e-5
        )
        int8.average_pool_backward(shape, np.ascontiguousarray(g.transpose(0, 2, 3, 1)).ravel(), counted, dx, 2)
        mean.backward(torch.from_numpy(g.astype(np.float64)))
        np.testing.assert_allclose(dx.reshape(2, height, width, channels), x.grad.permute(0, 2, 3, 1), atol=1e-5)


def test_a_tap_outside_the_map_is_refused():
    shape = int8.PoolShape(1, 3, 3, 1, 3, 3, 2, 2, 1, 1, 2, 2)
    for tap in (0, 3, 9, 255):  # the first window has no row above and no column to the left of its middle
        for at in (0, 4):  # among the first and the last ones
            taps = np.full(8, 4, np.uint8)
            taps[at] = tap
            with pytest.raises(ValueError, match="outside the map"):
                int8.max_pool_backward(shape, taps, np.ones(4, F), np.empty(9, F))


def s0_of(shape, y, by, g, isa, threads):
    """What the kernels of EvoNorm-S0 make of float32 maps, and the gradients of y, v, gamma and
    beta."""
    z, moments, dy = np.empty_like(y), np.empty(shape.batch * 2 * shape.groups, F), np.empty_like(y)
    grads = int8.NormParameters(*(np.empty(shape.channels, F) for _ in range(3)))
    int8.evonorm_s0(shape, y, by, z, moments, isa, threads)
    int8.evonorm_s0_backward(shape, y, by, moments, g, dy, grads, isa, threads)
    return z, dy, *grads


@pytest.mark.parametrize("channels", [1, 6, 16, 100])
def test_evonorm_s0_has_the_same_bits_everywhere_on_any_number_of_threads(channels):
    rng = np.random.default_rng(channels)
    shape = int8.NormShape(3, 35, channels, groups_of(channels), 1)
    y, g = (rng.normal(0.1, scale, 3 * 35 * channels).astype(F) for scale in (4.0, 1.0))
    by = int8.NormParameters(*(rng.normal(1, 0.5, channels).astype(F) for _ in range(3)))
    first, *others = (s0_of(shape, y, by, g, isa, threads) for isa in ISAS for threads in (1, 3))
    for other in others:
        for one, same in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("sides", [(0, 0, 0, 0, 0, 16), (1, 2, 0, 3, 4, 1), (0, 1, 2, 0, 0, 0), (0, 0, 0, 0, 0, 0)])
@pytest.mark.parametrize("channels", [5, 16, 35])
def test_padding_puts_the_zero_point_around_maps(sides, channels):
    q = np.random.default_rng(3).integers(-128, 128, (3, 4, 6, channels)).astype(np.int8)
    zero = np.array([-128, 0, 127], np.int32)
    rows, columns, more = sides[:2], sides[2:4], sides[4:]
    expected = np.stack([np.pad(m, (rows, columns, more), constant_values=z) for m, z in zip(q, zero, strict=True)])
    out = np.empty(expected.size, np.int8)
    int8.pad(int8.PadShape(3, 4, 6, channels, *sides), q.ravel(), zero, out, 2)
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)
