"""Attention, layer norm and GELU of int8 samples against the same mathematics in numpy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.int8.norms import chunks_of
from edgegossip.native import int8
from tests.native import reference_int8 as reference
from tests.native.everywhere import ISAS, on_every_isa

F = np.float32


def maps_of(values):
    q, scale, zero = reference.quantise(values)
    return int8.Maps(q.ravel(), scale, zero)


def decoded(maps, shape):
    wide = (-1, *[1] * (len(shape) - 1))
    q = maps.q.reshape(shape).astype(np.float64) - maps.zero.reshape(wide)
    return q * maps.scale.astype(np.float64).reshape(wide)


def one_sample(maps, width):
    return decoded(maps, (1, maps.q.size // width, width))[0]


def attention_call(rng, shape, mask=None, dropped=0.0, width=1.0):
    maps = [
        maps_of(rng.normal(0.1, width, (shape.batch, tokens, shape.heads * shape.width)).astype(F))
        for tokens in (shape.queries, shape.keys, shape.keys)
    ]
    seen = None
    if mask is not None:
        seen = (rng.random((*mask, shape.keys)) < 0.7).astype(np.uint8).ravel()
    return int8.AttentionPass(shape, *maps, seen, mask or (1, 1, 1), dropped, int(rng.integers(0, 2**63)))


def run_attention(call, g, isa=None, threads=1):
    s = call.shape
    sizes = [s.batch * t * s.heads * s.width for t in (s.queries, s.queries, s.keys, s.keys)]
    out, dq, dk, dv = (np.full(n, np.nan, F) for n in sizes)
    int8.attention(call, out, isa, threads)
    int8.attention_backward(call, g.ravel(), dq, dk, dv, isa, threads)
    return out, dq, dk, dv


@settings(max_examples=15)
@given(
    st.builds(
        int8.AttentionShape,
        st.integers(1, 3),
        st.integers(1, 40),
        st.integers(1, 40),
        st.integers(1, 3),
        st.integers(1, 40),
    ),
    st.tuples(st.booleans(), st.booleans(), st.booleans()) | st.none(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.05, 1.0, 4.0]),
    st.sampled_from(ISAS),
    st.integers(1, 3),
    st.integers(0, 10**6),
)
def test_attention_is_the_reference_bit_for_bit(shape, masked, dropped, width, isa, threads, seed):
    rng = np.random.default_rng(seed)
    mask = None
    if masked is not None:
        whole = (shape.batch, shape.heads, shape.queries)
        mask = tuple(n if own else 1 for n, own in zip(whole, masked, strict=True))
    call = attention_call(rng, shape, mask, dropped, width)
    g = rng.normal(size=(shape.batch, shape.queries, shape.heads * shape.width)).astype(F)
    for found, wanted in zip(run_attention(call, g, isa, threads), reference.attention(call, g), strict=True):
        np.testing.assert_array_equal(found, wanted.ravel())


@on_every_isa
def test_attention_is_softmax_to_the_precision_of_a_code(isa):
    """Against float64 attention of the very values that int8 holds."""
    rng = np.random.default_rng(5)
    shape = int8.AttentionShape(2, 24, 31, 3, 20)
    call = attention_call(rng, shape, (2, 1, 1))
    g = rng.normal(size=(2, 24, 60)).astype(F)
    q, k, v = (
        torch.from_numpy(decoded(m, (2, t, 3, 20))).transpose(1, 2).requires_grad_()
        for m, t in ((call.q, 24), (call.k, 31), (call.v, 31))
    )
    mask = torch.from_numpy(call.seen.reshape(2, 1, 1, 31) != 0)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    y = y.transpose(1, 2).reshape(2, 24, 60)
    y.backward(torch.from_numpy(g.astype(np.float64)))
    wanted = [x.grad.transpose(1, 2).numpy() for x in (q, k, v)]
    out, *grads = run_attention(call, g, isa)
    assert np.abs(out.reshape(2, 24, 60) - y.detach().numpy()).max() < 0.02
    for found, exact in zip(grads, wanted, strict=True):
        a, b = found.astype(np.float64).ravel(), exact.ravel()
        assert a @ b / np.sqrt((a @ a) * (b @ b)) > 0.999


@on_every_isa
def test_a_query_that_sees_nothing_gives_zeros_and_what_is_not_finite_stays_visible(isa):
    rng = np.random.default_rng(2)
    shape = int8.AttentionShape(2, 5, 6, 2, 4)
    call = attention_call(rng, shape)
    seen = np.ones((2, 6), np.uint8)
    seen[1] = 0
    call = call._replace(seen=seen.ravel(), mask=(2, 1, 1))
    g = rng.normal(size=(2, 5, 8)).astype(F)
    for found in run_attention(call, g, isa):
        parts = found.reshape(2, -1)
        assert np.isfinite(parts).all() and not parts[1].any() and parts[0].any()
    call.k.scale[0] = np.nan
    for found in run_attention(call, g, isa):
        parts = found.reshape(2, -1)
        assert np.isnan(parts[0]).all() and np.isfinite(parts[1]).all()


@settings(max_examples=10)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([1, 4, 7, 16, 30, 48, 96, 128, 200]),
    st.sampled_from([1e-12, 1e-5]),
    st.sampled_from(ISAS),
    st.integers(0, 10**6),
)
def test_layer_norm(batch, tokens, features, epsilon, isa, seed):
    rng = np.random.default_rng(seed)
    chunks = chunks_of(features)
    shape = int8.LayerNormShape(batch, tokens, features, chunks)
    maps = maps_of(rng.normal(0.5, 1, (batch, tokens, features)).astype(F))
    gamma, beta = (rng.normal(1, 0.3, features).astype(F) for _ in range(2))
    out = int8.Maps.empty(batch, tokens * features)
    int8.layernorm(shape, maps, gamma, beta, 0.3 / chunks, epsilon, out, isa, 2)
    y = decoded(maps, (batch, tokens, features))
    z = reference.layernorm(y, gamma, beta, 0.3 / chunks, epsilon, chunks)
    spread = np.abs(z).reshape(batch, -1).max(1)[:, None, None]
    step = out.scale[:, None, None]
    assert (np.abs(decoded(out, z.shape) - z) <= 0.501 * step + 1e-5 * spread).all()

    g = rng.normal(size=z.shape).astype(F)
    dy, dgamma, dbeta = np.empty(g.size, F), np.empty(features, F), np.empty(features, F)
    int8.layernorm_backward(shape, maps, gamma, 0.3 / chunks, epsilon, g.ravel(), dy, dgamma, dbeta, isa, 2)
    x, a, b = (torch.from_numpy(t.astype(np.float64)).requires_grad_() for t in (y, gamma, beta))
    parts = x.unflatten(2, (chunks, -1))
    wide = (parts.amax(3) - parts.amin(3)).sum(2, keepdim=True) * (0.3 / chunks) + epsilon
    (a * (x - x.mean(2, keepdim=True)) / wide + b).backward(torch.from_numpy(g.astype(np.float64)))
    for found, exact in ((dy.reshape(y.shape), x.grad), (dgamma, a.grad), (dbeta, b.grad)):
        exact = exact.numpy()
        np.testing.assert_allclose(found, exact, rtol=3e-4, atol=3e-5 * np.abs(exact).max() + 1e-20)


@on_every_isa
def test_gelu_is_a_table_of_the_sample(isa):
    rng = np.random.default_rng(3)
    x = rng.normal(0, [[0.01], [1], [40]], (3, 3000)).astype(F)
    maps, out = maps_of(x), int8.Maps.empty(3, 3000)
    int8.gelu(maps, out, isa, 2)
    exact = torch.from_numpy(decoded(maps, x.shape)).requires_grad_()
    y = torch.nn.functional.gelu(exact)
    wanted = y.detach().numpy()
    error = np.abs(decoded(out, x.shape) - wanted)
    assert (error <= 0.501 * out.scale[:, None] + 2e-7 * np.abs(wanted).max(1)[:, None]).all()
    g, dx = rng.normal(size=x.shape).astype(F), np.empty(x.size, F)
    int8.gelu_backward(maps, g.ravel(), dx, 2)
    y.backward(torch.from_numpy(g.astype(np.float64)))
    np.testing.assert_allclose(dx.reshape(x.shape), exact.grad.numpy(), rtol=1e-5, atol=1e-6)
    maps.scale[1] = np.nan
    int8.gelu(maps, out, isa, 1)
    np.testing.assert_array_equal(np.isnan(out.scale), [False, True, False])
