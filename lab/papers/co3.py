"""lab/results/pages/papers/co3.json: Figures 1 to 3 of CO3 (Chen, Hernandez, Huang, Rini 2022).

    python -m lab.papers.co3 bias
    python -m lab.papers.co3 cnn --data DIR
    python -m lab.papers.co3 nasnet-mobile --data DIR
    python -m lab.papers.co3 pictures
    python -m lab.results papers-figures

DIR holds CIFAR-10. `bias` computes Figure 1; a model's name trains it by Algorithm 1 with the
product's grid, Table II's rate and batch, and measures Figures 2 and 3 as it goes, after every few
steps: what is there when it is stopped counts. `pictures` draws papers-co3-*.png
of lab/results/pages/images.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip.codecs import co3
from edgegossip.codecs.gennorm_tables import OPTIMA
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import ModelSection
from edgegossip.training.vector import ModelVector
from edgegossip.types import Vec
from lab.papers import gradients, nasnet
from lab.papers import make_gennorm_tables as gennorm
from lab.results.resumable import heading, keep_part

PAGES = Path(__file__).resolve().parents[1] / "results" / "pages"
RESULTS = PAGES / "papers" / "co3.json"
RATE, BATCH, GAMMA = 0.01, 64, 0.9  # the paper's Table II and Figure 3
LAWS = ("normal", "laplace", "gennorm")
LAYERS = ("upper", "middle", "lower")
BETAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
LARGE = 1000  # values; a law fitted to a smaller tensor says little

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """Says how a model is trained, and which of its tensors are shown."""

    steps: int
    every: int
    seeds: tuple[int, ...]
    shown: Mapping[str, str]


# The authors' wasserstein_distance.py has their tensors 95, 326 and 695 as upper, middle and lower,
# so upper is near the images. Of NASNetMobile's 742 these are the next large 1x1 convolutions.
RUNS = {
    "cnn": Run(900, 30, (1, 2, 3), {"upper": "3.weight", "middle": "6.weight", "lower": "10.weight"}),
    "nasnet-mobile": Run(
        240,
        8,
        (1,),
        {
            "upper": "cells.2.squeeze.1.weight",
            "middle": "cells.7.squeeze.1.weight",
            "lower": "cells.15.squeeze.1.weight",
        },
    ),
}


# -- Figure 1


def bias() -> list[Row]:
    """Return for each beta the scale k of the smallest squared error, in units of the law's scale
    alpha and of its deviation sigma; equation 9's polynomial; relative errors with each."""
    optima = {row[0]: row[3] for row in OPTIMA}
    rows: list[Row] = []
    for beta in BETAS:
        b = mp.mpf(repr(beta))
        sigma = float(mp.sqrt(gennorm.moment(b, 2)))  # in alpha
        best, polynomial = optima[beta], _polynomial(beta)
        scales = {"optimum": best, "eq9_alpha": polynomial, "eq9_sigma": polynomial / sigma}
        errors = {f"error_{name}": _error(b, k) for name, k in scales.items()}
        rows.append({"beta": beta, "k_alpha": best, "k_sigma": best * sigma, "eq9": polynomial, **errors})
    return rows


def _polynomial(beta: float) -> float:
    """Equation 9's, also where it is no use."""
    return 0.46 + beta * (-2.85 + beta * (5.37 + beta * (-2.85 + beta * 0.52)))


def _error(beta: Any, k_alpha: float) -> float | None:
    """The relative error of the grid at this k; None where the polynomial gives no scale at all."""
    return math.sqrt(gennorm.error(beta, 1 / mp.mpf(k_alpha))) if k_alpha > 0 else None


# -- Figure 2


def distances(values: Vec) -> Row:
    """Return the 2-Wasserstein distance of the values from the normal, Laplace and generalised
    normal law of the largest likelihood, in the values' deviations, and that law's shape `beta`.

    The values' quantiles stand against those of the law at (i + 1/2) / n: all of them, where the
    authors leave out the smallest and largest of a sample of 3,000."""
    x = np.sort(values.astype(np.float64))
    mean, median, deviation = x.mean(), np.median(x), x.std()
    u = (np.arange(x.size) + 0.5) / x.size
    away = np.abs(x - median).mean()
    side = np.where(u < 0.5, -1.0, 1.0)
    tail = 1 - np.abs(2 * u - 1)
    laws = {
        "normal": mean + deviation * torch.special.ndtri(torch.from_numpy(u)).numpy(),
        "laplace": median - away * side * np.log(tail),
    }
    _, beta, alpha, centre = max(_most_likely(x - c, c) for c in (mean, median))
    laws["gennorm"] = centre + alpha * side * _gennorm_quantile(beta, 1 - tail)
    return {
        **{name: float(np.sqrt(((x - law) ** 2).mean()) / deviation) for name, law in laws.items()},
        "beta": beta,
        "beta_moments": co3.fit(float(np.abs(x).sum()), float((x**2).sum()), x.size).beta,
    }


