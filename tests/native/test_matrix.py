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


def test_a_product_beyond_float32_is_held():
    factors = np.array([1, -3, BIG, BIG], np.float32).tobytes()  # left: 1, -3; right: BIG, BIG
    out = np.empty(4, np.float32)
    matrix.factors_product(factors, 2, 2, 1, "fp32", out)
    np.testing.assert_array_equal(out, [BIG, BIG, -BIG, -BIG])
    x = np.array([BIG, -BIG, 1], np.float32)
    held = np.empty(3, np.float32)
    matrix.corrected(x, x, 1.0, held)
    np.testing.assert_array_equal(held, [BIG, -BIG, 2])
