"""The command behind `edgegossip bench server`: rounds through a coordinator, ours and stock
Flower's in the same run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.lab.bench import averaging, server_show
from edgegossip.lab.bench.sizes import parse_size
from edgegossip.telemetry.environment import environment
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError, HostError

Print = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as given."""

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


def run(asked: Asked, arguments: Sequence[str], out: Print) -> tuple[Row, int]:
    """Measure. Rows go to `out` as lines when they are there. The document and the exit code."""
    require_flower()
    if asked.save is not None:
        asked.save.mkdir(parents=True, exist_ok=True)
    document: Row = {
        "machine": environment(arguments),
        "command": shlex.join(["edgegossip", *arguments]),
        "codec": asked.codec,
        "tensors": asked.tensors,
        "rows": [],
        "averaging": [],
    }
    out(server_show.heading())
    for payload in asked.payloads:
        for nodes in asked.nodes:
            row = measure(asked, nodes, parse_size(payload))
            document["rows"].append(row)
            out(server_show.line(row))
    for codec in asked.averaged if asked.updates else ():
        row = averaging.measure(asked.updates, codec, 3)
        document["averaging"].append(row)
        out(server_show.averaging_line(row))
    code = EXIT_OK
    if asked.check:
        document["checks"] = check(document)
        for verdict in document["checks"]:
            out(server_show.verdict_line(verdict))
        held = [verdict["holds"] for verdict in document["checks"]]
        code = EXIT_OK if False not in held and True in held else EXIT_RUN
    if asked.save is not None:
        (asked.save / "server.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (asked.save / "server.md").write_text(server_show.markdown(document), encoding="utf-8")
    return document, code


def require_flower() -> None:
    """Raises HostError when Flower is not installed."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise HostError("bench server needs Flower: pip install 'edgegossip[server]'")


def measure(asked: Asked, nodes: int, values: int) -> Row:
    """One row: our coordinator, then stock Flower with the same boards and model. Raises
    RunError."""
    from edgegossip.lab.bench.server_fleets import Load, run_ours, run_stock

    if asked.rounds < 2 or asked.stock_rounds < 2:
        raise ConfigError("--rounds and --stock-rounds: the first round is not timed, so at least 2 are needed")
    ours = run_ours(Load(nodes, values, asked.tensors, asked.rounds, asked.codec))
    stock = run_stock(Load(nodes, values, asked.tensors, asked.stock_rounds)) if asked.stock else None
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


def check(document: Row) -> list[Row]:
    """The figures that a release has to reach, on two idle cores."""
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
