#!/usr/bin/env python3
"""Measure how many bytes dither and deadzone take for an error, beside the papers' codecs.

    python -m lab.papers.gradients GRADIENTS --data DATA_DIR --text FILE
    python -m lab.results.rate_error GRADIENTS [--out lab/results/pages/rate-error.md]

For each gradient and each codec of the papers: its coded bytes and relative error, and the coded
bytes of dither (beside unbiased ones) or deadzone (beside the others) at that error. The unbiased
codecs have their best entropy coder and 2 to 8 bits, with buckets of 512 values, as they come, and
with one bucket a tensor; the best of a gradient is the one that leaves dither the largest share.
Messages are whole: tables, scales, heads.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.sweep.results import Result
from edgegossip.types import Vec
from lab.results import resumable

CTX = codecs.Ctx(key=1, round=0)
BITS = (2, 3, 4, 6, 8)
LEVELS = ("qsgd", "qsgd-inf", "elastiquant")
WHOLE = {"bucket": 0}  # one a tensor
UNBIASED: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {"bits": bits}) for name in LEVELS for bits in BITS),
    *((name, {"bits": bits, **WHOLE}) for name in LEVELS for bits in BITS),
    ("e-elastiquant", {}),
    ("terngrad", {"clip": 0.0}),
    ("randk", {"ratio": 0.5}),
)
BIASED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("co3", {"gamma": 0.0}),
    ("topk", {"ratio": 0.01}),
    ("topk", {"ratio": 0.1}),
)
ERRORS = (0.001, 1.5)  # outside of them nobody would send a gradient


def measured(name: str, params: dict[str, Any], x: Vec, layout: Layout) -> tuple[int, float]:
    """Bytes and relative error of a message."""
    codec = codecs.get(name, **params)
    body, _ = codec.encode(x, codec.init(layout), CTX)
    return memoryview(body).nbytes, codecs.relative_error(x, codec.decode(body, layout))


def at_error(name: str, error: float, x: Vec, layout: Layout) -> int:
    """Bytes of dither or deadzone for this error: of the two measured ones around it."""
    low, high = (measured(name, {"error": error * factor}, x, layout) for factor in (0.98, 1.02))
    if high[1] == low[1]:
        return high[0]
    part = min(max((error - low[1]) / (high[1] - low[1]), -1.0), 2.0)
    return round(low[0] + part * (high[0] - low[0]))


def rows(file: Path) -> list[Result]:
    """One for each codec of the papers."""
    with np.load(file) as data:
        x, sizes, columns = data["x"], np.diff(data["offsets"]).tolist(), data["columns"].tolist()
    shapes = [(n // c, c) if c else (n,) for n, c in zip(sizes, columns, strict=True)]
    layout = Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))
    found: list[Result] = []
    for ours, cases in (("dither", UNBIASED), ("deadzone", BIASED)):
        for name, params in cases:
            size, error = measured(name, params, x, layout)
            if not ERRORS[0] <= error <= ERRORS[1]:
                continue
            mine = at_error(ours, error, x, layout)
            of = ",".join(f"{key}={value}" for key, value in params.items() if key not in ("gamma", "clip"))
            found.append(
                {
                    "gradient": file.stem,
                    "values": x.size,
                    "codec": f"{name}:{of}" if of else name,
                    "error": error,
                    "bits": 8 * size / x.size,
                    "ours": ours,
                    "our_bits": 8 * mine / x.size,
                    "ratio": mine / size,
                }
            )
    return found


def groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    """What stands beside ours -> of each gradient the codec that leaves ours the largest share."""
    kinds: dict[str, list[Result]] = {}
    for _, group in itertools.groupby(results, key=lambda r: str(r["gradient"])):
        each = list(group)
        for whole, buckets in ((False, "buckets of 512"), (True, "one bucket a tensor")):
            of = [r for r in each if r["ours"] == "dither" and ("bucket=0" in r["codec"]) == whole]
            for bits in BITS:
                with_bits = [
                    r for r in of if f"bits={bits}" in r["codec"] or (bits == 4 and r["codec"] == "e-elastiquant")
                ]
                kinds.setdefault(f"the best unbiased codec, {buckets}, {bits} bits", []).extend(_hardest(with_bits))
            usual = [r for r in of if 0.1 <= r["error"] <= 1]
            kinds.setdefault(f"the best unbiased codec, {buckets}, errors from 0.1 to 1", []).extend(_hardest(usual))
        for r in each:
            if r["ours"] == "deadzone":
                kinds.setdefault(f"`{r['codec']}`", []).append(r)
    return kinds


def _hardest(results: Sequence[Result]) -> list[Result]:
    return [max(results, key=lambda r: r["ratio"])] if results else []


def table(results: Sequence[Result]) -> str:
    """Medians over gradients, then each gradient with 4 bits and with biased codecs."""
    found = groups(results)
    lines = resumable.heading("beside, ours, gradients, median error, median of its bytes, smallest, largest")
    for kind, rows_of in found.items():
        if not rows_of:
            continue
        ratios, error = [r["ratio"] for r in rows_of], statistics.median(r["error"] for r in rows_of)
        lines.append(
            f"| {kind} | `{rows_of[0]['ours']}` | {len(rows_of)} | {error:.3g} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} | {max(ratios):.2f} |"
        )
    lines += ["", *resumable.heading("gradient, values, codec, error, bits a value, ours, bits a value, of its bytes")]
    shown = found["the best unbiased codec, buckets of 512, 4 bits"] + [r for r in results if r["ours"] == "deadzone"]
    for r in sorted(shown, key=lambda r: str(r["gradient"])):
        lines.append(
            f"| {r['gradient']} | {r['values']:,} | `{r['codec']}` | {r['error']:.3g} | {r['bits']:.3f} "
            f"| `{r['ours']}` | {r['our_bits']:.4f} | {r['ratio']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes at equal error.")
    parser.add_argument("gradients", type=Path)
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/rate-error.md"))
    options = parser.parse_args()
    results = [row for file in sorted(options.gradients.glob("*.npz")) for row in rows(file)]
    resumable.write_page(options.out, results, table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
