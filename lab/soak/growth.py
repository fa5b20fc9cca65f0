"""Whether something grows, told from samples taken at even times. Pure.

The first quarter is warm-up. Of the rest, the second half is held against the first: of memory the
least, as garbage comes and goes; of what is counted the upper quartile, as some of it goes with
each peer that is away; and of descriptors the most, as each kill changes how many a neighbour
holds, by who of the two reached the other first. What grows steadily from the start grows by three
eighths of its whole growth between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MIN_SAMPLES = 32
LIMITS: Mapping[str, float] = {  # of one process, between the two
    "rss_bytes": 1 << 20,
    "anonymous_bytes": 1 << 20,  # what is the process's own: file pages come and go with the machine's memory
    "threads": 1,  # a pool may grow when it is first needed
    "descriptors": 3,  # calls of the failure detector may be under way
    "tasks": 1,
}
MEAN_BYTES = 1 << 18  # of all processes on average: noise of one evens out, a leak in the code does not


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one quantity of one process: its least, its upper quartile or its most, in the two halves
    after the warm-up."""

    before: float
    after: float
    limit: float

    @property
    def by(self) -> float:
        return self.after - self.before

    @property
    def grew(self) -> bool:
        return self.by > self.limit


def growth(values: Sequence[float], limit: float, level: Callable[[Sequence[float]], float] = min) -> Growth:
    """Raises ValueError for too few samples to tell."""
    if len(values) < MIN_SAMPLES:
        raise ValueError(f"{len(values)} samples are too few to tell growth; {MIN_SAMPLES} are needed")
    half = len(values) * 5 // 8
    return Growth(level(values[len(values) // 4 : half]), level(values[half:]), limit)


def upper_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 3 // 4]


def judge(
    series: Mapping[str, Mapping[str, Sequence[float]]], scattered_bytes: float = 0.0
) -> tuple[dict[str, dict[str, Growth]], list[str]]:
    """`series[process][quantity]` to each one's growth, and a sentence for each that grew.
    `scattered_bytes`: by so much more a heap may be scattered."""
    limits = {q: limit + scattered_bytes * q.endswith("bytes") for q, limit in LIMITS.items()}
    levels = {q: min if q.endswith("bytes") else upper_quartile for q in LIMITS} | {"descriptors": max}
    found = {p: {q: growth(values, limits[q], levels[q]) for q, values in rows.items()} for p, rows in series.items()}
    wrong = [
        f"{p}: {q} grew by {g.by:g} ({g.before:g} to {g.after:g}), {g.limit:g} is allowed"
        for p, rows in found.items()
        for q, g in rows.items()
        if g.grew
    ]
    for quantity in ("rss_bytes", "anonymous_bytes"):
        each = [rows[quantity].by for rows in found.values() if quantity in rows]
        if each and (mean := sum(each) / len(each)) > (limit := MEAN_BYTES + scattered_bytes):
            wrong.append(f"all: {quantity} grew by {mean:.0f} on average, {limit:.0f} is allowed")
    return found, wrong
