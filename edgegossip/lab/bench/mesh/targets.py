"""The figures that a release has to reach, and the check of rows against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One line: a field of certain rows and its bound."""

    text: str
    of: Callable[[Row], bool]
    field: str
    bound: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a line came to: the worst row's figure. `holds` None: no row that it speaks of was
    measured."""

    text: str
    bound: float
    at_least: bool
    figure: float | None
    holds: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _case(case: str, nodes: int | None = None) -> Callable[[Row], bool]:
    return lambda row: row["case"] == case and nodes in (None, row["nodes"])


TARGETS = (
    Target("8 MB frames, rate to bare gRPC's", _case("throughput"), "ratio_to_grpc", 0.85, at_least=True),
    Target("64 KiB frames, latency to bare gRPC's", _case("latency"), "ratio_to_grpc", 2.5),
    Target("ring of 8, frames of 1 MB, round to bare gRPC's", _case("ring", 8), "ratio_to_grpc", 2.5),
    Target("18 idle nodes, percent of a core together", _case("idle", 18), "cpu_percent", 5.0),
    # glibc keeps what was freed: a node that keeps nothing still moves by some hundred KiB either
    # way
    Target(
        "growth of a node over 1,000 rounds, bytes", lambda r: (r["rounds"] or 0) >= 1000, "rss_growth_bytes", 2 << 20
    ),
)


def lines(targets: Sequence[Target] = TARGETS) -> tuple[str, ...]:
    """Each target in words, for `--help`."""
    return tuple(f"{'at least' if t.at_least else 'at most'} {t.bound:,.10g}: {t.text}" for t in targets)


def check(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> tuple[Verdict, ...]:
    """Every line with the worst figure among its rows."""
    return tuple(_check(target, rows) for target in targets)


def _check(target: Target, rows: Sequence[Row]) -> Verdict:
    figures = [row[target.field] for row in rows if target.of(row) and row[target.field] is not None]
    if not figures:
        return Verdict(target.text, target.bound, target.at_least, None, None)
    worst = min(figures) if target.at_least else max(figures)
    holds = worst >= target.bound if target.at_least else worst <= target.bound
    return Verdict(target.text, target.bound, target.at_least, worst, holds)
