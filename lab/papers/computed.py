"""lab/results/pages/papers/computed.json: what the papers say that takes no training to check.

    python -m lab.papers.computed
    python -m lab.results papers

Sizes of models and of what they send (CO3, Figure 4; low precision, Table 1), gaps of graphs (low
precision, section 4.1), how uneven a degree of skew is (its Figures 2 and 5 to 7), ElastiQuant's
length bound beside real streams (equation 3), and its convergence bounds beside runs on functions
whose constants are known (sections 3.4.1 and 3.4.2).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import codecs, training
from edgegossip import recipe as recipes
from edgegossip.codecs import levels
from edgegossip.gossip import topologies
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.training.partition import by_skew
from lab.papers import bounds, nasnet
from lab.papers.convergence import ConvergenceRun, convex_bound, nonconvex_bound, nonconvex_rate
from lab.results.resumable import keep_part

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pages" / "papers" / "computed.json"
MODELS = {  # model, its norm
    "resnet20": "range-evonorm",
    "resnet54": "range-evonorm",
    "vgg11": "range-evonorm",
    "resnet18": "range-evonorm",
    "nasnet-mobile": "batchnorm",
}
PARTITIONS = (  # figure, data set, examples, classes, boards, degrees of skew
    ("2", "CIFAR-10", 50_000, 10, 8, (0.0, 0.4, 0.8, 0.9)),
    ("5", "Imagenette", 9_469, 10, 4, (0.6,)),
    ("5", "Imagenette", 9_469, 10, 8, (0.6,)),
    ("6", "AG News", 120_000, 4, 4, (0.5, 0.9)),
    ("7", "Sentlen", 100_000, 6, 4, (0.5, 0.9)),
)
BUCKET, KEYS = 65_536, 8
VALUES, BOARDS, NOISE, SEEDS = 32, 4, 1.0, (1, 2, 3, 4, 5)

Row = dict[str, Any]
Slope = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def sizes() -> Iterator[Row]:
    """Yield how many values a model trains."""
    for name, norm in MODELS.items():
        builder = nasnet.NAME if name == "nasnet-mobile" else name
        settings = [f"model.name={builder}", f"model.norm={norm}", "training.precision=fp32"]
        layout = training.layout_of(recipes.load("low-precision", settings))
        yield {"model": name, "norm": norm, "values": layout.trainable_size}
    encoder = models.build(ModelSection("distilbert"), (128,), 4)
    yield {"model": "distilbert", "norm": "layernorm", "values": sum(p.numel() for p in encoder.parameters())}


def gaps() -> Iterator[Row]:
    """Yield the spectral gap of the graphs that the low-precision paper says are alike."""
    for name, boards in (("directed-ring", 16), ("ring", 32)):
        yield {"topology": name, "boards": boards, "gap": topologies.get(name, boards).spectral_gap()}


def partitions() -> Iterator[Row]:
    """Yield how far the boards' classes are from those of all data, as total variation distance,
    mean over boards; `degree` is that beside a partition that is sorted altogether."""
    for figure, data, examples, classes, boards, degrees in PARTITIONS:
        labels = np.arange(examples) % classes
        whole = _distance(labels, boards, 1.0)
        for skew in degrees:
            away = _distance(labels, boards, skew)
            yield {"figure": figure, "data": data, "boards": boards, "skew": skew} | {
                "distance": away,
                "degree": away / whole,
            }


def _distance(labels: NDArray[np.int64], boards: int, skew: float) -> float:
    every = np.bincount(labels) / labels.size
    parts = (labels[part] for part in by_skew(labels, boards, skew, 1))
    shares = (np.bincount(part, minlength=every.size) / part.size for part in parts)
    return float(np.mean([np.abs(share - every).sum() / 2 for share in shares]))


def lengths() -> Iterator[Row]:
    """Yield bits of one bucket's Elias stream, mean over keys, beside equation 3's bound."""
    layout = Layout.of([TensorSpec("bucket", (BUCKET,))])
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(BUCKET)
    laws = {"normal": normal, "cubes of normal": normal**3, "uniform": rng.uniform(-1, 1, BUCKET)}
    for bits in (2, 3, 4):
        s = 2 ** (bits - 1) - 2
        if s < 1:
            continue
        codec = codecs.get("elastiquant", bits=bits, ratio=0.5, bucket=BUCKET, stage="elias")
        for law, x in laws.items():
            bodies = (codec.encode(x.astype(np.float32), codec.init(layout), codecs.Ctx(key, 0)) for key in range(KEYS))
            found = float(np.mean([8 * memoryview(body).nbytes for body, _ in bodies]))
            yield {"s": s, "d": BUCKET, "law": law, "bits": found, "bound": bounds.length_bound(s, BUCKET)}


def convergence() -> Iterator[Row]:
    """Yield what runs with 4-bit-elastiquant come to, seed by seed, beside the bounds."""
    variance = levels.variance_bound(6, VALUES)
    for nesterov in (False, True):
        run = ConvergenceRun(BOARDS, 200, 1.0, (1 + NOISE) ** 2, variance, 0.9, nesterov)
        bound = convex_bound(run, 0.02, math.sqrt(1 + VALUES) - 1, math.sqrt(VALUES))
        for seed in SEEDS:  # f = sqrt(1 + ||w||^2), whose slope is at most 1
            mean = np.mean(_way(run, 0.02, lambda w: w / np.sqrt(1 + w @ w), seed), 0)
            yield _bounded("3.4.1", nesterov, seed, float(np.sqrt(1 + mean @ mean) - 1), bound)
        slope = 0.65 * math.sqrt(VALUES)  # f = sum w^2 / (1 + w^2): second derivatives of at most 2
        run = ConvergenceRun(BOARDS, 200, slope, (slope + NOISE) ** 2, variance, 0.5, nesterov)
        bound, rate = nonconvex_bound(run, 0.1, 2.0, VALUES / 2), nonconvex_rate(run, 0.1, 2.0)
        for seed in SEEDS:
            slopes = [_steep(w) for w in _way(run, rate, _steep, seed)]
            yield _bounded("3.4.2", nesterov, seed, min(float(g @ g) for g in slopes), bound)


def _steep(w: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 * w / (1 + w**2) ** 2


def _bounded(section: str, nesterov: bool, seed: int, found: float, bound: float) -> Row:
    return {"section": section, "nesterov": nesterov, "seed": seed, "found": found, "bound": bound}


def _way(run: ConvergenceRun, rate: float, slope: Slope, seed: int) -> list[NDArray[np.float64]]:
    """w_0..w_T by section 3.4's rule; each board adds noise of norm NOISE to the slope and sends
    that."""
    codec = codecs.get("4-bit-elastiquant", bucket=VALUES)
    layout = Layout.of([TensorSpec("w", (VALUES,))])
    rng, w, before = np.random.default_rng(seed), np.ones(VALUES), np.ones(VALUES)
    models = [w]
    for step in range(run.steps):
        noise = rng.standard_normal((run.boards, VALUES))
        noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        sent = []
        for board, part in enumerate(noise):
            key = (seed * run.steps + step) * run.boards + board
            body, _ = codec.encode((slope(w) + part).astype(np.float32), codec.init(layout), codecs.Ctx(key, step))
            sent.append(codec.decode(body, layout).astype(np.float64))
        g = np.mean(sent, 0)
        beside = w - run.nesterov * rate * g
        w, before = w - rate * g + run.momentum * (beside - before), beside
        models.append(w)
    return models


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for part in (sizes, gaps, partitions, lengths, convergence):
        keep_part(RESULTS, part.__name__, list(part()))


if __name__ == "__main__":
    main()
