"""What a few runs say of what a paper claims: means with 95 % intervals over seeds, and whether the
claim's range holds all of an interval, part of it, or none. A row of lab/papers/README.md is such a
claim, and takes what it says of ours from the JSON of lab/results/pages alone."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pages"
ONE_RUN = 5.0  # points of accuracy that a difference of two single runs may be off: see `apart`
CHANCE = math.inf  # the same where seeds are known to lie further apart: one says nothing

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


# -- rows of the page

TOO_LONG = "It takes more hours than were to be had"
NO_DATA = "Its data are not to be had freely"

Document: TypeAlias = Any


class Kept:
    """Reads the JSON of lab/results/pages, each file once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._read = cache(lambda name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))

    def __call__(self, name: str) -> Document:
        """Return the document NAME.json."""
        return self._read(name)

    def rows(self, name: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows of a document that have these values. Raises KeyError for none."""
        document = self(name)
        every = document if isinstance(document, list) else document["rows"]
        found = [row for row in every if all(row.get(key) == value for key, value in wanted.items())]
        if not found:
            raise KeyError(f"{name}.json has no row with {wanted}")
        return found

    def commits(self, name: str, parts: Sequence[str] = ()) -> str:
        """Return the commits that the results are of, as they were recorded; of these parts of a
        document of several."""
        document = self(name)
        every = document if isinstance(document, list) else [document]
        found = [one or {} for part in every for one in part.get("sources") or [part.get("source")]]
        wanted = [one for one in found if not parts or one["part"] in parts]
        return ", ".join(dict.fromkeys(_commit(one) for one in wanted))


def _commit(source: Mapping[str, Any]) -> str:
    commit = source.get("commit") or "not recorded"
    return f"{commit} with changes" if source.get("dirty") else commit


@dataclass(frozen=True, slots=True)
class Finding:
    """Is what a row says of ours: a sentence whose figures come from JSON, and the verdict they
    give."""

    verdict: Verdict
    template: str
    figures: tuple[float | str, ...] = ()

    def __str__(self) -> str:
        return self.template.format(*self.figures)


Find: TypeAlias = Callable[[Kept], Finding]


class Run(NamedTuple):
    """Says where what is ours comes from."""

    data: str  # the JSON in lab/results/pages, without .json
    command: str
    size: str = ""  # beside the paper's
    parts: tuple[str, ...] = ()  # of the JSON, where it has several; none: all


@dataclass(frozen=True, slots=True)
class Row:
    """Is a table, a figure or a claim of a paper. Without `find` it was not done, and `why` says
    why; without that either there is nothing in it to repeat."""

    figure: str
    paper: str  # what it shows, with the figures that it prints
    find: Find | None = None
    run: Run | None = None
    why: str = ""

    def state(self, kept: Kept) -> str:
        """Return the verdict, "not done", or "nothing to repeat"."""
        if self.find is not None:
            return self.find(kept).verdict
        return "not done" if self.why else "nothing to repeat"

    def of_one_seed(self, kept: Kept) -> bool:
        """Return whether the row agrees or does not by runs of one seed."""
        if self.find is None or self.run is None or self.state(kept) == "cannot be told":
            return False
        return "one seed" in f"{self.find(kept)} {self.run.size}"

    def cells(self, kept: Kept) -> tuple[str, ...]:
        """Return the row's cells."""
        ours, size, source = "", "", ""
        if self.find is not None and self.run is not None:
            ours, size = str(self.find(kept)), self.run.size
            data = f"[{self.run.data}](../results/pages/{self.run.data}.json)"
            source = f"`{self.run.command}`; {data}, commit {kept.commits(self.run.data, self.run.parts)}"
        state = self.state(kept)
        marked = f"**{state}**" if state == "does not agree" else state
        return self.figure, self.paper, ours, ". ".join(filter(None, (marked, self.why))), size, source


COMPUTED = Run("papers/computed", "python -m lab.papers.computed", "computed; the same")


def if_holds(holds: bool) -> Verdict:
    """Return the verdict of what either is so or is not."""
    return "agrees" if holds else "does not agree"


def percent(row: Mapping[str, Any], key: str = "accuracy") -> Sample:
    """Return accuracies of a row of a study, in percent."""
    runs = len(row["seeds"]) - row["failed"]
    return Sample(row[key], row[f"{key}_std"] or 0.0, runs).scaled(100)


def apart(kept: Kept, name: str) -> float:
    """Return how many points two single runs of a study lie apart, nineteen times in twenty, by
    the spread of the seeds within its cases."""
    of = [percent(row) for row in kept.rows(name) if row["accuracy_std"]]
    pooled = sum((one.count - 1) * one.deviation**2 for one in of) / sum(one.count - 1 for one in of)
    return 1.96 * math.sqrt(2 * pooled)


def by_seed(kept: Kept, name: str, case: str, key: str = "accuracy", scale: float = 100.0) -> dict[int, float]:
    """Return accuracies of a study's runs that ended, in percent, from the JSON of `keep`; or
    what else `key` names."""
    of = kept.rows(name, case=case)
    return {row["seed"]: scale * row[key] for row in of if row["accuracy"] is not None}


def compared(a: Sample, b: Sample, least: float = -math.inf, most: float = math.inf, alone: float = ONE_RUN) -> Finding:
    """Return the finding that accuracy `a` lies `least` to `most` points above `b`; `alone` is what
    the difference may be off where either has one run only."""
    count = min(a.count, b.count)
    return _compared(
        a.mean, b.mean, difference(a, b, alone), f"{count} seeds" if count > 1 else "one seed", least, most
    )


def compared_by_seed(
    a: Mapping[int, float],
    b: Mapping[int, float],
    least: float = -math.inf,
    most: float = math.inf,
    alone: float = ONE_RUN,
) -> Finding:
    """Return the finding that accuracies `a` lie `least` to `most` points above `b`, seed by seed;
    what one seed has only is left out. `alone` is as in `compared`."""
    seeds = sorted(set(a) & set(b))
    of_a, of_b = ([of[seed] for seed in seeds] for of in (a, b))
    runs = f"{len(seeds)} seeds in pairs" if len(seeds) > 1 else "one seed"
    return _compared(statistics.fmean(of_a), statistics.fmean(of_b), paired(of_a, of_b, alone), runs, least, most)


def _compared(a: float, b: float, found: Interval, runs: str, least: float, most: float) -> Finding:
    reach = " ± {:.2f}" if math.isfinite(found.reach) else ""
    text = "{:.2f} against {:.2f} %: {:+.2f}" + reach + " points, " + runs
    return Finding(judge(found, least, most), text, (a, b, found.mean, *([found.reach] if reach else [])))


def study(
    name: str, case: str, other: str, least: float = -math.inf, most: float = math.inf, alone: float = ONE_RUN
) -> Find:
    """Compare two cases of a study of lab/results/pages."""

    def find(kept: Kept) -> Finding:
        [a], [b] = kept.rows(name, case=case), kept.rows(name, case=other)
        return compared(percent(a), percent(b), least, most, alone)

    return find


def losses(name: str, case: str, other: str) -> Find:
    """Compare training losses of two cases of a study that `papers.py keep` wrote, seed by seed;
    the claim is that of the first is the smaller. How far single losses may be off nobody has
    measured."""

    def find(kept: Kept) -> Finding:
        a, b = (by_seed(kept, name, of, "train_loss", 1.0) for of in (case, other))
        seeds = sorted(set(a) & set(b))
        of_a, of_b = ([of[seed] for seed in seeds] for of in (a, b))
        found = paired(of_a, of_b)
        runs = f"{len(seeds)} seeds in pairs" if len(seeds) > 1 else "one seed"
        reach = f"{found.mean:+.3f} ± {found.reach:.3f}" if math.isfinite(found.reach) else f"{found.mean:+.3f}"
        text = "training loss {:.3f} against {:.3f}: {}, " + runs
        return Finding(judge(found, most=0.0), text, (statistics.fmean(of_a), statistics.fmean(of_b), reach))

    return find


def beside_by_seed(
    name: str, case: str, other: str, least: float = -math.inf, most: float = math.inf, alone: float = ONE_RUN
) -> Find:
    """Compare two cases of a study that `papers.py keep` wrote, seed by seed: both begin with the
    same model and the same partition."""
    return lambda kept: compared_by_seed(by_seed(kept, name, case), by_seed(kept, name, other), least, most, alone)
