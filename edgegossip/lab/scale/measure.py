"""The row of one cell from the records of its run. Pure.

Seconds are those of an epoch: the mean over the counted rounds and over the boards, times the
rounds that an epoch has. T is the sum of compute (Cp), encode (En), transmit (Tx), decode and wait;
evaluations and what boards write down ("other") are none of it. Tx is the time in which a board has
frames on the way that are not acknowledged; wait is what comes after that, and before it the time
until the slowest board has computed. Where all begin to send at the same moment (`barriers`), what
comes after that is Tx as well, until the last board has what it needs (`late`): then a board waits
while frames of the round are on the link, its own or others'. Beside the means stand the parts of
the board that waits least: what holds it up is what holds up the run, and the others wait for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgegossip.lab.scale.cells import WARM_UP, Cell
from edgegossip.telemetry.lines import MetricsRecord
from edgegossip.types import NodeId, Round

PARTS = {"cp_s": "compute", "en_s": "encode", "tx_s": "transmit", "de_s": "decode", "wait_s": "wait"}
Row = dict[str, Any]
Barriers = Mapping[tuple[NodeId, Round], float]  # seconds of a board in a round


def of_records(
    cell: Cell,
    records: Iterable[MetricsRecord],
    boards: Sequence[str],
    first: int = WARM_UP,
    barriers: Barriers | None = None,
    late: Barriers | None = None,
) -> tuple[Row, list[list[float | None]]]:
    """The row without what compares it with others, and the curve: [seconds, bytes sent by all,
    training loss] a round; null for a loss or bits that nobody has told. Raises ValueError when a
    board has told nothing of a counted round, or not all of its parts, or when they took no time.
    `first`: round from which on they count. `barriers`: what a board waited before all began to
    send; `late`: from its own end of a round to the last board's."""
    rounds = cell.recipe.run.rounds
    by_round: dict[int, dict[str, MetricsRecord]] = {}
    for record in records:
        if record.node in boards and all(record.number(f"time/{part}_s") is not None for part in PARTS.values()):
            by_round.setdefault(record.step, {})[record.node] = record
    for step in range(first, rounds):
        if missing := [name for name in boards if name not in by_round.get(step, {})]:
            raise ValueError(f"round {step} was not finished by {', '.join(missing)}")
    counted = [record for step in range(first, rounds) for record in by_round[step].values()]
    own = {name: _parts(cell, [r for r in counted if r.node == name], barriers, late or {}) for name in boards}
    row: Row = {key: sum(parts[key] for parts in own.values()) / len(own) for key in PARTS}
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


def _parts(cell: Cell, records: Sequence[MetricsRecord], barriers: Barriers | None, late: Barriers) -> dict[str, float]:
    """One board's, seconds of an epoch. A board that is through before others are waits for them in
    its next round: that is the link's in the round before, of the last counted round too, and no
    part of the first one."""
    parts = {key: cell.epoch_rounds * (_mean(records, f"time/{part}_s") or 0.0) for key, part in PARTS.items()}
    if barriers is None:
        return parts
    at_barrier = [min(barriers.get((r.node, r.step), 0.0), r.number("time/wait_s") or 0.0) for r in records]
    for_others = [min(s, late.get((r.node, r.step - 1), 0.0)) for s, r in zip(at_barrier, records, strict=True)]
    first, last = (pick(range(len(records)), key=lambda k: records[k].step) for pick in (min, max))
    outside_s = late.get((records[last].node, records[last].step), 0.0) - for_others[first]
    each = cell.epoch_rounds / len(records)
    wait_s = each * (sum(at_barrier) - sum(for_others))
    return parts | {"tx_s": parts["tx_s"] + parts["wait_s"] - wait_s + each * outside_s, "wait_s": wait_s}


def slowest(parts: Mapping[str, Mapping[str, float]]) -> Row:
    """The parts of the board that waits least, of those the one that computes longest, and its name
    as `node`. `parts`: of each board, by the keys of PARTS."""
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


def compare(rows: Sequence[Row]) -> list[Row]:
    """With `sp_s`, `speedup` and `efficiency`, which need the rows of the same scheme on other
    counts. `sp_s` is the paper's Sp: T here less T on the next smaller count, negative when boards
    were worth adding. `speedup` and `efficiency` are against the smallest count of all that were
    run: T(k0)/T(k), and that by k/k0. Null where there is nothing to compare with."""
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
    """Standard deviation by the mean, as the median deviation from the median gives it (Rousseeuw,
    Croux 1993: by 1.4826 of a normal law), which a single interruption does not change."""
    middle = statistics.median(seconds)
    return round(min(0.99, 1.4826 * statistics.median([abs(s - middle) for s in seconds]) / middle), 4)
