#!/usr/bin/env python3
"""Train small models and keep real gradients, on which `lab/results/rate_error.py` measures codecs.

    python -m lab.papers.gradients OUT_DIR --data DATA_DIR [--text FILE] [--threads N]

Plain momentum SGD on one process: ResNet-20 and the CNN on CIFAR-10, the CNN on Fashion-MNIST, a
transformer over characters of a text. OUT_DIR/NAME-STEP.npz has float32[n] `x`, the gradient of one
batch, int64[tensors + 1] `offsets`, and int64[tensors] `columns`, 0 for vectors. `choco-STEP.npz`
is what a board of four on a ring publishes under CHOCO-SGD: its model less the copy that its
neighbours have of it, with `co3`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import DataSection, ModelSection
from edgegossip.training import models
from edgegossip.training.data import open_data
from edgegossip.training.vector import ModelVector
from edgegossip.types import Vec

BATCH, RATE, MOMENTUM = 64, 0.05, 0.9
KEPT = (5, 100, 400)  # steps: the start, the middle and the end of a short training
RING, AVERAGING = 4, 0.3  # boards and averaging rate of CHOCO-SGD

Batches = Iterator[tuple[Tensor, Tensor]]


class Characters(nn.Module):
    """Predicts each next character: two causal layers of 128 over windows of 64."""

    def __init__(self, characters: int, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.mask: Tensor = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.layers(x, mask=self.mask, is_causal=True)).flatten(0, 1)


def images(
    name: str, folder: Path, model: ModelSection, seed: int = 1, batch: int = BATCH
) -> tuple[nn.Module, Batches]:
    """A model of the package with batches of a data set; the model is drawn from torch's state."""
    data = open_data(DataSection(name, dir=str(folder)))
    about, part, rng = data.about, data.train, np.random.default_rng(seed)
    mean, deviation = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (about.mean, about.std))

    def batches() -> Batches:
        while True:
            rows = rng.integers(0, len(part), batch)
            inputs = (part.inputs.take(rows).astype(np.float32) - mean) / deviation
            yield torch.from_numpy(inputs), torch.from_numpy(np.asarray(part.labels)[rows].astype(np.int64))

    return models.build(model, about.shape, about.classes), batches()


def characters(file: Path, length: int = 64) -> tuple[nn.Module, Batches]:
    """The transformer with windows of a text."""
    alphabet, ids = np.unique(np.frombuffer(file.read_bytes(), np.uint8), return_inverse=True)
    rng = np.random.default_rng(1)

    def batches() -> Batches:
        while True:
            rows = rng.integers(0, ids.size - length - 1, BATCH // 2)[:, None] + np.arange(length + 1)
            window = torch.from_numpy(ids[rows].astype(np.int64))
            yield window[:, :-1], window[:, 1:].flatten()

    return Characters(alphabet.size), batches()


def gradient(model: nn.Module, batches: Batches) -> float:
    """Leave one batch's gradient in the model's parameters; return its loss."""
    inputs, labels = next(batches)
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    return loss.item()


def flat(model: nn.Module) -> Vec:
    """Return the gradient that a model's parameters hold, as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).numpy()


def layout_of(model: nn.Module) -> Layout:
    """Of what the model trains."""
    return Layout.of(TensorSpec(name, tuple(p.shape)) for name, p in model.named_parameters())


def keep(file: Path, x: Vec, layout: Layout) -> None:
    np.savez(file, x=x, offsets=layout.offsets, columns=layout.columns)


def trained(name: str, model: nn.Module, batches: Batches, out: Path) -> None:
    optimiser = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for step in range(1, KEPT[-1] + 1):
        gradient(model, batches)
        if step in KEPT:
            keep(out / f"{name}-{step}.npz", flat(model), layout_of(model))
        optimiser.step()


def gossiped(make: Callable[[], tuple[nn.Module, Batches]], out: Path) -> None:
    """CHOCO-SGD of a few boards in one process; the first one's differences."""
    boards = []
    for _ in range(RING):
        torch.manual_seed(1)
        boards.append(make())
    vectors = [ModelVector(model) for model, _ in boards]
    layout, codec = vectors[0].layout, codecs.get("co3")
    copies = [vector.read() * 0 + vectors[0].read() for vector in vectors]
    steps = [torch.optim.SGD(model.parameters(), RATE) for model, _ in boards]
    for step in range(1, KEPT[-1] // 2 + 1):
        for (model, batches), optimiser in zip(boards, steps, strict=True):
            gradient(model, batches)
            optimiser.step()
        now = [vector.read() for vector in vectors]
        for k in range(RING):
            difference = now[k] - copies[k]
            if k == 0 and 2 * step in (*KEPT, 10):
                keep(out / f"choco-{step}.npz", difference[: layout.trainable_size], layout_of(boards[0][0]))
            body, _ = codec.encode(difference, codec.init(layout), codecs.Ctx(step * RING + k, step))
            copies[k] = copies[k] + codec.decode(body, layout)
        for k in range(RING):
            beside = (copies[k - 1] + copies[(k + 1) % RING] - 2 * copies[k]) / 3
            vectors[k].write((now[k] + AVERAGING * beside).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep real gradients.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10 and Fashion-MNIST")
    parser.add_argument("--text", type=Path, help="file of plain text")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    for name, data, model in (
        ("cnn", "cifar10", "cnn"),
        ("fashion-cnn", "fashion-mnist", "cnn"),
        ("resnet20", "cifar10", "resnet20"),
    ):
        torch.manual_seed(1)
        trained(name, *images(data, options.data, ModelSection(model)), options.out)
    if options.text:
        torch.manual_seed(1)
        trained("characters", *characters(options.text), options.out)
    gossiped(lambda: images("cifar10", options.data, ModelSection("cnn")), options.out)


if __name__ == "__main__":
    main()
