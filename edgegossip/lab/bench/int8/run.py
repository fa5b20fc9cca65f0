"""The command behind `edgegossip bench int8`: rows as they come, and the document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgegossip import native
from edgegossip.lab.bench.int8 import inference, memory, parts, variants
from edgegossip.lab.bench.timing import in_turn
from edgegossip.telemetry.environment import environment
from edgegossip.training.model import MICRO_BATCH

Row = dict[str, Any]
Print = Callable[[str], None]

_SECONDS_A_ROUND = 3.0  # at least, of all variants together

_HEAD = (
    "model       batch  threads  dw  isa          int8 ms  batchnorm ms  evonorm ms  speed-up  vs evonorm   saved MB  (fp32)"
    "   peak MB  (fp32)  low: peak MB       ms"
)
NOTES = (
    "ms: forward, backward and update, medians in turn; batchnorm, evonorm: torch fp32, channels last",
    "saved: what autograd keeps for the backward pass; peak: resident memory of two steps above the process with its model",
    f"low: training.memory = low, {MICRO_BATCH} examples at a time",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, as given."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    dws: tuple[int, ...]
    repeat: int
    save: Path | None
    inference: bool = False  # predictions, not training steps


def run(asked: Asked, arguments: Sequence[str], out: Print) -> dict[str, Any]:
    """Measure. Rows go to `out` as lines when they are there. Raises ConfigError for an unknown
    model."""
    for name in asked.models:
        variants.section_of(name)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "command": shlex.join(["edgegossip", *arguments]),
        "repeat": asked.repeat,
        "rows": [],
    }
    out(inference.HEAD if asked.inference else _HEAD)
    before = torch.get_num_threads()
    try:
        for threads in asked.threads:
            torch.set_num_threads(threads)
            for name in asked.models:
                for batch in asked.batches:
                    for row, text in _rows(asked, name, batch, threads):
                        document["rows"].append(row)
                        out(text)
    finally:
        torch.set_num_threads(before)
    for note in inference.NOTES if asked.inference else NOTES:
        out(note)
    if asked.save is not None:
        asked.save.mkdir(parents=True, exist_ok=True)
        (asked.save / ("int8-inference.json" if asked.inference else "int8.json")).write_text(
            json.dumps(document, indent=1) + "\n", encoding="utf-8"
        )
    return document


def _rows(asked: Asked, model: str, batch: int, threads: int) -> Iterator[tuple[Row, str]]:
    if asked.inference:
        row = inference.measure(model, batch, threads, asked.repeat)
        yield row, inference.line(row)
        return
    for row in measure(model, batch, threads, asked.dws, asked.repeat):
        yield row, line(row)


def measure(model: str, batch: int, threads: int, dws: Sequence[int], repeat: int) -> list[Row]:
    """One row a dw; all steps are timed in turn, so that whatever else the machine does meets all
    of them."""
    trainings = {
        f"{variant} {dw}": variants.training_of(variant, model, batch, dw)
        for dw in dws
        for variant in ("int8", variants.LOW)
    }
    rivals = {name: variants.training_of(name, model, batch, 16) for name in ("batchnorm", "evonorm-s0")}
    steps = variants.steps({**trainings, **rivals})
    at_least_s = _SECONDS_A_ROUND * repeat  # of short steps more, so that a busy second does not decide
    seconds = in_turn(steps, repeat, slow=("evonorm-s0",), at_least_s=at_least_s, slow_budget_s=60.0).medians()
    fp32_saved = variants.saved_bytes(rivals["batchnorm"])
    fp32_peak = memory.peak_bytes("batchnorm", model, batch, threads, 16)
    largest = parts.largest_rate(threads)
    rows = []
    for dw in dws:
        ours = trainings[f"int8 {dw}"]
        own, batchnorm, evonorm = (seconds[name] for name in (f"int8 {dw}", "batchnorm", "evonorm-s0"))
        shares, rate = parts.breakdown(ours, min(repeat, 3))
        rows.append(
            {
                "model": model,
                "batch": batch,
                "threads": threads,
                "dw": dw,
                "isa": native.isa(),
                "step_ms": 1e3 * own,
                "fp32_batchnorm_ms": 1e3 * batchnorm,
                "fp32_evonorm_ms": 1e3 * evonorm,
                "speedup_vs_batchnorm": batchnorm / own,
                "speedup_vs_evonorm": evonorm / own,
                "saved_bytes": variants.saved_bytes(ours),
                "fp32_saved_bytes": fp32_saved,
                "peak_bytes": memory.peak_bytes("int8", model, batch, threads, dw),
                "fp32_peak_bytes": fp32_peak,
                "low_peak_bytes": memory.peak_bytes(variants.LOW, model, batch, threads, dw),
                "low_step_ms": 1e3 * seconds[f"{variants.LOW} {dw}"],
                "parts_ms": shares,
                "products_g_s": rate,
                "largest_products_g_s": largest,
            }
        )
    return rows


def line(row: Row) -> str:
    """One row, and below it where its time goes."""
    mb = {key: "-" if row[key] is None else f"{row[key] / 1e6:.1f}" for key in row if key.endswith("_bytes")}
    first = (
        f"{row['model']:<11} {row['batch']:>5}  {row['threads']:>7}  {row['dw']:>2}  {row['isa']:<11}  {row['step_ms']:>7.1f}"
        f"  {row['fp32_batchnorm_ms']:>12.1f}  {row['fp32_evonorm_ms']:>10.1f}  {row['speedup_vs_batchnorm']:>8.2f}"
        f"  {row['speedup_vs_evonorm']:>10.2f}  {mb['saved_bytes']:>9}  {mb['fp32_saved_bytes']:>6}  {mb['peak_bytes']:>8}"
        f"  {mb['fp32_peak_bytes']:>6}  {mb['low_peak_bytes']:>12}  {row['low_step_ms']:>7.1f}"
    )
    share = row["products_g_s"] / row["largest_products_g_s"]
    where = ", ".join(f"{name} {ms:.1f}" for name, ms in row["parts_ms"].items())
    rate = f"{row['products_g_s']:.1f} G products/s in convolutions, {share:.0%} of one large convolution's"
    return f"{first}\n    ms: {where}; {rate}"
