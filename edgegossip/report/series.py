"""Records as columns of numbers, and what long ones need before they can be drawn: means,
smoothing. numpy only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgegossip.telemetry.records import EVALUATED, MetricsRecord, scores_in
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.types import NodeId

Numbers = NDArray[np.float64]  # missing values are nan

COLUMNS = ("train/loss", "eval/loss", "net/sent_bytes", "time/round_s")  # and a column a score


@dataclass(frozen=True, slots=True)
class Series:
    """Holds one node's records in the order of its rounds; all arrays float64[records]."""

    step: Numbers
    t_s: Numbers
    columns: Mapping[str, Numbers]


@dataclass(frozen=True, slots=True)
class Curves:
    """Holds a fleet's records on one axis of rounds. Arrays float64[rounds] or float64[boards,
    rounds]; nan where nothing is."""

    steps: Numbers
    t_s: Numbers  # seconds of training at the end of the round, see _time_axis
    sent_bytes: Numbers  # by all boards up to and with that round
    values: Mapping[str, Numbers]  # name -> [boards, rounds]


class SeriesReader:
    """Collects records as they pass by, keeping 8 bytes a number: ten thousand rounds of 18 boards
    are some megabytes."""

    def __init__(self) -> None:
        self._raw: dict[NodeId, dict[str, array[float]]] = {}

    def watch(self, records: Iterable[MetricsRecord]) -> Iterator[MetricsRecord]:
        """Yield the same records; each is collected on its way."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: MetricsRecord) -> None:
        """Collect one record."""
        columns = self._raw.get(record.node)
        if columns is None:
            columns = self._raw[record.node] = {name: array("d") for name in ("step", "t_s", *COLUMNS)}
        for score in scores_in(record.values):
            if (name := f"{EVALUATED}{score}") not in columns:
                columns[name] = array("d", [math.nan]) * len(columns["step"])
        for name, column in columns.items():
            value = record.step if name == "step" else record.t_s if name == "t_s" else record.number(name)
            column.append(math.nan if value is None else value)

    def series(self) -> dict[NodeId, Series]:
        """Return what has been collected so far, by node."""
        return {node: _series(columns) for node, columns in self._raw.items()}


def _series(columns: Mapping[str, array[float]]) -> Series:
    arrays = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    order = np.argsort(arrays["step"], kind="stable")
    ordered = {name: a[order] for name, a in arrays.items()}
    ordered["net/sent_bytes"] = _spread_out(ordered["net/sent_bytes"], ordered["time/round_s"])
    return Series(ordered.pop("step"), ordered.pop("t_s"), ordered)


def _spread_out(counts: Numbers, seconds: Numbers) -> Numbers:
    """Share out each count among the rounds since the one before it; nan after the last one. A
    record without seconds, where others have some, is of no round."""
    is_round = np.isfinite(seconds) | np.isfinite(counts) | ~np.isfinite(seconds).any()
    known = np.flatnonzero(np.isfinite(counts[is_round]))
    among = np.diff(known, prepend=-1)
    shares = np.full(int(is_round.sum()), np.nan)
    shares[: int(among.sum())] = np.repeat(counts[is_round][known] / among, among)
    out = counts.copy()
    out[is_round] = shares
    return out


def align(series: Mapping[NodeId, Series]) -> Curves:
    """Put all nodes on the sorted rounds that any of them has. A round that a node did twice counts
    its last values and the bytes of both. Seconds and bytes are the boards': what a coordinator
    sends is what they receive."""
    steps = np.unique(np.concatenate([s.step for s in series.values()])) if series else np.empty(0)
    names = sorted({name for s in series.values() for name in s.columns})
    at = {node: np.searchsorted(steps, s.step) for node, s in series.items()}

    def matrix(name: str) -> Numbers:
        out = np.full((len(series), steps.size), np.nan)
        for row, (node, s) in enumerate(series.items()):
            if name in s.columns:
                known = np.isfinite(s.columns[name])  # an evaluation may have a record of its own
                out[row, at[node][known]] = s.columns[name][known]
        return out

    boards = {node: s for node, s in series.items() if node != COORDINATOR} or series
    sent_bytes = np.zeros(steps.size)
    for node, s in boards.items():
        np.add.at(sent_bytes, at[node], np.nan_to_num(s.columns["net/sent_bytes"]))
    values = {name: matrix(name) for name in names}
    return Curves(steps, _time_axis(boards, at, steps.size), np.cumsum(sent_bytes), values)


def _time_axis(series: Mapping[NodeId, Series], at: Mapping[NodeId, NDArray[np.intp]], rounds: int) -> Numbers:
    """Seconds of training at the end of each round, float64[rounds], never falling: the mean over
    the nodes there.

    Each node has its own clock, and what a program needs to start up is not training, so a node
    counts from where its first round began. One that joined later counts on from where the others
    were at the end of its first round.
    """
    axis = np.full((len(series), rounds), np.nan)
    for late in (False, True):
        others = np.fmax.accumulate(column_mean(axis))
        for row, (node, s) in enumerate(series.items()):
            first = at[node][0]
            if (first > 0) == late:
                lasted_s = s.columns["time/round_s"][0] if "time/round_s" in s.columns else math.nan
                joined_s = others[first] if late else lasted_s
                axis[row, at[node]] = s.t_s - s.t_s[0] + (joined_s if np.isfinite(joined_s) else 0.0)
    return np.fmax.accumulate(column_mean(axis))


def column_mean(matrix: Numbers) -> Numbers:
    """Return the mean of each column over what is not nan, float64[columns]; nan where nothing is.
    No warnings."""
    there = np.isfinite(matrix)
    count = there.sum(axis=0)
    total = np.where(there, matrix, 0.0).sum(axis=0)
    mean: Numbers = np.divide(total, count, out=np.full(matrix.shape[1], np.nan), where=count > 0)
    return mean


def column_range(matrix: Numbers) -> tuple[Numbers, Numbers]:
    """Return the least and greatest of each column, float64[columns] each; nan where nothing is."""
    there = np.isfinite(matrix)
    low = np.where(there, matrix, np.inf).min(axis=0, initial=np.inf)
    high = np.where(there, matrix, -np.inf).max(axis=0, initial=-np.inf)
    some = there.any(axis=0)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)


def smooth(y: Numbers, window: int) -> Numbers:
    """Return the centred moving mean over `window` points (shorter at the ends), nan passed over;
    same length. window 1 changes nothing."""
    if window <= 1 or y.size == 0:
        return y.copy()
    there = np.isfinite(y)
    total = np.concatenate([[0.0], np.cumsum(np.where(there, y, 0.0))])
    count = np.concatenate([[0], np.cumsum(there)])
    index = np.arange(y.size)
    low, high = np.maximum(index - window // 2, 0), np.minimum(index + (window + 1) // 2, y.size)
    n = count[high] - count[low]
    mean: Numbers = np.divide(total[high] - total[low], n, out=np.full(y.size, np.nan), where=n > 0)
    return mean
