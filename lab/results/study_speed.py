#!/usr/bin/env python3
"""Measure how fast a study trains its virtual nodes, beside torch alone.

    python -m lab.results.study_speed DATA_DIR [--rounds 4] [--threads 1,2] [--model M:NORM]
        [--repeats 3] [-o lab/results/pages/study-speed.json]
    python -m lab.results study-speed

Eight nodes of CIFAR-10 on a ring, D-PSGD in fp32, one local step of 32 images a round; DATA_DIR
holds cifar-10-batches-bin. For each model a study of so many rounds, three or more, the first and
the last left out, with each number of threads; then the same number of steps of the same module by
a loop that does nothing else: inputs at hand, no message, torch.optim.SGD. Models with evonorm-s0
are measured a second time in the plain way: the norm of torch's operations, and a study's threads
within them, not across nodes. All of it is measured in turn and several times over, as a shared
machine's speed changes by the minute. Milliseconds a step, by the wall and of CPU time: a mean over
rounds, and the median of the repeats.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from edgegossip import training
from edgegossip.recipe import Recipe, with_settings
from edgegossip.studies.cases import StudyPlan, make_cases
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.telemetry.machine import result_source
from lab.results import resumable

NODES, BATCH = 8, 32
MODELS = ("resnet20:evonorm-s0", "resnet20:batchnorm", "cnn:batchnorm")


def recipe_of(model: str, folder: str, rounds: int, threads: int) -> Recipe:
    """Return the recipe of a study; `model` is its name and its norm."""
    name, norm = model.split(":")
    of_data = {"data.name": "cifar10", "data.dir": folder, "data.test_examples": 250}
    of_model = {"model.name": name, "model.norm": norm, "training.batch_size": BATCH, "training.local_steps": 1}
    run = {"run.nodes": NODES, "run.rounds": rounds, "run.threads": threads, "evaluation.every": 10**6}
    return with_settings(Recipe(), {**of_data, **of_model, **run, "training.lr": 0.05, "training.momentum": 0.9})


class Clock:
    """Says what rounds took: the first one is not counted."""

    def __init__(self) -> None:
        self.ends: dict[int, tuple[float, float]] = {}

    def __call__(self, round: int) -> None:
        """Take note that a round is over."""
        self.ends.setdefault(round, (time.perf_counter(), time.process_time()))

    def figures(self) -> dict[str, float]:
        """Return milliseconds a step, of three rounds or more. A study's nodes begin the next round
        as soon as they end one, so that most of the last one's steps lie before its beginning: it
        does not count."""
        ends = [self.ends[round] for round in sorted(self.ends)][:-1]
        wall, cpu = (1e3 * (ends[-1][k] - ends[0][k]) / (NODES * (len(ends) - 1)) for k in (0, 1))
        return {"wall_ms": wall, "cpu_ms": cpu}


@contextmanager
def plainly() -> Iterator[None]:
    """Compute in the block without what makes a study fast."""
    no = {"return_value": False}
    with mock.patch("edgegossip.int8.norms._suits_kernels", **no), mock.patch.object(training, "can_be_together", **no):
        yield


def of_study(recipe: Recipe, data: DataSetCache) -> dict[str, float]:
    """Run a study of one case; what a step took, and what came out."""
    (case,), clock = make_cases(recipe, StudyPlan()), Clock()
    result = run_case(case, data, clock)
    return {**clock.figures(), "loss": result["train_loss"]}


def of_loop(recipe: Recipe) -> dict[str, float]:
    """Take the steps of as many rounds with the module alone."""
    torch.set_num_threads(1)
    module = training.build_model(recipe).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()

    clock = Clock()
    for round in range(recipe.run.rounds):
        for _ in range(NODES):
            step()
        clock(round)
    return clock.figures()


def measure(
    folder: str, rounds: int, threads: list[int], models: list[str], repeats: int, say: Callable[[str], None]
) -> list[Any]:
    """Measure all of it, and return a row for each."""
    samples: dict[tuple[str, str, bool, int], list[dict[str, float]]] = {}
    data = DataSetCache()

    def add(model: str, what: str, plain: bool, threads: int, figures: dict[str, float]) -> None:
        samples.setdefault((model, what, plain, threads), []).append(figures)
        how = "in the plain way, " if plain else ""
        say(f"{model}, {what}, {how}threads {threads}: {figures['wall_ms']:.1f} ms a step")

    for _, model in itertools.product(range(repeats), models):
        recipes = [recipe_of(model, folder, rounds, n) for n in threads]
        for plain in (True, False) if model.endswith(":evonorm-s0") else (False,):
            with plainly() if plain else nullcontext():
                for recipe in recipes:
                    add(model, "study", plain, recipe.run.threads, of_study(recipe, data))
                add(model, "torch alone", plain, 1, of_loop(recipes[0]))
    return [
        {"model": model, "what": what, "plain": plain, "threads": threads}
        | {key: statistics.median(one[key] for one in found) for key in found[0]}
        | {"wall_ms_of_each": [one["wall_ms"] for one in found]}
        for (model, what, plain, threads), found in samples.items()
    ]


def table(document: dict[str, Any]) -> str:
    """A row a way: the median step, the spread of the repeats, and rounds a second of all nodes."""
    lines = resumable.heading("model, what trains, threads, ms a step, least, most, CPU ms a step, rounds a second")
    for row in document["rows"]:
        what = f"{row['what']}, plain" if row["plain"] else row["what"]
        each = row["wall_ms_of_each"]
        lines.append(
            f"| {row['model'].replace(':', ', ')} | {what} | {row['threads']} | {row['wall_ms']:.1f} | {min(each):.1f} "
            f"| {max(each):.1f} | {row['cpu_ms']:.1f} | {1e3 / (NODES * row['wall_ms']):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--model", action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    threads = [int(n) for n in given.threads.split(",")]
    models = given.model or list(MODELS)
    rows = measure(given.folder, given.rounds, threads, models, given.repeats, lambda line: print(line, flush=True))
    if given.output:
        given.output.write_text(
            json.dumps({"source": result_source(), "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
