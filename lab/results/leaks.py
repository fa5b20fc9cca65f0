#!/usr/bin/env python3
"""Read training images back out of single updates, as whoever gets them could; print a table.

    python -m lab.results.leaks > lab/results/pages/leaks.md

A linear layer's gradient of one example is its input times a number for each unit, and the bias has
those numbers (Phong et al. 2018). So each unit's weights over its bias are an image, where one
example alone reached the unit. An image counts as read when some unit's has a correlation above
0.95 with it. Networks with convolutions need a search for the image in place of a division (Zhu et
al. 2019), and give it away as well.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import DataSection
from edgegossip.telemetry.machine import result_source
from edgegossip.training.data import open_data
from edgegossip.types import Vec

UPDATES, HIDDEN, RATE, ALIKE = 40, 128, 0.05, 0.95
CODECS = (
    ("fp32", {}),
    ("minmax8", {}),
    ("dither", {"error": 0.3}),
    ("deadzone", {"error": 0.3}),
    ("4-bit-elastiquant", {}),
    ("co3", {}),
    ("topk", {"ratio": 0.01}),
)
SHAPES = ((1, 1), (4, 1), (32, 1), (1, 8), (4, 8), (32, 8))  # examples a step, steps


def update(images: torch.Tensor, labels: torch.Tensor, batch: int, steps: int, seed: int) -> tuple[Layout, Vec]:
    """Train a network of one hidden layer for some steps of SGD, and return by what it changed."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    layout = Layout.of(TensorSpec(name, tuple(p.shape)) for name, p in model.named_parameters())
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        optimizer.zero_grad()
        F.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return layout, (after - before).numpy()


def read_from(layout: Layout, delta: Vec, images: torch.Tensor) -> int:
    """Return how many of the images can be read out of an update."""
    weights, biases = (delta[layout.offsets[k] : layout.offsets[k + 1]] for k in (0, 1))
    rows = weights.reshape(HIDDEN, -1)[biases != 0] / biases[biases != 0, None]
    rows = rows - rows.mean(axis=1, keepdims=True)
    true = images.flatten(1).numpy()
    true = true - true.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(true, axis=1)
    return int(((rows @ true.T / np.maximum(lengths, 1e-30)).max(axis=0, initial=0.0) > ALIKE).sum())


def main() -> None:
    data = open_data(DataSection(name="digits")).train
    found, targets = data.take(np.arange(len(data.inputs)))
    inputs = torch.from_numpy(found.astype(np.float32)) / float(found.max())
    labels = torch.from_numpy(np.asarray(targets, np.int64))
    heads = [f"{batch} x {steps}" for batch, steps in SHAPES]
    print("# What one update gives away\n")
    source = result_source()
    print(f"Images of digits read back out of {UPDATES} updates of a network with one hidden layer, in per")
    print(f"cent of those that were trained on. Commit {source['commit']}. Command: `python -m lab.results.leaks`.\n")
    print(f"| codec | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, params in CODECS:
        cells = []
        for batch, steps in SHAPES:
            read = 0
            for seed in range(UPDATES):
                mine = np.random.default_rng(seed).choice(len(inputs), batch * steps, replace=False)
                layout, delta = update(inputs[mine], labels[mine], batch, steps, seed)
                codec = codecs.get(name, **params)
                body, _ = codec.encode(delta, codec.init(layout), codecs.base.Ctx(seed, 0, 1.0, RATE))
                read += read_from(layout, codec.decode(body, layout), inputs[mine])
            cells.append(f"{100 * read / (UPDATES * batch * steps):.0f} %")
        print(f"| `{name}` {' '.join(f'{k} = {v}' for k, v in params.items())}| {' | '.join(cells)} |", flush=True)
    print("\nColumns: examples a step x steps before the update is sent.")


if __name__ == "__main__":
    main()
