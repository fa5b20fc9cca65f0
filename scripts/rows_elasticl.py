"""ElastiCL (Sudharsan et al., SenSys 2021): its tables and figures, for docs/papers.md."""

from __future__ import annotations

from dataclasses import replace

from claims import TOO_LONG, Find, Finding, Kept, Row, Run, compared, percent, study

_SCHEDULE = "The runs' levels fell with their learning-rate schedule, so they do not show what ElastiCL does"

_ELASTICL = Run(
    "study-elasticl",
    "edgegossip study elasticl --sweep-file elasticl --set data.dir=DIR",
    "CNN, ten boards, 20,000 images, 200 rounds, one seed; length not in the paper",
)
_FIXED = "fixed bits, bucket=0, bits={}, partition={}"


def _open(find: Find) -> Find:
    """What is found, without a verdict."""
    return lambda kept: replace(find(kept), verdict="cannot be told")


def _bits(case: str, other: str) -> Find:
    """Accuracy and bits a value beside each other."""

    def find(kept: Kept) -> Finding:
        [a], [b] = kept.rows("study-elasticl", case=case), kept.rows("study-elasticl", case=other)
        found = compared(percent(a), percent(b))
        text = found.template + "; {:.2f} against {:.2f} bits a value"
        return Finding(found.verdict, text, (*found.figures, a["bits_per_value"], b["bits_per_value"]))

    return find


ROWS = (
    Row("Table 1", "what the symbols are called"),
    Row("Figure 1 a, b", "ResNet-18: a loss of 0.036 in 0.297 GB, with 2 bits in 1.78 GB", why=TOO_LONG),
    Row(
        "Figure 1 c",
        "CNN: slightly behind 4 bits",
        _open(study("study-elasticl", "elasticl, partition=iid", _FIXED.format(4, "iid"))),
        _ELASTICL,
        why=_SCHEDULE,
    ),
    Row(
        "Figure 1, caption",
        "CNN, sorted labels: the lowest error floor of all, 0.027",
        _open(study("study-elasticl", "elasticl, partition=sorted", _FIXED.format(4, "sorted"))),
        _ELASTICL,
        why=_SCHEDULE,
    ),
    Row(
        "Section 3, CNN",
        "83.76 %, and 83.15 % with 16 bits, in fewer bits",
        _open(_bits("elasticl, partition=iid", _FIXED.format(16, "iid"))),
        _ELASTICL,
        why=_SCHEDULE,
    ),
    Row("Section 3, ResNet-18", "71.46 %, and 72.19 % with 16 bits", why=TOO_LONG),
)
