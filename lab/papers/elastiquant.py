"""lab/results/pages/papers/elastiquant.json: variances of ElastiQuant (Sudharsan et al., SAC 2022).

    python -m lab.papers.elastiquant bounds
    python -m lab.papers.elastiquant SCHEME... --data DIR
    python -m lab.papers.elastiquant pictures
    python -m lab.results papers-figures

DIR holds CIFAR-10. `bounds` computes section 3.6.2. A SCHEME (fp32, qsgd, qsgd-v,
4-bit-elastiquant, 8-bit-elastiquant) trains ResNet-20 on virtual boards that send each other their
gradients, and the variance of what they send (Figures 1 e-f and 2 d) is measured as it goes; what
is there when it is stopped counts. On fp32's way all schemes encode the same gradients too.
`pictures` draws papers-elastiquant-*.png of lab/results/pages/images.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgegossip import codecs
from edgegossip.codecs.levels import geometric_levels, variance_bound, worst_case_variance
from edgegossip.layout import Layout
from edgegossip.recipe import ModelSection
from edgegossip.training.vector import ModelVector
from lab.papers import gradients
from lab.results.resumable import heading, keep_part

PAGES = Path(__file__).resolve().parents[1] / "results" / "pages"
RESULTS = PAGES / "papers" / "elastiquant.json"
TRAINED = ("fp32", "qsgd", "qsgd-v", "4-bit-elastiquant", "8-bit-elastiquant")
SCHEMES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fp32": ("fp32", {}),
    "qsgd": ("qsgd", {"bits": 4}),
    "qsgd-v": ("qsgd-inf", {"bits": 4}),
    "4-bit-elastiquant": ("4-bit-elastiquant", {}),
    "e-elastiquant": ("e-elastiquant", {}),
    "8-bit-elastiquant": ("8-bit-elastiquant", {}),
    "terngrad": ("terngrad", {}),
}
BOARDS, BATCH, STEPS, EVERY = 6, 16, 100, 5
RATE, MOMENTUM, DROP = 0.05, 0.9, 70  # Nesterov's, on the decoded mean; a tenth of the rate from DROP on
SEED = 1
LEVELS, DIMENSION = (2, 3, 4, 5, 6, 7, 8), 10_000  # the paper's first setup
DIMENSIONS, LEVEL = (100, 1_000, 10_000, 100_000, 1_000_000), 6  # and its second
RATIOS = tuple(k / 100 for k in range(2, 100, 2))

Row = dict[str, Any]


# -- section 3.6.2


def bounds() -> list[Row]:
    """Return the worst case over p in both setups: the largest variance that a vector can have, and
    the paper's displayed sum at its largest over counts."""
    rows: list[Row] = []
    setups = [("s", s, DIMENSION) for s in LEVELS] + [("d", LEVEL, d) for d in DIMENSIONS]
    for setup, s, d in setups:
        for p in RATIOS:
            levels = geometric_levels(s, p)
            rows.append({"setup": setup, "s": s, "d": d, "p": p, "worst": worst_case_variance(levels, d)})
            rows[-1]["displayed"] = displayed_bound(levels, d)
    return rows


def displayed_bound(levels: Sequence[float] | np.ndarray, d: int) -> float:
    """Return the largest value of section 3.6.1's sum, over counts d_j that add up to d.

    Each term h_j is concave in its count, so the dual is tight: min over m of m d + sum_j
    max (h_j - m d_j), whose maxima lie at a kink or where tau (1 / (2 sqrt(d_j)) - l_j) = m."""
    grid = np.asarray(levels, np.float64)
    low, width = grid[:-1], np.diff(grid)

    def term(count: np.ndarray) -> np.ndarray:
        return np.minimum(width**2 * count / 4, width * (np.sqrt(count) - low * count))

    kink = np.minimum(1 / (width / 4 + low) ** 2, d)  # where both terms of the minimum are equal

    def dual(m: float) -> float:
        steep = np.minimum(1 / (2 * (m / width + low)) ** 2, d)
        best = np.maximum(0.0, np.maximum(term(kink) - m * kink, term(steep) - m * steep))
        best = np.maximum(best, term(np.full_like(low, d)) - m * d)
        return m * d + float(best.sum())

    left, right = 0.0, 1.0
    for _ in range(100):
        a, b = left + (right - left) / 3, right - (right - left) / 3
        left, right = (left, b) if dual(a) < dual(b) else (a, right)
    return dual((left + right) / 2)


