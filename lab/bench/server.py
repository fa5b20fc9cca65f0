"""The command behind `python -m lab.bench server`: rounds through a coordinator, ours and stock
Flower's in the same run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.engine.combine import Mean, WeightedUpdate
from edgegossip.engine.server_frames import Channel
from edgegossip.frame import Aux, Kind
from edgegossip.recipe import from_dict
from edgegossip.telemetry.machine import environment
from edgegossip.training import layout_of
from edgegossip.types import EXIT_OK, ConfigError, HostError, RunError
from lab.bench.cases import parse_codec, parse_size
from lab.bench.stock_app import average_plain, plain_updates
from lab.bench.tables import exit_code, machine_line, page, verdict_word, write_document
from lab.bench.timing import in_turn

Print = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the options of the command as they were given."""

    nodes: tuple[int, ...]
    payloads: tuple[str, ...]
    codec: str
    tensors: int
    rounds: int
    stock_rounds: int
    stock: bool
    updates: int  # that are averaged; 0: not measured
    averaged: tuple[str, ...]  # codecs
    check: bool
    save: Path | None


def run(options: Options, arguments: Sequence[str], out: Print) -> tuple[Row, int]:
    """Measure. Rows go to `out` as lines when they are there. The document and the exit code."""
    require_flower()
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
    document: Row = {
        "machine": environment(arguments),
        "command": shlex.join(["python", "-m", "lab.bench", *arguments]),
        "codec": options.codec,
        "tensors": options.tensors,
        "rows": [],
        "averaging": [],
    }
    out(heading())
    for payload in options.payloads:
        for nodes in options.nodes:
            row = measure(options, nodes, parse_size(payload))
            document["rows"].append(row)
            out(line(row))
    for codec in options.averaged if options.updates else ():
        row = measure_averaging(options.updates, codec, 3)
        document["averaging"].append(row)
        out(averaging_line(row))
    code = EXIT_OK
    if options.check:
        document["checks"] = verdicts_on(document)
        for verdict in document["checks"]:
            out(verdict_line(verdict))
        code = exit_code([verdict["holds"] for verdict in document["checks"]])
    if options.save is not None:
        write_document(options.save, "server", document, markdown(document))
    return document, code


def require_flower() -> None:
    """Raise HostError unless Flower is installed."""
    if find_spec("flwr") is None:
        raise HostError("bench server needs Flower: pip install flwr==1.41.0")


def measure(options: Options, nodes: int, values: int) -> Row:
    """Return one row: our coordinator, then stock Flower with the same boards and model. Raises
    RunError."""
    from lab.bench.server_fleets import Load, run_ours, run_stock

    if options.rounds < 2 or options.stock_rounds < 2:
        raise ConfigError("--rounds and --stock-rounds: the first round is not timed, so at least 2 are needed")
    ours = run_ours(Load(nodes, values, options.tensors, options.rounds, options.codec))
    stock = run_stock(Load(nodes, values, options.tensors, options.stock_rounds)) if options.stock else None
    return {
        "nodes": nodes,
        "payload_bytes": 4 * values,
        "seconds_per_round": ours.seconds_per_round,
        "stock_seconds_per_round": stock.seconds_per_round if stock else None,
        "ratio": stock.seconds_per_round / ours.seconds_per_round if stock else None,
        "cpu_s": ours.cpu_s,
        "stock_cpu_s": stock.cpu_s if stock else None,
        "client_rss_bytes": ours.client_rss_bytes,
        "stock_client_rss_bytes": stock.client_rss_bytes if stock else None,
    }


_LINES: tuple[tuple[str, int, int, str, float, bool], ...] = (
    # text, nodes, payload, field, bound, at least
    ("2 boards, 1 MB: stock to ours", 2, 1_000_000, "ratio", 12.0, True),
    ("2 boards, 0.1 MB: seconds a round", 2, 100_000, "seconds_per_round", 0.5, False),
    ("2 boards, 45 MB: stock to ours", 2, 45_000_000, "ratio", 3.0, True),
    ("18 boards, 1 MB: seconds a round", 18, 1_000_000, "seconds_per_round", 3.0, False),
)


def verdicts_on(document: Row) -> list[Row]:
    """Compare with the figures that a release has to reach on two idle cores."""
    verdicts = []
    for text, nodes, payload, name, bound, at_least in _LINES:
        found = [
            r[name]
            for r in document["rows"]
            if (r["nodes"], r["payload_bytes"]) == (nodes, payload) and r[name] is not None
        ]
        verdicts.append(_verdict(text, found, bound, at_least))
    shares = [
        r["client_rss_bytes"] / r["stock_client_rss_bytes"] for r in document["rows"] if r["stock_client_rss_bytes"]
    ]
    verdicts.append(_verdict("a board's memory to the stock one's", shares, 0.5, False))
    averaged = [r["ratio"] for r in document["averaging"] if r["updates"] >= 18 and r["codec"] != "fp32"]
    verdicts.append(
        _verdict("18 compressed ResNet-18 updates: Flower's averaging of fp32 to ours", averaged, 1.0, True)
    )
    return verdicts


