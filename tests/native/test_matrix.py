"""Low-rank arithmetic against numpy, on every instruction set: products, spectral bases, power
steps."""

import numpy as np
import pytest

from edgegossip.native import matrix
from tests.native.everywhere import on_every_isa

BIG = np.finfo(np.float32).max
SHAPES = [(1, 1), (1, 9), (9, 1), (2, 3), (7, 7), (8, 16), (31, 65), (65, 31), (130, 300), (300, 130)]


def random_matrix(rows, cols, seed=0, scale=1.0):
    a = np.random.default_rng(seed).standard_normal((rows, cols)) * scale
    return np.clip(a, -BIG, BIG).astype(np.float32)


def basis_of(a, isa=None):
    basis, norms = matrix.spectral_basis(a.ravel(), *a.shape, isa=isa)
    return basis, norms


@on_every_isa
@pytest.mark.parametrize("scale", [1.0, 1e-44, 1e-20, 1e38])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_basis_is_orthonormal_and_its_norms_are_the_singular_values(shape, scale, isa):
    a = random_matrix(*shape, scale=scale)
    basis, norms = basis_of(a, isa)
    np.testing.assert_allclose(basis @ basis.T, np.eye(min(shape)), atol=1e-13)
    expected = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(np.sort(norms)[::-1], expected, atol=1e-13 * expected.max())


SPECIAL = {
    "zeros": np.zeros((6, 9)),
    "identity": np.eye(12),
    "rank one": np.outer(np.arange(1, 8), np.arange(1, 20)),
    "equal rows": np.ones((10, 30)),
    "graded": np.diag(10.0 ** np.arange(-19, 19, 2)),
    "one value": np.eye(7, 5) * [[0], [3], [0], [0], [0], [0], [0]],
    "huge and denormal": np.diag([3e38, 1e-45, 1e-45, 1.0, 3e38]) + 1e-44,
    "two blocks": np.kron(np.eye(2), np.arange(12).reshape(3, 4)),
    "largest": np.full((5, 9), BIG),
}


@on_every_isa
@pytest.mark.parametrize("name", SPECIAL)
def test_atoms_add_up_to_any_matrix(name, isa):
    a = SPECIAL[name].astype(np.float32)
    for b in (a, np.ascontiguousarray(a.T)):
        basis, norms = basis_of(b, isa)
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-13)
        wide = b.astype(np.float64)
        sides = basis @ wide if b.shape[0] <= b.shape[1] else basis @ wide.T
        np.testing.assert_allclose(np.linalg.norm(sides, axis=1), norms, rtol=1e-12, atol=1e-13 * norms.max())
        for unit, side in zip(basis, sides, strict=True):
            out = np.empty(max(b.shape), np.float32)
            matrix.spectral_atom(b.ravel(), *b.shape, unit, 0.5, out, isa)
            expected = np.clip(2 * side, -BIG, BIG)
            np.testing.assert_allclose(out, expected, rtol=2e-7, atol=1e-13 * norms.max() + 1e-45)


def product_of(factors, rows, cols, rank, form):
    """The matrix of wire factors, in float64."""
    number = "<f4" if form == "fp32" else "<f2"
    size = np.dtype(number).itemsize
    left = np.frombuffer(factors, number, rank * rows).reshape(rank, rows).astype(np.float64)
    at = rank * rows * size
    scales = np.ones(rank)
    if form == "fp16":
        scales = np.frombuffer(factors, "<f4", rank, at).astype(np.float64)
        at += 4 * rank
    right = np.frombuffer(factors, number, rank * cols, at).reshape(rank, cols).astype(np.float64)
    return left, right * scales[:, None]


@on_every_isa
@pytest.mark.parametrize("form", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("shape", "rank"), [((1, 1), 1), ((5, 17), 2), ((257, 300), 5), ((513, 15), 17), ((16, 512), 5)]
)
def test_products_of_factors(shape, rank, form, isa):
    rng = np.random.default_rng(5)
    number = np.float32 if form == "fp32" else np.float16
    left, right = (rng.standard_normal((rank, side)).astype(number) for side in shape)
    scales = (2.0 ** rng.integers(-20, 20, rank)).astype(np.float32).tobytes() if form == "fp16" else b""
    factors = b"?" + left.tobytes() + scales + right.tobytes()
    view = memoryview(factors)[1:]
    wide_left, wide_right = product_of(factors[1:], *shape, rank, form)
    expected = (wide_left.T @ wide_right).astype(np.float32).ravel()
    out = np.full(shape[0] * shape[1], 9, np.float32)
    assert matrix.factors_bytes(*shape, rank, form) == len(view)
    assert matrix.factors_sound(view, *shape, rank, form, isa)
    matrix.factors_product(view, *shape, rank, form, out, isa=isa)
    np.testing.assert_allclose(out, expected, rtol=3e-7, atol=1e-12 * np.abs(expected).max())
    total = np.linspace(-1, 1, out.size, dtype=np.float32)
    added = total + np.float32(0.3) * out
    matrix.factors_product(view, *shape, rank, form, total, 0.3, isa)
    assert total.tobytes() == added.tobytes()


def test_a_product_beyond_float32_is_held():
    factors = np.array([1, -3, BIG, BIG], np.float32).tobytes()  # left: 1, -3; right: BIG, BIG
    out = np.empty(4, np.float32)
    matrix.factors_product(factors, 2, 2, 1, "fp32", out)
    np.testing.assert_array_equal(out, [BIG, BIG, -BIG, -BIG])
    x = np.array([BIG, -BIG, 1], np.float32)
    held = np.empty(3, np.float32)
    matrix.corrected(x, x, 1.0, held)
    np.testing.assert_array_equal(held, [BIG, -BIG, 2])


@on_every_isa
@pytest.mark.parametrize("form", ["fp32", "fp16"])
@pytest.mark.parametrize("rank", [1, 3, 9])
@pytest.mark.parametrize("shape", [(3, 4), (65, 31), (40, 600), (300, 11)])
def test_a_power_step_is_the_papers(shape, rank, form, isa):
    rows, cols = shape
    rng = np.random.default_rng(7)
    x, error = random_matrix(rows, cols, 1), random_matrix(rows, cols, 2, 0.3)
    start = rng.uniform(-1, 1, (rank, cols)).astype(np.float32)
    factors = np.empty(matrix.factors_bytes(rows, cols, rank, form), np.uint8)
    following, residual = np.empty(rank * cols, np.float32), np.empty(rows * cols, np.float32)
    matrix.power_step(
        x.ravel(), error.ravel(), 0.5, rows, cols, rank, form, start.ravel(), factors, following, residual, isa
    )
    m = x.astype(np.float64) + 0.5 * error.astype(np.float64)
    left, right = product_of(factors.tobytes(), rows, cols, rank, form)
    real = min(rank, rows, cols)
    basis = np.linalg.qr(m @ start.T.astype(np.float64)[:, :real])[0]
    close = 2e-6 if form == "fp32" else 4e-3
    np.testing.assert_allclose(left[:real].T @ left[:real], basis @ basis.T, atol=close)
    assert (left[real:] == 0).all() and (right[real:] == 0).all()
    np.testing.assert_allclose(right, left @ m, atol=close * np.abs(left @ m).max())
    following = following.reshape(rank, cols)
    np.testing.assert_allclose(following[:real], (left @ m)[:real], atol=2e-6 * np.abs(m).max() * rows)
    np.testing.assert_array_equal(following[real:], start[real:])
    np.testing.assert_allclose(residual.reshape(shape), m - left.T @ right, atol=1e-6 * np.abs(m).max())