# -- Figures 1 e-f and 2 d


def trained(name: str, folder: Path) -> Iterator[list[Row]]:
    """Train and yield the rows of each step that is measured, one a scheme that encoded.

    `square` is the mean over boards of ||g||^2; `sampling` the variance of a board's g about
    that of all data, from the boards' spread; `quantisation` is E||Q(g) - g||^2: both divided by
    `square`. The variance of what a board sends is their sum, as its rounding is independent."""
    torch.manual_seed(SEED)
    model, batches = gradients.images("cifar10", folder, ModelSection("resnet20", norm="batchnorm"), SEED, BATCH)
    parameters = list(model.parameters())
    layout = Layout.of(ModelVector(model).layout.tensors[: len(parameters)])
    coded = {key: codecs.get(codec, **params) for key, (codec, params) in SCHEMES.items()}
    states = {key: codec.init(layout) for key, codec in coded.items()}
    velocity = np.zeros(layout.size, np.float32)
    for step in range(1, STEPS + 1):
        mine, sent, losses = [], [], []
        for board in range(BOARDS):
            losses.append(gradients.gradient(model, batches))
            mine.append(gradients.flat(model))
            body, states[name] = coded[name].encode(mine[-1], states[name], codecs.Ctx(step * BOARDS + board, step))
            sent.append((memoryview(body).nbytes, coded[name].decode(body, layout)))
        if step % EVERY == 0 or step == 1:
            square = statistics.mean(float(g.astype(np.float64) @ g) for g in mine)
            middle = np.mean(mine, 0)
            spread = sum(float(((g - middle) ** 2).sum(dtype=np.float64)) for g in mine) / (BOARDS - 1)
            rows: list[Row] = []
            for key in SCHEMES if name == "fp32" else (name,):
                messages = (
                    sent
                    if key == name
                    else [
                        (memoryview(body).nbytes, coded[key].decode(body, layout))
                        for board, g in enumerate(mine)
                        for body, _ in [coded[key].encode(g, states[key], codecs.Ctx(step * BOARDS + board, step))]
                    ]
                )
                errors = [float(((y - g) ** 2).sum(dtype=np.float64)) for g, (_, y) in zip(mine, messages, strict=True)]
                rows.append(
                    {
                        "scheme": key,
                        "seed": SEED,
                        "step": step,
                        "loss": statistics.mean(losses),
                        "square": square,
                        "sampling": spread / square,
                        "quantisation": statistics.mean(errors) / square,
                        "bits": 8 * statistics.mean(size for size, _ in messages) / layout.size,
                    }
                )
            yield rows
        mean = np.mean([y for _, y in sent], 0)
        velocity = np.float32(MOMENTUM) * velocity + mean
        change = (RATE if step < DROP else RATE / 10) * (mean + np.float32(MOMENTUM) * velocity)
        with torch.no_grad():
            for p, part in zip(
                parameters, np.split(change, np.cumsum([p.numel() for p in parameters])[:-1]), strict=True
            ):
                p -= torch.from_numpy(part).view_as(p)


# -- the document


def _of(document: Any, part: str) -> list[Row]:
    return [row for row in document["rows"] if row["part"] == part]


def bound_table(document: Any) -> str:
    """Return the p of the smallest worst case in each setup, and that of the displayed sum."""
    lines = heading("s, d, best p, worst case there, at p = 1/2, best p of the displayed sum, that sum there")
    rows = _of(document, "bounds")
    for setup in ("s", "d"):
        for s, d in dict.fromkeys((r["s"], r["d"]) for r in rows if r["setup"] == setup):
            of = [r for r in rows if r["setup"] == setup and (r["s"], r["d"]) == (s, d)]
            best, sums = (min(of, key=lambda r, k=key: r[k]) for key in ("worst", "displayed"))
            half = next(r for r in of if r["p"] == 0.5)
            lines.append(
                f"| {s} | {d:,} | {best['p']:.2f} | {best['worst']:.3f} | {half['worst']:.3f} | {sums['p']:.2f} | "
                f"{sums['displayed']:.3f} |"
            )
    return "\n".join(lines)


