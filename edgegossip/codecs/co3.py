"""`co3`, and the generalised normal law that it takes gradients for: what follows from that law for
the scale k and for Huffman marginals.

Chen, Hernandez, Huang, Rini, "Convert, compress, correct" (CO3), section III and equations 8 and 9;
values are GenNorm (alpha, beta) with density beta / (2 alpha Gamma(1/beta)) exp(-(|x| /
alpha)^beta). CO3 sends G(k x) / k, with G rounding to the nearest of the 11 numbers 0, +-.5, +-1,
+-1.5, +-2, +-3.

Deviations from the paper. Its equation 9 calls k an exponent bias and divides by the standard
deviation; its numbers are those of k = poly(beta) / alpha with the law's *scale parameter* alpha,
and they are wrong below beta = .5. Here k comes from a table of true optima (`gennorm_tables.py`),
and eq 9 is `lab/papers/bounds.py`'s. beta is fitted by moments: (E|x|)^2 / E x^2 =
Gamma(2/b)^2 / (Gamma(1/b) Gamma(3/b)), which lies between 0 and 3/4.

Only tables and + - * / are used, no exp, log or gamma function: every CPU gets the same k from the
same moments.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import Body, Codec, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat
from edgegossip.codecs.feedback import ErrorFeedback
from edgegossip.codecs.gennorm_tables import MARGINALS, OPTIMA
from edgegossip.codecs.quantised import (
    CODER,
    EntropyCoder,
    QuantisedBodies,
    Reader,
    Scale,
    encode_body,
)
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native.quantise import LevelKind, Moments, Quantiser
from edgegossip.types import UsageError, Vec

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # magnitudes by level: 1 sign, 2 exponent, 1 mantissa bit, exponent bias 1
EDGES = (0.25, 0.75, 1.25, 1.75, 2.5)  # between them, nearest rounding

# k is a normal float32 whose largest value 3 / k is finite.
K_MIN = 2.0**-126
K_MAX = float(np.finfo(np.float32).max)

_BETAS = tuple(row[0] for row in OPTIMA)
_RATIOS = tuple(row[1] for row in OPTIMA)
_MEANS = tuple(row[2] for row in OPTIMA)  # E|x| / alpha
_SCALES = tuple(row[2] * row[3] for row in OPTIMA)  # k E|x|, which is far smoother than k alpha


@dataclass(frozen=True, slots=True)
class GenNorm:
    """A fitted law: scale alpha (0 when all values are zero) and shape beta."""

    alpha: float
    beta: float


def moment_ratio(sum_abs: float, sum_squares: float, n: int) -> float:
    """Return (mean |x|)^2 / mean x^2, in [0, 1]; 1 for values that are all zero. Raises UsageError
    on impossible moments."""
    if n < 1 or not (0 <= sum_abs < float("inf") and 0 <= sum_squares < float("inf")):
        raise UsageError(f"{n} values cannot have a sum of magnitudes {sum_abs} and of squares {sum_squares}")
    if sum_squares == 0.0:
        return 1.0
    return min(1.0, sum_abs / sum_squares * (sum_abs / n))


def fit(sum_abs: float, sum_squares: float, n: int) -> GenNorm:
    """Return the law with these moments: sum |x| and sum x^2 over n values.

    beta is clamped to the table, .15 to 20, and within 4 % of the exact solution; alpha is within 2
    % from beta = .35 on, and rough below, where it changes by orders of magnitude between points.
    (`scale_for` needs neither.) Raises UsageError on impossible moments.
    """
    ratio = moment_ratio(sum_abs, sum_squares, n)
    return GenNorm(sum_abs / n / _interpolate(_MEANS, ratio), _interpolate(_BETAS, ratio))


def scale_for(sum_abs: float, sum_squares: float, max_abs: float, n: int) -> np.float32:
    """Return CO3's k for n values with these moments (doubles, summed in an order that is the same
    everywhere).

    0 when all values are zero, else a normal float32 with 3 / k finite: the k of the smallest
    expected squared error under the fitted law, but never below 3 / max|x|, which brings the
    largest value to the largest grid point. A sample can lack the tail that its moments predict (n
    = 1, equal magnitudes, a few values), and a smaller k would then leave grid points unused. Where
    the tail is heavier than the table's, beta < .15, a few values are nearly all of the vector and
    k is 3 / max|x|. Hence |Q(x) - x| <= |x| for every value, and Q(x) is zero only with x (or where
    max|x| is so small, under 8e-40, that k would overflow). Raises UsageError on impossible
    moments.
    """
    ratio = moment_ratio(sum_abs, sum_squares, n)
    if sum_squares == 0.0:
        return np.float32(0.0)
    if not 0 < max_abs < float("inf"):
        raise UsageError(f"the largest of values that are not all zero cannot be {max_abs}")
    k = GRID[-1] / max_abs
    if ratio >= _RATIOS[0]:
        k = max(k, _interpolate(_SCALES, ratio) / (sum_abs / n))
    return np.float32(min(max(k, K_MIN), K_MAX))


@dataclass(frozen=True, slots=True)
class StaticTable:
    """Weights for Huffman codes that need no table in the frame: the frame names `index`."""

    index: int
    beta: float
    weights: tuple[int, ...]  # uint8[16] by code, sign << 3 | level; 0 for the five codes that never occur


STATIC_TABLES = tuple(StaticTable(j, beta, weights) for j, (beta, weights) in enumerate(MARGINALS))


def static_table_for(beta: float) -> StaticTable:
    """Return the table whose beta is nearest to this one in ratio."""
    # Between neighbours a < b the border is sqrt(a b); no root is needed to compare with it.
    pairs = itertools.pairwise(STATIC_TABLES)
    return STATIC_TABLES[sum(beta * beta > low.beta * high.beta for low, high in pairs)]


def _interpolate(column: tuple[float, ...], ratio: float) -> float:
    """A column of the table at this ratio of moments, linear in the ratio; its ends beyond the
    table."""
    if ratio <= _RATIOS[0]:
        return column[0]
    if ratio >= _RATIOS[-1]:
        return column[-1]
    j = bisect_right(_RATIOS, ratio) - 1
    share = (ratio - _RATIOS[j]) / (_RATIOS[j + 1] - _RATIOS[j])
    return column[j] + share * (column[j + 1] - column[j])


_QUANTISER = Quantiser(LevelKind.FP4, bits=4)
_TABLES = np.array([t.weights for t in STATIC_TABLES], np.uint8).reshape(-1)


@dataclass(frozen=True, slots=True)
class Co3Grid(QuantisedBodies[Layout], StatelessCodec):
    """CO3 without its memory: 4 bits a value before the entropy coder, a float32 a tensor. Its
    state is the layout.

    `co3`: convert, compress, correct (Chen et al. 2022): a 4-bit floating-point grid, Huffman
    codes, error feedback.

    Convert: Q(x) = G(x k) / k, G the nearest of the 11 values 0, +-0.5, +-1, +-1.5, +-2, +-3 (1
    sign, 2 exponent, 1 mantissa bits with exponent bias 1; the fourth exponent is reserved). k
    is chosen for each tensor to minimise the L2 error under a generalized normal law fitted by
    moments (not by the paper's equation 9, see above). Compress: Huffman codes of pairs, from
    static tables for a few shapes of that law or one sent along, whichever is smaller. Correct:
    Algorithm 1, a = g + gamma m; g' = Q(a); m <- a - g' (gamma 0.9), which is `error-feedback`
    around the grid; gamma = 0 leaves it out. Deviations: the paper's layout "[sgn mant exp] =
    [1 2 1]" has its labels in the wrong order, and its sign in equation 5 and line 14 diverges:
    the receiver's sum is subtracted (for gradients; a change of the model is added).

    Biased (nearest). |Q(x_i) - x_i| <= max(0.5 / k, |x_i| - 3 / k), and a float32's rounding.
    """

    stage: EntropyCoder = "huffman"
    name: ClassVar[str] = "co3"
    wire_id: ClassVar[int] = 9

    def __post_init__(self) -> None:
        check_fields(self, self.name, (_CODER,))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        return encode_body(x, state, _QUANTISER, ctx.key, self.stage, scale_of=_scale, tables=_TABLES), state

    @override
    def reader(self, body: Body, layout: Layout) -> Reader:
        return Reader(flat(body), layout, _QUANTISER, self.name, tables=_TABLES)


def _scale(m: Moments, n: int) -> Scale:
    k = float(scale_for(m.magnitudes, m.squares, m.largest, n))
    return Scale(k, static_table_for(fit(m.magnitudes, m.squares, n).beta).index)


def _co3(gamma: float = 0.0, stage: EntropyCoder = "huffman") -> Codec[Any]:
    return ErrorFeedback(Co3Grid(stage), gamma, "co3") if gamma else Co3Grid(stage)


_CODER = replace(CODER, default="huffman")

FAMILIES = (
    Family(
        "co3",
        _co3,
        "a 4-bit floating-point grid with error feedback",
        (
            Param("gamma", 0.9, "share of the error that the next message makes up for; 0: none", low=0.0, high=1.0),
            _CODER,
        ),
        Co3Grid.wire_id,
    ),
)
