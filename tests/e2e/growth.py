"""Whether something grows, told from samples taken at even times. Pure.

The first quarter is warm-up. The median of the last quarter is held against that of the second, so
neither a spike nor a sample that was missed decides. What grows steadily from the start grows by
half of its whole growth between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

MIN_SAMPLES = 8  # in each of the two quarters
LIMITS: Mapping[str, float] = {  # of one process, between the two medians
    "rss_bytes": 1 << 20,
    "anonymous_bytes": 1 << 20,  # what is the process's own: file pages come and go with the machine's memory
    "threads": 0,
    "descriptors": 1,  # a call of the failure detector may be under way
    "tasks": 1,
}
MEAN_BYTES = 1 << 18  # of all processes on average: noise of one evens out, a leak in the code does not


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one quantity of one process: medians of the second and the last quarter."""

    before: float
    after: float
    limit: float

    @property
    def by(self) -> float:
        return self.after - self.before

    @property
    def grew(self) -> bool:
        return self.by > self.limit


def growth(values: Sequence[float], limit: float) -> Growth:
    """Raises ValueError for too few samples to tell."""
    quarter = len(values) // 4
    if quarter < MIN_SAMPLES:
        raise ValueError(f"{len(values)} samples are too few to tell growth; {4 * MIN_SAMPLES} are needed")
    return Growth(median(values[quarter : 2 * quarter]), median(values[-quarter:]), limit)


def judge(series: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[dict[str, dict[str, Growth]], list[str]]:
    """`series[process][quantity]` to each one's growth, and a sentence for each that grew."""
    found = {p: {q: growth(values, LIMITS[q]) for q, values in rows.items()} for p, rows in series.items()}
    wrong = [
        f"{p}: {q} grew by {g.by:g} ({g.before:g} to {g.after:g}), {g.limit:g} is allowed"
        for p, rows in found.items()
        for q, g in rows.items()
        if g.grew
    ]
    for quantity in ("rss_bytes", "anonymous_bytes"):
        each = [rows[quantity].by for rows in found.values() if quantity in rows]
        if each and sum(each) / len(each) > MEAN_BYTES:
            mean = sum(each) / len(each)
            wrong.append(f"all: {quantity} grew by {mean:.0f} on average, {MEAN_BYTES} is allowed")
    return found, wrong
