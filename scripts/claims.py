"""What a few runs say of a claim: means with 95 % intervals over seeds, and whether a claim's
range holds all of an interval, part of it, or none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["agrees", "does not agree", "cannot be told"]

# 97.5 % points of Student's t by degrees of freedom; between two of them the one with fewer counts.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
_T |= {12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980}


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds mean, sample standard deviation (0 of one) and number of runs that differ in the seed
    alone.

    Example:
        Sample.of([0.912, 0.915, 0.917])
    """

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Make the sample of these values, one a seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))

    def scaled(self, factor: float) -> Sample:
        """Return the same in another unit, such as percent."""
        return Sample(factor * self.mean, factor * self.deviation, self.count)


@dataclass(frozen=True, slots=True)
class Interval:
    """Is a mean and how far from it the truth may be; infinite when that is not known."""

    mean: float
    reach: float

    @property
    def low(self) -> float:
        """Return the lower end."""
        return self.mean - self.reach

    @property
    def high(self) -> float:
        """Return the upper end."""
        return self.mean + self.reach


def interval(sample: Sample, alone: float = math.inf) -> Interval:
    """Return the 95 % interval of the mean by Student's t; `alone` is what one run may be off."""
    if sample.count == 1:
        return Interval(sample.mean, alone)
    return Interval(sample.mean, _quantile(sample.count - 1) * sample.deviation / math.sqrt(sample.count))


def difference(a: Sample, b: Sample, alone: float = math.inf) -> Interval:
    """Return the 95 % interval of mean a - mean b of independent runs, by Welch's t; `alone` is
    what the difference may be off where either has one run only."""
    if 1 in (a.count, b.count):
        return Interval(a.mean - b.mean, alone)
    parts = [one.deviation**2 / one.count for one in (a, b)]
    total = sum(parts)
    if total == 0:
        return Interval(a.mean - b.mean, 0.0)
    freedom = total**2 / sum(part**2 / (one.count - 1) for part, one in zip(parts, (a, b), strict=True))
    return Interval(a.mean - b.mean, _quantile(freedom) * math.sqrt(total))


def paired(a: Sequence[float], b: Sequence[float], alone: float = math.inf) -> Interval:
    """Return the 95 % interval of the mean of a - b, seed by seed."""
    return interval(Sample.of([x - y for x, y in zip(a, b, strict=True)]), alone)


def judge(found: Interval, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """Say whether a claim of `least` to `most` agrees with what was found: it does when it holds
    all of the interval, and does not when it holds none of it."""
    if least <= found.low and found.high <= most:
        return "agrees"
    return "does not agree" if found.high < least or found.low > most else "cannot be told"


def _quantile(freedom: float) -> float:
    return next(value for known, value in sorted(_T.items(), reverse=True) if known <= freedom + 1e-9)