def _verdict(text: str, found: Sequence[float], bound: float, at_least: bool) -> Row:
    worst = (min(found) if at_least else max(found)) if found else None
    holds = None if worst is None else (worst >= bound if at_least else worst <= bound)
    return {"text": text, "figure": worst, "bound": bound, "at_least": at_least, "holds": holds}


_COLUMNS = (
    ("boards", 6),
    ("MB", 6),
    ("s/round", 8),
    ("stock", 8),
    ("ratio", 6),
    ("CPU s", 6),
    ("stock", 6),
    ("MB/board", 8),
    ("stock", 6),
)
NOTES = (
    "s/round: median wall time of a round without the first; CPU s: of all processes together, a round",
    "stock: flower-superlink, flower-supernode and FedAvg with the same boards and model, right after ours",
    "MB/board: the largest resident memory of a board with all processes that it starts",
)


def heading() -> str:
    """Return the head of the columns."""
    return "  ".join(head.rjust(width) for head, width in _COLUMNS)


def line(row: Row) -> str:
    """Return one row under the heading."""
    return "  ".join(text.rjust(width) for text, (_, width) in zip(_cells(row), _COLUMNS, strict=True))


def averaging_line(row: Row) -> str:
    """Return what averaging took, in words."""
    return (
        f"averaging {row['updates']} updates of {row['values']} values: {row['codec']} decoded and averaged in "
        f"{row['seconds']:.3f} s, Flower's fp32 in {row['flower_fp32_seconds']:.3f} s, ratio {row['ratio']:.1f}"
    )


def verdict_line(verdict: Row) -> str:
    """Return one line of --check."""
    sign = ">=" if verdict["at_least"] else "<="
    figure = "-" if verdict["figure"] is None else f"{verdict['figure']:.2f}"
    return f"{verdict_word(verdict['holds'])}  {figure:>8} {sign} {verdict['bound']:<5g}  {verdict['text']}"


def markdown(document: Row) -> str:
    """Return the document as lab/results/pages keeps it."""
    return page(
        "Rounds through a coordinator",
        machine_line(document["machine"]),
        document["command"],
        NOTES,
        [head for head, _ in _COLUMNS],
        [_cells(row) for row in document["rows"]],
        behind=[averaging_line(row) for row in document["averaging"]],
        verdicts=[verdict_line(verdict) for verdict in document.get("checks") or ()],
    )


def _cells(row: Row) -> list[str]:
    return [
        str(row["nodes"]),
        f"{row['payload_bytes'] / 1e6:g}",
        _number(row["seconds_per_round"], 2),
        _number(row["stock_seconds_per_round"], 2),
        _number(row["ratio"], 1),
        _number(row["cpu_s"], 2),
        _number(row["stock_cpu_s"], 2),
        _number(row["client_rss_bytes"] / 1e6, 0),
        _number(None if row["stock_client_rss_bytes"] is None else row["stock_client_rss_bytes"] / 1e6, 0),
    ]


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


AVERAGED_MODEL = {"data": {"name": "cifar10"}, "model": {"name": "resnet18"}}


def measure_averaging(updates: int, codec_text: str, repeat: int) -> dict[str, Any]:
    """Measure one row of ResNet-18 (11 M values, the tensors of CIFAR-10's) on one thread of ours;
    Flower's is numpy's own."""
    layout = layout_of(from_dict(AVERAGED_MODEL))
    name, params = parse_codec(codec_text)
    channel = Channel.of(layout, bytes(16), codecs.get(name, **params))
    rng = np.random.default_rng(1)
    x = rng.standard_normal(layout.size).astype(np.float32)
    delta = (0.01 * rng.standard_normal(layout.size)).astype(np.float32)
    state, shares = channel.codec.init(layout), []
    for k in range(updates):
        aux: dict[int, float] = {Aux.EXAMPLES: 100.0 + k, Aux.LOSS: 1.0}
        frame, state = channel.frame(Kind.UPDATE, delta, state, Ctx(k, 0, 1.0, 0.1), 1, aux)
        shares.append(WeightedUpdate(f"board-{k:02}", frame, 100.0 + k))
    mean = Mean(channel)
    if mean.combine(0, x, shares).model is None:
        raise RunError(f"{codec_text}: no update could be decoded")
    theirs = plain_updates(layout.views(x + delta), [100.0 + k for k in range(updates)])
    work = {"ours": lambda: mean.combine(0, x, shares), "flower": lambda: average_plain(theirs)}
    times = in_turn(work, repeat, slow_budget_s=30.0).medians()
    return {
        "updates": updates,
        "values": layout.size,
        "codec": codec_text,
        "seconds": times["ours"],
        "flower_fp32_seconds": times["flower"],
        "ratio": times["flower"] / times["ours"],
    }