def _most_likely(x: NDArray[np.float64], centre: float) -> tuple[float, float, float, float]:
    """(mean log-likelihood, beta, alpha, centre) of the generalised normal law around 0: of each
    beta the best alpha is known, and beta is found by golden section from 0.1 to 10."""
    size = np.abs(x)

    def fitted(log_beta: float) -> tuple[float, float, float, float]:
        beta = math.exp(log_beta)
        alpha = float(beta * np.mean(size**beta)) ** (1 / beta)
        return math.log(beta / (2 * alpha)) - math.lgamma(1 / beta) - 1 / beta, beta, alpha, float(centre)

    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(0.1), math.log(10.0)
    for _ in range(24):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if fitted(left) > fitted(right) else (left, high)
    return fitted((low + high) / 2)


def _gennorm_quantile(beta: float, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x| / alpha below which this share of the magnitudes lies: |x / alpha|^beta has the gamma law
    of shape 1 / beta."""
    log_power = torch.linspace(math.log(1e-30), math.log(800.0), 20_000, dtype=torch.float64)
    below = torch.special.gammainc(torch.tensor(1 / beta, dtype=torch.float64), log_power.exp()).numpy()
    return np.exp(np.interp(share, below, log_power.numpy()) / beta)


# -- Figures 2 and 3: Algorithm 1 of one user


def trained(name: str, seed: int, folder: Path) -> Iterator[list[Row]]:
    """Train and yield the rows of each step that is measured: of the shown tensors, at the last
    step of all large ones."""
    run = RUNS[name]
    torch.manual_seed(seed)
    section = ModelSection(nasnet.NAME if name == "nasnet-mobile" else name, norm="batchnorm")
    model, batches = gradients.images("cifar10", folder, section, seed, BATCH)
    layout = ModelVector(model).layout
    size = layout.trainable_size
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = [key for key, p in model.named_parameters() if p.requires_grad]
    ends = np.cumsum([0, *(p.numel() for p in parameters)])
    assert ends[-1] == size
    sent = codecs.get("co3", gamma=0.0)
    tensors = Layout.of(TensorSpec(key, (p.numel(),)) for key, p in zip(names, parameters, strict=True))
    memory, state = np.zeros(size, np.float32), sent.init(tensors)
    where = {tensor: layer for layer, tensor in run.shown.items()}
    for step in range(1, run.steps + 1):
        gradients.gradient(model, batches)
        gradient = gradients.flat(model)
        corrected = gradient + np.float32(GAMMA) * memory
        if step % run.every == 0 or step == 1:
            rows: list[Row] = []
            for k, key in enumerate(names):
                span = slice(ends[k], ends[k + 1])
                last = step + run.every > run.steps and ends[k + 1] - ends[k] >= LARGE
                if (key in where or last) and corrected[span].any():
                    rows.append(
                        {
                            "seed": seed,
                            "step": step,
                            "tensor": key,
                            "layer": where.get(key),
                            "values": int(ends[k + 1] - ends[k]),
                            "l1_gradient": float(np.abs(gradient[span]).sum(dtype=np.float64)),
                            "l1_error": float(np.abs(memory[span]).sum(dtype=np.float64)),
                            **distances(corrected[span]),
                        }
                    )
            yield rows
        body, state = sent.encode(corrected, state, codecs.Ctx(step, step))
        received = sent.decode(body, tensors)
        memory = corrected - received
        with torch.no_grad():
            for k, p in enumerate(parameters):
                p -= RATE * torch.from_numpy(received[ends[k] : ends[k + 1]]).view_as(p)


# -- the document


def _of(document: Any, part: str) -> list[Row]:
    return [row for row in document["rows"] if row["part"] == part]


def bias_table(document: Any) -> str:
    """Return Figure 1 as a table."""
    lines = heading("beta, k alpha, eq. 9's polynomial, k sigma, error, eq. 9 over alpha, eq. 9 over sigma")
    for r in _of(document, "bias"):
        errors = (r[f"error_{name}"] for name in ("optimum", "eq9_alpha", "eq9_sigma"))
        shown = " | ".join("none" if error is None else f"{error:.3f}" for error in errors)
        lines.append(f"| {r['beta']:g} | {r['k_alpha']:.4f} | {r['eq9']:.4f} | {r['k_sigma']:.4f} | {shown} |")
    return "\n".join(lines)


def law_table(document: Any) -> str:
    """Return means of Figure 2 over steps and seeds, and how often the generalised normal law is
    the nearest; then the same of all large tensors at the last measured step."""
    lines = heading("model, tensors, seeds, measured, values, beta, normal, Laplace, GenNorm, GenNorm nearest")
    for name in RUNS:
        of = _of(document, name)
        last = {r["seed"]: r["step"] for r in of}
        groups = {layer: [r for r in of if r["layer"] == layer] for layer in LAYERS}
        groups["all large, at the end"] = [r for r in of if r["values"] >= LARGE and r["step"] == last[r["seed"]]]
        for label, rows in groups.items():
            if not rows:
                continue
            means = " | ".join(f"{statistics.mean(r[law] for r in rows):.4f}" for law in LAWS)
            best = sum(r["gennorm"] == min(r[law] for law in LAWS) for r in rows)
            values = f"{rows[0]['values']:,}" if label in LAYERS else f"{LARGE:,} and more"
            low, high = min(r["beta"] for r in rows), max(r["beta"] for r in rows)
            lines.append(
                f"| {name} | {label} | {len({r['seed'] for r in rows})} | {len(rows)} | {values} | "
                f"{low:.2f} to {high:.2f} | {means} | {best} of {len(rows)} |"
            )
    return "\n".join(lines)


def norm_table(document: Any) -> str:
    """Return Figure 3: what the error is of the gradient, by thirds of the run."""
    lines = heading("model, layer, steps, ||m|| / ||g|| in the first third, second, last, ||g|| first, last")
    for name, run in RUNS.items():
        if not (of := [r for r in _of(document, name) if r["step"] > 1]):
            continue
        steps = max(r["step"] for r in of)
        for layer in LAYERS:
            rows = [r for r in of if r["layer"] == layer]
            thirds = [[r for r in rows if k < 3 * r["step"] / steps <= k + 1] for k in range(3)]
            ratios = (statistics.mean(r["l1_error"] / r["l1_gradient"] for r in third) for third in thirds)
            sizes = (statistics.mean(r["l1_gradient"] for r in third) for third in (thirds[0], thirds[2]))
            shown = " | ".join([f"{value:.3f}" for value in ratios] + [f"{value:.3g}" for value in sizes])
            lines.append(f"| {name} | {layer} ({run.shown[layer]}) | {steps} | {shown} |")
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[Any], str]] = {"bias": bias_table, "laws": law_table, "norms": norm_table}


def pictures() -> None:
    """Draw the three figures, means over seeds."""
    from edgegossip.sweep.plots import Axis, PlotSeries, panels

    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = _of(document, "bias")
    curves = {
        "optimum times alpha": [(r["beta"], r["k_alpha"]) for r in rows],
        "optimum times sigma": [(r["beta"], r["k_sigma"]) for r in rows],
        "the paper's equation 9": [(r["beta"], r["eq9"]) for r in rows],
    }
    series = [PlotSeries("scale of the smallest error", name, "", points) for name, points in curves.items()]
    fig = panels(series, "CO3, Figure 1", PAGES / "images" / "papers-co3-bias.png", Axis("beta"), Axis("k"), "curves")
    print(fig)
    for name in {row["part"] for row in document["rows"]} & set(RUNS):
        shown = {
            "w2": ({law: law for law in LAWS}, "CO3, Figure 2", Axis("W2 distance, in deviations", log=10)),
            "l1": ({"l1_gradient": "gradient", "l1_error": "error"}, "CO3, Figure 3", Axis("L1 norm", log=10)),
        }
        for figure, (keys, title, y) in shown.items():
            series = [
                PlotSeries(f"{layer} layer", label, "", _means(_of(document, name), layer, key))
                for layer in LAYERS
                for key, label in keys.items()
            ]
            path = PAGES / "images" / f"papers-co3-{figure}-{name}.png"
            print(panels(series, f"{title}: {name}", path, Axis("step"), y, "curves"))


def _means(rows: Sequence[Row], layer: str, key: str) -> list[tuple[float, float]]:
    """(step, mean over seeds), without the first step, which has no error yet."""
    of = [r for r in rows if r["layer"] == layer and r["step"] > 1]
    steps = sorted({r["step"] for r in of})
    return [(step, statistics.mean(r[key] for r in of if r["step"] == step)) for step in steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("bias", *RUNS, "pictures"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "bias":
        keep_part(RESULTS, "bias", bias())
    elif options.part == "pictures":
        pictures()
    else:
        rows: list[Row] = []
        for seed in RUNS[options.part].seeds:
            for found in trained(options.part, seed, options.data):
                rows += found
                keep_part(RESULTS, options.part, rows)


if __name__ == "__main__":
    main()
