"""Write edgegossip/codecs/gennorm_tables.py: CO3's optimal scales and Huffman marginals under the
generalised normal law.

    python -m lab.papers.make_gennorm_tables > edgegossip/codecs/gennorm_tables.py

Needs mpmath, which torch brings along. For every beta, t = |x| / alpha has the density beta /
Gamma(1/beta) exp(-t^beta), and with z = 1 / (k alpha) the squared error D(z) = E (t - z G(t / z))^2
of nearest rounding G has D'(z) = 0 where

    z = sum_j g_j A_j(z) / sum_j g_j^2 P_j(z)

(P_j and A_j: the integrals of the density and of t times it over cell j, regularised incomplete
gamma functions). The cells' edges move with z, but the error is continuous there, so their motion
adds nothing to D'. All sign changes on a fine grid are refined and the one with the smallest D is
taken.
"""

from __future__ import annotations

import itertools

import mpmath as mp

mp.mp.dps = 30

GRID = [mp.mpf(g) for g in ("0", "0.5", "1", "1.5", "2", "3")]
EDGES = [mp.mpf(e) for e in ("0", "0.25", "0.75", "1.25", "1.75", "2.5")]
# Fine enough for linear interpolation of the scale to stay within 0.1 % of the optimum; see the
# test.
BETAS = (
    [mp.mpf(b) / 1000 for b in range(150, 1000, 25)]
    + [mp.mpf(b) / 100 for b in range(100, 200, 5)]
    + [mp.mpf(b) / 10 for b in range(20, 40, 2)]
    + [mp.mpf(b) for b in ("4", "5", "6", "8", "10", "14", "20")]
)
STATIC_BETAS = [
    "0.3",
    "0.4",
    "0.45",
    "0.5",
    "0.55",
    "0.6",
    "0.7",
    "0.8",
    "0.9",
    "1",
    "1.25",
    "1.5",
    "2",
    "3",
    "5",
    "10",
]


def moment(beta: mp.mpf, order: int) -> mp.mpf:
    """E t^order."""
    return mp.gamma((order + 1) / beta) / mp.gamma(1 / beta)


def below(beta: mp.mpf, order: int, edge: mp.mpf) -> mp.mpf:
    """The integral of t^order times the density from 0 to `edge`."""
    return moment(beta, order) * mp.gammainc((order + 1) / beta, 0, edge**beta, regularized=True)


def cells(beta: mp.mpf, order: int, z: mp.mpf) -> list[mp.mpf]:
    """That integral over each cell of the grid, magnitudes only."""
    bounds = [below(beta, order, e * z) for e in EDGES] + [moment(beta, order)]
    return [high - low for low, high in itertools.pairwise(bounds)]


def slope(beta: mp.mpf, z: mp.mpf) -> mp.mpf:
    """D'(z) / 2."""
    p, a = cells(beta, 0, z), cells(beta, 1, z)
    return z * sum(g * g * q for g, q in zip(GRID, p, strict=True)) - sum(g * q for g, q in zip(GRID, a, strict=True))


def error(beta: mp.mpf, z: mp.mpf) -> mp.mpf:
    """D(z) / E t^2: the squared relative error."""
    p, a = cells(beta, 0, z), cells(beta, 1, z)
    gain = sum(2 * z * g * q for g, q in zip(GRID, a, strict=True))
    gain -= sum((z * g) ** 2 * q for g, q in zip(GRID, p, strict=True))
    return 1 - gain / moment(beta, 2)


def optimum(beta: mp.mpf) -> mp.mpf:
    """z = 1 / (k alpha) with the smallest error."""
    scale = moment(beta, 1)
    grid = [scale * mp.mpf("1.06") ** j for j in range(-18, 160)]  # k E|x| from 2.9 down to 0.0001
    with mp.workdps(15):
        signs = [slope(beta, z) > 0 for z in grid]
    roots = [
        mp.findroot(lambda z: slope(beta, z), (grid[j], grid[j + 1]), solver="anderson", tol=mp.mpf(10) ** -22)
        for j in range(len(grid) - 1)
        if not signs[j] and signs[j + 1]
    ]
    return min(roots, key=lambda z: error(beta, z))


def weights(beta: mp.mpf) -> list[int]:
    """uint8 weights of the codes sign << 3 | level under the optimum, the largest 255, none of a
    valid code 0."""
    p = cells(beta, 0, optimum(beta))
    p = [p[0]] + [q / 2 for q in p[1:]]
    level = [max(1, int(mp.nint(255 * q / max(p)))) for q in p] + [0, 0]
    return [*level, 0, *level[1:]]


def main() -> None:
    print('"""Tables of `co3.py`, written by lab/papers/make_gennorm_tables.py; not to be edited."""\n')
    print("from __future__ import annotations\n")
    print("# beta, (E|x|)^2 / E x^2, E|x| / alpha, k alpha of the smallest squared error on CO3's grid")
    print("OPTIMA: tuple[tuple[float, float, float, float], ...] = (")
    for beta in BETAS:
        ratio = moment(beta, 1) ** 2 / moment(beta, 2)
        print(f"    ({float(beta)!r}, {float(ratio)!r}, {float(moment(beta, 1))!r}, {float(1 / optimum(beta))!r}),")
    print(")\n")
    print(
        "# beta, weights of the 16 codes sign << 3 | level at the optimum (code 8, minus zero, and levels 6, 7 never occur)"
    )
    print("MARGINALS: tuple[tuple[float, tuple[int, ...]], ...] = (")
    for text in STATIC_BETAS:
        print(f"    ({float(text)!r}, {tuple(weights(mp.mpf(text)))}),")
    print(")")


if __name__ == "__main__":
    main()
