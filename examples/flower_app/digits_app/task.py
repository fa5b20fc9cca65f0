"""Model, data and training, as in any Flower app; nothing here knows of compression."""

import numpy as np
import torch
from torch import nn

from edgegossip.recipe import DataSection
from edgegossip.training.data import open_data


def build() -> nn.Module:
    """An MLP of 118 thousand values on digits of 8 x 8 pixels."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)
    )


def load(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """This client's share of the training examples, and the test set: inputs float32[n, 64], labels
    int64[n]."""
    data = open_data(DataSection(name="digits"))
    share = np.arange(partition, len(data.train), partitions)
    every = np.arange(len(data.test))
    inputs = [torch.from_numpy(d.inputs.take(k)).float() / 16 for d, k in ((data.train, share), (data.test, every))]
    labels = [torch.from_numpy(data.train.labels[share]).long(), torch.from_numpy(data.test.labels).long()]
    return inputs[0], labels[0], inputs[1], labels[1]


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, lr: float, steps: int = 10) -> float:
    """A few steps of SGD on batches of 32; the mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for step in range(steps):
        chosen = torch.arange(32 * step, 32 * step + 32) % len(labels)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def test(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """(loss, accuracy)."""
    with torch.no_grad():
        logits = model(inputs)
        return float(nn.functional.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).float().mean())
