"""Sums up a scalability run: the row of a cell from the records of its run, the table, as
ElastiQuant's Table 3 has it, a sentence on each scheme, and plots.

Seconds are those of an epoch: the mean over the counted rounds and over the boards, times the
rounds that an epoch has. T is the sum of compute (Cp), encode (En), transmit (Tx), decode and
wait; evaluations and what boards write down ("other") are none of it. Tx is the time in which a
board has frames on the way that are not acknowledged; wait is what comes after that, and before
it the time until the slowest board has computed.
Beside the means stand the parts of the board that waits least: what holds it up is what holds up
the run, and the others wait for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from edgegossip.report.plots import require_matplotlib
from edgegossip.report.style import Figures
from edgegossip.report.units import UNKNOWN, bytes_text
from edgegossip.scale.cells import WARM_UP, Cell
from edgegossip.scale.devices import SHORT_STEP, SHORT_STEP_S
from edgegossip.telemetry.records import MetricsRecord
from edgegossip.untrusted import printable

PARTS = {"cp_s": "compute", "en_s": "encode", "tx_s": "transmit", "de_s": "decode", "wait_s": "wait"}
Row: TypeAlias = Mapping[str, Any]
# What makes seconds of an epoch, by the keys of PARTS, of one board's records.
PartsOf: TypeAlias = Callable[[Cell, Sequence[MetricsRecord]], dict[str, float]]


def parts_of(cell: Cell, records: Sequence[MetricsRecord]) -> dict[str, float]:
    """Return the seconds of an epoch as one board's counted rounds have them."""
    return {key: cell.epoch_rounds * (_mean(records, f"time/{part}_s") or 0.0) for key, part in PARTS.items()}


def row_of_records(
    cell: Cell,
    records: Iterable[MetricsRecord],
    boards: Sequence[str],
    first: int = WARM_UP,
    parts_of: PartsOf = parts_of,
) -> tuple[dict[str, Any], list[list[float | None]]]:
    """Return the row of a cell, without what compares it with others, and its curve.

    The curve has [seconds, bytes sent by all, training loss] a round; null for a loss or bits
    that nobody has told.

    Args:
        cell: whose run it was.
        records: of all boards; those of others are passed over.
        boards: the names of those that took part.
        first: the round from which on they count.
        parts_of: what makes the parts of a board's counted rounds.

    Raises:
        ValueError: when a board has told nothing of a counted round, or not all of its parts, or
            when they took no time.
    """
    rounds = cell.recipe.run.rounds
    by_round: dict[int, dict[str, MetricsRecord]] = {}
    for record in records:
        if record.node in boards and all(record.number(f"time/{part}_s") is not None for part in PARTS.values()):
            by_round.setdefault(record.step, {})[record.node] = record
    for step in range(first, rounds):
        if missing := [name for name in boards if name not in by_round.get(step, {})]:
            raise ValueError(f"round {step} was not finished by {', '.join(missing)}")
    counted = [record for step in range(first, rounds) for record in by_round[step].values()]
    own = {name: parts_of(cell, [r for r in counted if r.node == name]) for name in boards}
    row: dict[str, Any] = {key: sum(parts[key] for parts in own.values()) / len(own) for key in PARTS}
    row["t_s"] = sum(row.values())
    if row["t_s"] <= 0.0:
        raise ValueError(f"its rounds took {row['t_s']:g} s")
    row["slowest"] = slowest(own)
    row["cpu_s"] = _times(cell.epoch_rounds, _mean(counted, "time/cpu_s"))
    every = [record for of_round in by_round.values() for record in of_round.values()]  # receipts may come a round late
    sums = {name: sum(r.number(f"net/{name}_bytes") or 0.0 for r in every) for name in ("payload", "overhead", "link")}
    row["round_bytes"] = {name: total / rounds for name, total in sums.items()}  # of all boards
    row["bits_per_value"] = _mean(counted, "codec/bits_per_value")
    row["loss"] = _mean(list(by_round[rounds - 1].values()), "train/loss")
    row["counted_rounds"] = rounds - first
    return row, _curve(by_round, first, rounds)


