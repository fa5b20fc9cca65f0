#!/usr/bin/env python3
"""Train an encoder of DistilBERT's shape on texts, in fp32 and in int8.

    python -m lab.results.text_runs DATA_DIR [--seeds 1,2,3]
        [--epochs N] [--threads N] [--out lab/results/pages/nlp.md]

One process without an exchange, AdamW with a warm-up and a linear decay. `fp32, range norm` is
float32 with the layer norm that int8 has, so what the norm costs can be told from what the integers
cost. A run that is in the output's JSON already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8.norms import RangeLayerNorm
from edgegossip.recipe import DataSection, ModelSection
from edgegossip.sweep.results import Result
from edgegossip.training import models
from edgegossip.training.data import DataSet, Examples, open_data
from lab.results import resumable

TASK = "sentence-length"
CASES = ("fp32", "fp32, range norm", "int8, dw 16", "int8, dw 8")
SIZES = {"layers": 2, "dim": 128, "heads": 4, "hidden": 512, "vocabulary": 8192, "dropout": 0.1}
BATCH = 32
WARMUP = 0.1  # of all steps


def built(case: str, data: DataSet, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    params = SIZES | {"length": data.about.shape[0]}
    section = ModelSection("distilbert", params=params)
    model = models.build(section, data.about.shape, data.about.classes)
    if case == "fp32, range norm":
        for module in model.modules():
            if type(module) is nn.LayerNorm:
                module.__class__ = RangeLayerNorm
    if case.startswith("int8"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", int8.ConversionNotice)
            model = int8.convert(model, int(case.split()[-1]))
    return model


def tensors(part: Examples) -> tuple[Tensor, Tensor]:
    ids = part.inputs.take(np.arange(len(part)))
    return torch.from_numpy(ids), torch.from_numpy(part.labels)


def accuracy(model: nn.Module, ids: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = [int((model(x).argmax(1) == y).sum()) for x, y in zip(ids.split(256), labels.split(256), strict=True)]
    model.train()
    return sum(right) / len(labels)


def run(case: str, seed: int, data: DataSet, options: argparse.Namespace) -> Result:
    """Train for some epochs; the line has the test accuracy after each."""
    model = built(case, data, seed)
    ids, labels = tensors(data.train)
    test = tensors(data.test)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.01)
    steps = options.epochs * (len(labels) // BATCH)
    warmup = max(1, int(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    order = torch.Generator().manual_seed(seed)
    reached, began = [], time.monotonic()
    for _ in range(options.epochs):
        places = torch.randperm(len(labels), generator=order)
        for part in places.split(BATCH)[: len(labels) // BATCH]:
            loss = F.cross_entropy(model(ids[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        reached.append(accuracy(model, *test))
        print(f"{case}, seed {seed}: {100 * reached[-1]:.2f} %", flush=True)
    return {
        "case": case,
        "seed": seed,
        "settings": settings(options),
        "accuracy": reached,
        "seconds": time.monotonic() - began,
    }


def settings(options: argparse.Namespace) -> str:
    return f"{TASK}, {options.epochs} epochs, lr {options.lr}"


def table(lines: list[Result]) -> str:
    rows = resumable.heading("case, seeds, test accuracy %, by seed, less fp32, seconds a run")
    of = {case: sorted((n for n in lines if n["case"] == case), key=lambda n: n["seed"]) for case in CASES}
    exact = {n["seed"]: n["accuracy"][-1] for n in of["fp32"]}
    for case, same in of.items():
        if not same:
            continue
        last = np.array([100 * n["accuracy"][-1] for n in same])
        less = [100 * (n["accuracy"][-1] - exact[n["seed"]]) for n in same if n["seed"] in exact]
        spread = f" ± {last.std(ddof=1):.2f}" if len(last) > 1 else ""
        cells = [
            case,
            str(len(same)),
            f"{last.mean():.2f}{spread}",
            ", ".join(f"{a:.2f}" for a in last),
        ]
        cells.append(f"{np.mean(less):+.2f}" if less and case != "fp32" else "")
        cells.append(f"{np.mean([n['seconds'] for n in same]):.0f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def text(lines: list[Result], data: DataSet, options: argparse.Namespace) -> str:
    share = np.bincount(data.test.labels).max() / len(data.test)
    sizes = ", ".join(f"{key} {value}" for key, value in SIZES.items())
    return (
        f"{TASK}: {len(data.train)} training and {len(data.test)} test examples of "
        f"{data.about.classes} classes, {data.about.shape[0]} tokens; the commonest class is {100 * share:.1f} % "
        f"of the test examples. Encoder: {sizes}. AdamW, learning rate {options.lr} with a warm-up of a tenth "
        f"and a linear decay, weight decay 0.01, batches of {BATCH}, {options.epochs} epochs, "
        f"{options.threads} threads.\n\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder with text files")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train-examples", type=int, default=0, help="only the first so many; 0: all")
    parser.add_argument("--out", type=Path, default=Path("lab/results/pages/nlp.md"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = open_data(DataSection(name=TASK, dir=options.data, train_examples=options.train_examples))
    lines = resumable.finished(options.out)
    for seed, case in itertools.product(map(int, options.seeds.split(",")), CASES):
        key = (case, seed, settings(options))
        if key in {(n["case"], n["seed"], n["settings"]) for n in lines}:
            continue
        lines.append(run(case, seed, data, options))
        title = "Texts in int8 and in fp32"
        own = [n for n in lines if n["settings"] == settings(options)]
        resumable.write(options.out, lines, title, "text_runs", text(own, data, options) + table(own))
    return resumable.exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
