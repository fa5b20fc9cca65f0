"""Bagua's page on low-precision decentralised SGD: what it claims, for lab/papers/README.md."""

from __future__ import annotations

import statistics

from lab.papers.claims import Finding, Interval, Kept, Row, Run, beside_by_seed, judge
from lab.papers.rows_low_precision import FASHION

_FASHION = FASHION._replace(size="CNN, Fashion-MNIST, eight boards, 600 rounds, three seeds; not in the paper")
_CIFAR = Run(
    "papers/bagua",
    "edgegossip study bagua --sweep-file lab/results/pages/papers/bagua.toml --set data.dir=DIR",
    "CNN, CIFAR-10, eight boards, half an epoch, one seed; not in the paper",
)
_LONG = Run(
    "papers/bagua-long",
    "edgegossip study bagua --sweep-file lab/results/pages/papers/bagua-long.toml --set data.dir=DIR",
    "CNN, CIFAR-10, eight boards, ten epochs; not in the paper",
)
_CLAIM = -1.0  # points that "the same" may be behind


def _messages(kept: Kept) -> Finding:
    """How many times fewer bits than float32 real messages of 8 bits have."""
    share = 32 / statistics.fmean(row["bits"] for row in kept.rows(FASHION.data, case="bagua-lp, 8 bits, skew=0.0"))
    text = "bagua-lp: {:.2f} times fewer than float32, heads of frames left out"
    return Finding(judge(Interval(share, 0.0), 3.5, 4.5), text, (share,))


ROWS = (
    Row("Steps 1 to 5", "8 bits a value instead of 32", _messages, _FASHION),
    Row(
        "The claim, Fashion-MNIST",
        "converges as decentralised SGD does: read as at most a point behind",
        beside_by_seed(_FASHION.data, "bagua-lp, 8 bits, skew=0.0", "dpsgd, skew=0.0", _CLAIM),
        _FASHION,
    ),
    Row(
        "The claim, CIFAR-10",
        "the same",
        beside_by_seed(_LONG.data, "bagua-lp, 8 bits, skew=0.0", "dpsgd, fp32, skew=0.0", _CLAIM),
        _LONG,
    ),
    Row(
        "The claim, uneven data",
        "the same, though the page does not speak of uneven data",
        beside_by_seed(_LONG.data, "bagua-lp, 8 bits, skew=0.9", "dpsgd, fp32, skew=0.9", _CLAIM),
        _LONG,
    ),
    Row(
        "The claim, one machine",
        "and as centralised SGD in full precision",
        beside_by_seed("papers/bagua", "bagua-lp, 8 bits, skew=0.0", "one machine", _CLAIM),
        _CIFAR,
    ),
)
