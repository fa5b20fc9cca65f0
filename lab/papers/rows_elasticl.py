"""ElastiCL (Sudharsan et al., SenSys 2021): its tables and figures, for lab/papers/README.md."""

from __future__ import annotations

import statistics

from lab.papers.claims import CHANCE, ONE_RUN, TOO_LONG, Find, Finding, Kept, Row, Run, beside_by_seed, losses

_ELASTICL = Run(
    "papers/elasticl",
    "edgegossip study elasticl --sweep-file elasticl --set data.dir=DIR",
    "CNN, ten boards, 60 rounds of ten steps; length not in the paper",
)
_OURS, _FIXED, _SORTED = "elasticl, s0=4", "fixed bits, bucket=0, bits={}", ", partition=sorted"


def _with_bits(case: str, other: str, least: float, alone: float = ONE_RUN) -> Find:
    """Accuracy and bits a value beside each other."""

    def find(kept: Kept) -> Finding:
        found = beside_by_seed(_ELASTICL.data, case, other, least, alone=alone)(kept)
        bits = [statistics.fmean(row["bits"] for row in kept.rows(_ELASTICL.data, case=of)) for of in (case, other)]
        return Finding(found.verdict, found.template + "; {:.2f} against {:.2f} bits a value", (*found.figures, *bits))

    return find


ROWS = (
    Row("Table 1", "what the symbols are called"),
    Row("Figure 1 a, b", "ResNet-18: a loss of 0.036 in 0.297 GB, with 2 bits in 1.78 GB", why=TOO_LONG),
    Row(
        "Figure 1 c",
        "CNN: slightly behind 4 bits; read as at most two points behind, or ahead, in accuracy after as many rounds",
        _with_bits(_OURS, _FIXED.format(4), -2.0),
        _ELASTICL,
    ),
    Row(
        "Figure 1, caption",
        "CNN, sorted labels: the lowest error floor of all, 0.027; here a smaller loss than 4 bits alone",
        losses(_ELASTICL.data, _OURS + _SORTED, _FIXED.format(4) + _SORTED),
        _ELASTICL,
        why="2, 8 and 16 bits were not run on sorted labels",
    ),
    Row(
        "Figure 1, caption",
        "the same by test accuracy, which the paper does not print there",
        _with_bits(_OURS + _SORTED, _FIXED.format(4) + _SORTED, 0.0, CHANCE),
        _ELASTICL,
        why="One seed of sorted labels tells nothing; 2, 8 and 16 bits were not run on them",
    ),
    Row(
        "Section 3, CNN",
        "83.76 %, and 83.15 % with 16 bits, in fewer bits: read as at most a point behind",
        _with_bits(_OURS, _FIXED.format(16), -1.0),
        _ELASTICL,
    ),
    Row("Section 3, ResNet-18", "71.46 %, and 72.19 % with 16 bits", why=TOO_LONG),
)
