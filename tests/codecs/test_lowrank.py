"""atomo and powersgd: what the papers promise, against plain numpy."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.codecs.lowrank import MAX_SIDE, Band, bands, probabilities, unfolded
from edgegossip.layout import Layout, TensorSpec

CTX = codecs.Ctx(key=5, round=0)


def layout_of(*shapes):
    return Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))


def low_rank(rows, cols, rank, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, cols))).astype(np.float32)


def once(codec, layout, x, key=5, state=None):
    state = codec.init(layout) if state is None else state
    body, state = codec.encode(x.ravel(), state, dataclasses.replace(CTX, key=key))
    return codec.decode(body, layout), body, state


def test_what_is_a_matrix():
    layout = layout_of((40, 3, 3, 3), (40,), (), (0, 4), (3, 3), (50, 1), (64, 10))
    plan = list(unfolded(layout, 2))
    assert [(t.tensor, t.rows, t.cols) for t in plan] == [
        (0, 40, 27),
        (1, 0, 0),
        (2, 0, 0),
        (4, 0, 0),  # 2 * (3 + 3) >= 9
        (5, 0, 0),
        (6, 64, 10),
    ]
    assert [(t.start, t.size) for t in plan] == [(0, 1080), (1080, 40), (1120, 1), (1121, 9), (1130, 50), (1180, 640)]


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (20, 4, 3, 3)])
@pytest.mark.parametrize(("name", "params"), [("atomo", {"rank": 3}), ("powersgd", {"rank": 3})])
def test_a_matrix_of_low_rank_is_reproduced(name, params, shape):
    rows, cols = shape[0], int(np.prod(shape[1:]))
    for rank in (1, 3):
        a = low_rank(rows, cols, rank)
        y, body, _ = once(codecs.get(name, **params), layout_of(shape), a)
        np.testing.assert_allclose(y, a.ravel(), atol=2e-6 * np.abs(a).max())
        assert len(body) <= 4 * 3 * (rows + cols) + 2


@pytest.mark.parametrize("name", ["atomo", "powersgd"])
def test_vectors_and_small_matrices_travel_exactly(name):
    layout = layout_of((3, 3), (100,), (1, 50), ())
    x = np.random.default_rng(1).standard_normal(layout.size).astype(np.float32)
    y, body, _ = once(codecs.get(name), layout, x)
    assert y.tobytes() == x.tobytes() == bytes(body)


# --- atomo
# --------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e30, allow_subnormal=False), max_size=40), st.integers(1, 8))
def test_probabilities_are_the_papers(norms, rank):
    p = probabilities(norms, rank)
    positive = [s for s in norms if s > 0]
    assert all(0 <= q <= 1 for q in p) and all((q > 0) == (s > 0) for q, s in zip(p, norms, strict=True) if s > 1e-280)
    assert sum(p) == pytest.approx(min(rank, len(positive)))
    # a subnormal probability has fewer digits than the law is held to
    ratios = [q / s for q, s in zip(p, norms, strict=True) if sys.float_info.min <= q < 1]
    assert not ratios or max(ratios) <= min(ratios) * (1 + 1e-9)
    assert all(q == 1 for q, s in zip(p, norms, strict=True) if ratios and s * max(ratios) > 1 + 1e-9)


def test_atomo_is_unbiased_with_the_papers_variance():
    """Element by element at 4.5 sigma (of 400 elements), and the sum of squared errors at 4
    sigma."""
    layout, rank, keys = layout_of((12, 40)), 2, 600
    a = np.random.default_rng(2).standard_normal((12, 40)) * 0.7 ** np.arange(12)[:, None]
    x = a.astype(np.float32)
    codec = codecs.get("atomo", rank=rank)
    errors = np.array([once(codec, layout, x, key)[0].astype(np.float64) - x.ravel() for key in range(keys)])
    spread = errors.std(axis=0, ddof=1) / np.sqrt(keys)
    assert (np.abs(errors.mean(axis=0)) <= 4.5 * spread).all()
    norms = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    p = np.array(probabilities(norms.tolist(), rank))
    squares = (errors**2).sum(axis=1)
    assert abs(squares.mean() - (norms**2 * (1 / p - 1)).sum()) <= 4 * squares.std() / np.sqrt(keys)


def test_atoms_are_the_singular_vectors():
    a = low_rank(24, 60, 20, seed=4)
    _, body, _ = once(codecs.get("atomo", rank=4), layout_of((24, 60)), a)
    count = int.from_bytes(body[:2], "little")
    assert count > 0
    numbers = np.frombuffer(body, "<f4", offset=2)
    left, right = numbers[: count * 24].reshape(count, 24), numbers[count * 24 :].reshape(count, 60)
    u, s, vh = np.linalg.svd(a.astype(np.float64), full_matrices=False)
    p = probabilities(s.tolist(), 4)
    for short, long in zip(left, right, strict=True):
        i = int(np.argmax(np.abs(u.T @ short)))
        sign = np.sign(u[:, i] @ short)
        np.testing.assert_allclose(sign * short, u[:, i], atol=1e-5)
        np.testing.assert_allclose(sign * long, s[i] / p[i] * vh[i], atol=1e-5 * s[0] / p[i])


def test_a_sample_too_large_travels_as_its_sum():
    """Of 7 x 8 at rank 3 the average sample just pays; some do not. What arrives is the sample all
    the same."""
    layout = layout_of((7, 8))
    x = np.random.default_rng(3).standard_normal((7, 8)).astype(np.float32)
    codec = codecs.get("atomo", rank=3)
    seen = set()
    total = np.zeros(56)
    for key in range(600):
        y, body, _ = once(codec, layout, x, key)
        count = int.from_bytes(body[:2], "little")
        seen.add(count)
        assert len(body) == 2 + (4 * 56 if count == 0xFFFF else 4 * 15 * count)
        total += y
    assert 0xFFFF in seen and min(seen) < 3
    assert np.abs(total / 600 - x.ravel()).max() < 0.35


def test_a_large_matrix_is_cut_into_bands_of_rows():
    layout = layout_of((1030, 600), (2000, 40), (7,))
    cut = list(bands(layout, 3))
    assert [(b.rows, b.cols, b.first_atom) for b in cut] == [
        (343, 600, 0),
        (343, 600, 343),
        (344, 600, 686),
        (2000, 40, 0),
        (0, 0, 0),
    ]
    assert [b.start for b in cut] == np.cumsum([0, *(b.size for b in cut)])[:-1].tolist()
    assert all(min(b.rows, b.cols) <= MAX_SIDE for b in cut)
    assert Band(0, 0, 200, 10, 20, 0).most_atoms(1) == 6 and Band(0, 0, 10**6, 1000, 1000, 0).most_atoms(2) == 12


# --- powersgd
# --------------------------------------------------------------------------------------------------


def plain_powersgd(messages, rank, start):
    """The paper's Algorithms 1 and 2 for one worker, in float64 with numpy's QR: every decoded
    matrix."""
    error, q = np.zeros_like(messages[0]), start
    for x in messages:
        m = x + error
        p = np.linalg.qr(m @ q)[0]
        q = m.T @ p
        decoded = p @ q.T
        error = m - decoded
        yield decoded


def test_powersgd_follows_the_papers_lines_over_rounds():
    rows, cols, rank = 40, 70, 3
    rng = np.random.default_rng(6)
    messages = [low_rank(rows, cols, 5, seed=1) + rng.standard_normal((rows, cols)) for _ in range(8)]
    layout, codec = layout_of((rows, cols)), codecs.get("powersgd", rank=rank)
    state = codec.init(layout)
    start = state.right.reshape(rank, cols).T.astype(np.float64)
    assert np.abs(start).max() <= 1 and 0.4 < np.abs(start).mean() < 0.6
    for x, expected in zip(messages, plain_powersgd(messages, rank, start), strict=True):
        y, _, state = once(codec, layout, x.astype(np.float32), state=state)
        np.testing.assert_allclose(y.reshape(rows, cols), expected, atol=1e-4 * np.abs(expected).max())


def test_a_column_that_became_zero_comes_back():
    layout, codec = layout_of((10, 12)), codecs.get("powersgd", rank=2, decay=0.0)
    state = codec.init(layout)
    for x in (np.zeros((10, 12), np.float32), low_rank(10, 12, 1)):
        y, _, state = once(codec, layout, x, state=state)
        np.testing.assert_allclose(y.reshape(10, 12), x, atol=1e-6 * max(1, np.abs(x).max()))
    a = low_rank(10, 12, 2)
    for _ in range(6):
        y, _, state = once(codec, layout, a, state=state)
    np.testing.assert_allclose(y.reshape(10, 12), a, atol=1e-5 * np.abs(a).max())


def test_bands_are_reproduced_side_by_side():
    a = low_rank(600, 520, 2)
    y, _, _ = once(codecs.get("atomo", rank=2), layout_of((600, 520)), a)
    np.testing.assert_allclose(y, a.ravel(), atol=3e-6 * np.abs(a).max())