def slowest(parts: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the parts of the board that waits least, of those the one that computes longest,
    and its name as `node`. `parts`: of each board, by the keys of PARTS."""
    node = min(parts, key=lambda name: (parts[name]["wait_s"], -parts[name]["cp_s"] - parts[name]["en_s"]))
    return {"node": node, **parts[node]}


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _curve(by_round: Mapping[int, Mapping[str, MetricsRecord]], first: int, rounds: int) -> list[list[float | None]]:
    """A round's loss is that of the model with which it begins."""
    points: list[list[float | None]] = []
    seconds, sent = 0.0, 0.0
    for step in range(first, rounds):
        records = list(by_round[step].values())
        points.append([seconds, sent, _mean(records, "train/loss")])
        seconds += sum(_mean(records, f"time/{part}_s") or 0.0 for part in PARTS.values())
        sent += sum(r.number("net/payload_bytes") or 0.0 for r in records)
        sent += sum(r.number("net/overhead_bytes") or 0.0 for r in records)
    return points


def _mean(records: Sequence[MetricsRecord], name: str) -> float | None:
    values = [value for r in records if (value := r.number(name)) is not None]
    return sum(values) / len(values) if values else None


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows with `sp_s`, `speedup` and `efficiency`, which need the rows of the same
    scheme on other counts.

    `sp_s` is the paper's Sp: T here less T on the next smaller count, negative when boards were
    worth adding. `speedup` and `efficiency` are against the smallest count of all that were run:
    T(k0)/T(k), and that by k/k0. Null where there is nothing to compare with."""
    done = [dict(row) | {"sp_s": None, "speedup": None, "efficiency": None} for row in rows]
    fewest = min((row["devices"] for row in done if row["t_s"] is not None), default=0)
    for scheme in dict.fromkeys(row["scheme"] for row in done):
        own = sorted((r for r in done if r["scheme"] == scheme and r["t_s"] is not None), key=lambda r: r["devices"])
        for k, row in enumerate(own):
            row["sp_s"] = row["t_s"] - own[k - 1]["t_s"] if k else None
            if own[0]["devices"] == fewest:
                row["speedup"] = own[0]["t_s"] / row["t_s"]
                row["efficiency"] = row["speedup"] * fewest / row["devices"]
    return done


def spread_of(seconds: Sequence[float]) -> float:
    """Return the standard deviation by the mean, as the median deviation from the median gives
    it (Rousseeuw, Croux 1993: by 1.4826 of a normal law), which a single interruption does not
    change."""
    middle = statistics.median(seconds)
    return round(min(0.99, 1.4826 * statistics.median([abs(s - middle) for s in seconds]) / middle), 4)


KEYS = (
    "scheme", "devices", "on", "cp_s", "en_s", "tx_s", "de_s", "wait_s", "t_s", "sp_s", "efficiency", "accuracy",
)  # fmt: skip
_HEAD = ("scheme", "boards", "Cp", "En", "Tx", "De", "wait", "T", "Sp", "speed-up", "efficiency", "bits", "sent/round")
_MORE = 0.5  # of T: that part is what holds a run up
_UNEVEN = 0.2  # of T: boards that wait so much longer than one of them wait for that one
_WORTH = 0.95  # another scheme is named when it needs less of the time than this


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return what the table shows, the head first."""
    return [_HEAD, *map(_cells, rows)]


def notes(rows: Sequence[Row], epoch: str) -> list[str]:
    """Say what the columns are, and which cells are doubtful."""
    said = [
        f"seconds of an epoch ({epoch}); T = Cp + En + Tx + De + wait; Sp: T less T on fewer boards, v: faster, ^: slower",
        "speed-up and efficiency: against the smallest count that was run; bits: a value; sent/round: payload, overhead of all",
    ]
    if any(row["on"] == "model" for row in rows):
        said.append("modelled: a virtual clock from rates of device profiles; frames are really encoded")
    if short := [r["step_s"] for r in rows if r.get("step_s") and r["step_s"] < SHORT_STEP_S]:
        said.append(f"boards' steps take {1000 * min(short):.2g} ms by their profile; {SHORT_STEP}")
    if more := [100 * (b["link"] / (b["payload"] + b["overhead"]) - 1) for r in rows if (b := r.get("round_bytes"))]:
        least, most = f"{min(more):.0f}", f"{max(more):.0f}"
        by = least if least == most else f"{least} to {most}"
        said.append(f"on the link are headers of TCP, IP and Ethernet, too: {by} % of what is sent")
    return said


def _cells(row: Row) -> tuple[str, ...]:
    if row["t_s"] is None:
        return (printable(row["scheme"], 60), str(row["devices"]), "failed", *[UNKNOWN] * (len(_HEAD) - 3))
    parts = [_seconds(row[key]) for key in ("cp_s", "en_s", "tx_s", "de_s", "wait_s", "t_s")]
    sp = row.get("sp_s")
    arrow = "" if sp is None else " v" if sp < 0 else " ^"
    return (
        printable(row["scheme"], 60),
        str(row["devices"]),
        *parts,
        UNKNOWN if sp is None else f"{sp:+.2f}{arrow}",
        *(UNKNOWN if row[key] is None else f"{row[key]:.2f}" for key in ("speedup", "efficiency")),
        UNKNOWN if row["bits_per_value"] is None else f"{row['bits_per_value']:.2f}",
        bytes_text(row["round_bytes"]["payload"] + row["round_bytes"]["overhead"]),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 0.9995 else f"{seconds:.2f}"


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Say of each scheme, in a sentence, how far it scales, what holds it up on its most boards,
    and what would be faster there."""
    done = [row for row in rows if row["t_s"] is not None]
    schemes = dict.fromkeys(row["scheme"] for row in done)
    return [_verdict(scheme, done) + _failed([r for r in rows if r["scheme"] == scheme]) for scheme in schemes]


def _verdict(scheme: str, rows: Sequence[Row]) -> str:
    own = sorted((row for row in rows if row["scheme"] == scheme), key=lambda row: int(row["devices"]))
    last = own[-1]
    at = f"at {last['devices']} boards"
    scales = f"{scheme}{_scaling(own)}" if len(own) > 1 else f"{scheme}: {last['t_s']:.2f} s {at}"
    return f"{scales}; {_bound(last)} {at}{_cure(last, rows)}"


def _scaling(own: Sequence[Row]) -> str:
    """Of rows of one scheme, the fewest boards first."""
    best, first, last = min(own, key=lambda row: float(row["t_s"])), own[0], own[-1]
    if best is not last:
        return f" stops scaling at {best['devices']} boards and is {_ratio(last, best)} slower at {last['devices']}"
    by = f"({_ratio(first, last)} {first['devices']})"
    for fewer, more in pairwise(own):
        if more["t_s"] >= fewer["t_s"]:
            slower = f"slower at {more['devices']} than at {fewer['devices']}"
            return f" is fastest at {last['devices']} boards {by}, but {slower}"
    return f" gets faster all the way to {last['devices']} boards {by}"


def _failed(own: Sequence[Row]) -> str:
    counts = [str(row["devices"]) for row in own if row["t_s"] is None]
    return f"; failed at {', '.join(counts)}" if counts else ""


def _bound(row: Row) -> str:
    """What the board is busy with that the others wait for."""
    last = row.get("slowest") or row
    seconds = {
        "link": last["tx_s"] + last["wait_s"],
        "compute": last["cp_s"],
        "codec": last["en_s"] + last["de_s"],
    }
    whole = sum(seconds.values())  # the board's own: of a few rounds it is not quite the mean of all boards
    shares = {name: part / whole for name, part in seconds.items()}
    most = max(shares, key=lambda name: shares[name])
    word = f"{most}-bound" if shares[most] >= _MORE else f"mostly {most}-bound"
    uneven = "node" in last and row["wait_s"] - last["wait_s"] > _UNEVEN * row["t_s"]
    waited = f" on {printable(last['node'], 40)}, for which the others wait," if uneven else ""
    return f"{word} ({100 * shares[most]:.0f} % of T){waited}"


def _cure(row: Row, rows: Sequence[Row]) -> str:
    """The scheme that would be the fastest on as many boards, computing as this one does: what is
    computed is the same in all schemes, and where it took longer in one cell the machine was
    busy. The ratio of the rest is told beside it: what both share hides most of a difference."""
    others = [r for r in rows if r["devices"] == row["devices"] and r["scheme"] != row["scheme"]]
    seconds = {r["scheme"]: row["cp_s"] + r["t_s"] - r["cp_s"] for r in others}
    better = min(seconds, key=lambda scheme: float(seconds[scheme]), default=None)
    if better is None or seconds[better] >= _WORTH * row["t_s"]:
        return ""
    said = f": {better} would give {row['t_s'] / seconds[better]:.2f} times the speed"
    rest_s = seconds[better] - row["cp_s"]
    return f"{said}, {(row['t_s'] - row['cp_s']) / rest_s:.2f} times without Cp" if rest_s > 0.0 else said


def _ratio(row: Row, other: Row) -> str:
    return f"{row['t_s'] / other['t_s']:.2f} times"


_GANTT = (
    ("start", "computed", "compute"), ("computed", "ready", "encode"), ("ready", "go", "wait"), ("go", "done", "transmit"),
)  # fmt: skip


def write_plots(
    folder: Path, name: str, rows: Sequence[Row], results: Sequence[Row], figures: Figures = Figures()
) -> list[Path]:
    """Draw time.png, speedup.png, loss.png and round.png into `folder`, or what
    `figures` says; those without data are left out. `name`: of the recipe; `results`: of the cells
    that did not fail. Raises HostError without matplotlib."""
    require_matplotlib()
    from edgegossip.sweep import plots

    done = [row for row in rows if row["t_s"] is not None]
    what = f"{name}, {'modelled' if done[0]['on'] == 'model' else done[0]['on']}"
    by_scheme = {
        scheme: [r for r in done if r["scheme"] == scheme] for scheme in dict.fromkeys(r["scheme"] for r in done)
    }
    bars = {
        scheme: [(str(row["devices"]), {part: row[key] for key, part in PARTS.items()}) for row in own]
        for scheme, own in by_scheme.items()
    }
    title = f"{what}: where the seconds of an epoch go"
    written = [
        plots.stacked_bars(bars, figures.title(title), figures.path(folder, "time"), "boards", "seconds an epoch")
    ]
    faster = {
        scheme: [
            (row["devices"], row["speedup"])
            for row in sorted(own, key=lambda row: int(row["devices"]))
            if row["speedup"] is not None  # without the smallest count there is none
        ]
        for scheme, own in by_scheme.items()
    }
    counts = sorted({int(row["devices"]) for row in done})
    written.append(plots.speedups(faster, counts, figures.title(f"{what}: speed-up"), figures.path(folder, "speedup")))
    if long := [result for result in results if len(result.get("curve", ())) > 1]:  # more than one round to see
        most = max(result["devices"] for result in long)
        curves = [(result["scheme"], result["curve"]) for result in long if result["devices"] == most]
        written.append(
            plots.losses(curves, figures.title(f"{what}: training loss on {most} boards"), figures.path(folder, "loss"))
        )
    largest = max(row["devices"] for row in done)
    shown = sorted((r for r in results if r["devices"] == largest), key=lambda r: -float(r["row"]["t_s"]))
    ends = [
        (f"{r['scheme']} on {r['devices']} boards", r) for r in (shown if len(shown) < 2 else [shown[0], shown[-1]])
    ]
    if rounds := [(words, _timeline(result["marks"])) for words, result in ends if result.get("marks")]:
        written.append(plots.timelines(rounds, figures.title(f"{what}: one round"), figures.path(folder, "round")))
    return written


def _timeline(marks: Sequence[Row]) -> dict[str, list[tuple[float, float, str]]]:
    """Bars of each board, in seconds from the moment at which the first one begins to compute."""
    begin = min(mark["start"] for mark in marks)
    return {
        str(mark["node"]): [
            (1e-9 * (mark[since] - begin), 1e-9 * (mark[until] - mark[since]), part) for since, until, part in _GANTT
        ]
        for mark in sorted(marks, key=lambda mark: str(mark["node"]))
    }