def way_table(document: Any) -> str:
    """Return what each scheme comes to on its own way, before and after the drop of the rate."""
    lines = heading(
        "scheme, steps, loss at the end, variance before the drop, after, of that quantisation, bits a value"
    )
    for name in TRAINED:
        rows = [r for r in _of(document, name) if r["scheme"] == name]
        if rows:
            lines.append(f"| {name} | {rows[-1]['step']} | {_shown(rows)} |")
    return "\n".join(lines)


def _shown(rows: Sequence[Row]) -> str:
    halves = [[r for r in rows if 1 < r["step"] < DROP], [r for r in rows if r["step"] >= DROP]]
    total = (statistics.mean(r["sampling"] + r["quantisation"] for r in half) if half else math.nan for half in halves)
    parts = (statistics.mean(r[key] for r in rows) for key in ("quantisation", "bits"))
    loss = statistics.mean(r["loss"] for r in rows[-3:])
    shown = [f"{loss:.3f}", *(f"{value:.3f}" for value in total), *(f"{value:.4f}" for value in parts)]
    return " | ".join(shown)


def same_table(document: Any) -> str:
    """Return the quantisation's variance on the same gradients, beside the bounds for buckets of
    512."""
    lines = heading("scheme, mean normalised variance, smallest, largest, bound, bits a value")
    rows = _of(document, "fp32")
    for name in SCHEMES:
        found = [r["quantisation"] for r in rows if r["scheme"] == name]
        limit = {"4-bit-elastiquant": variance_bound(6, 512), "8-bit-elastiquant": variance_bound(126, 512, 0.9)}
        limit["e-elastiquant"] = limit["4-bit-elastiquant"]
        bits = statistics.mean(r["bits"] for r in rows if r["scheme"] == name)
        bound = f"{limit[name]:.4f}" if name in limit else ""
        lines.append(
            f"| {name} | {statistics.mean(found):.4f} | {min(found):.4f} | {max(found):.4f} | {bound} | {bits:.2f} |"
        )
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[Any], str]] = {"bounds": bound_table, "ways": way_table, "same": same_table}


def pictures() -> None:
    """Draw variance by step, of each scheme alone and of all on the same gradients, and 3.6.2."""
    from edgegossip.sweep.plots import Axis, PlotSeries, panels

    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    images = PAGES / "images"
    ways = [
        PlotSeries("each scheme's own way", name, "", [(r["step"], r["sampling"] + r["quantisation"]) for r in rows])
        for name in TRAINED
        if (rows := [r for r in _of(document, name) if r["scheme"] == name and r["step"] > 1])
    ]
    same = [
        PlotSeries("quantisation alone, same gradients", name, "", [(r["step"], r["quantisation"]) for r in rows])
        for name in SCHEMES
        if name != "fp32" and (rows := [r for r in _of(document, "fp32") if r["scheme"] == name and r["step"] > 1])
    ]
    y = Axis("mean normalised variance", log=10)
    print(
        panels(
            ways + same,
            "ElastiQuant, Figures 1 e and 2 d: ResNet-20, CIFAR-10",
            images / "papers-elastiquant-variance.png",
            Axis("iteration"),
            y,
            "curves",
        )
    )
    titles = {"s": f"d = {DIMENSION:,}", "d": f"s = {LEVEL}"}
    worst = [
        PlotSeries(
            titles[setup], f"s = {s}" if setup == "s" else f"d = {d:,}", "", [(r["p"], r["worst"]) for r in rows]
        )
        for setup in titles
        for s, d in dict.fromkeys((r["s"], r["d"]) for r in _of(document, "bounds") if r["setup"] == setup)
        if (rows := [r for r in _of(document, "bounds") if r["setup"] == setup and (r["s"], r["d"]) == (s, d)])
    ]
    print(
        panels(
            worst,
            "ElastiQuant, section 3.6.2",
            images / "papers-elastiquant-worst-case.png",
            Axis("ratio p of levels"),
            Axis("worst-case variance", log=10),
            "lines",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("bounds", *TRAINED, "pictures"), metavar="PART")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.parts:
        if part == "bounds":
            keep_part(RESULTS, part, bounds())
        elif part == "pictures":
            pictures()
        else:
            rows: list[Row] = []
            for found in trained(part, options.data):
                rows += found
                keep_part(RESULTS, part, rows)


if __name__ == "__main__":
    main()
