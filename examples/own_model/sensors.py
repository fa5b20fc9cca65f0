"""A user's own data and model: four kinds of vibration, told apart by a small 1-D convolutional
network.

Run from this folder, so that `sensors` can be imported:

    edgegossip run recipe.toml
"""

import numpy as np
import torch
from torch import nn

WINDOW = 64  # samples
KINDS = 4


def data(folder: str):
    """(train_inputs, train_labels, test_inputs, test_labels).

    `folder` is the recipe's data.dir; a real data set would be read from there. Every board calls
    this and must get the same arrays, so they are drawn with a fixed seed here. Inputs are
    float32[n, channels, samples], used as they are."""
    random = np.random.default_rng(0)
    labels = random.integers(0, KINDS, 1200)
    time = np.arange(WINDOW) / WINDOW
    phase = random.uniform(0, 2 * np.pi, (len(labels), 1))
    signal = np.sin(2 * np.pi * (3 + 4 * labels[:, None]) * time + phase)
    inputs = (signal + 0.5 * random.standard_normal(signal.shape)).astype(np.float32)[:, None]
    return inputs[:1000], labels[:1000], inputs[1000:], labels[1000:]


def build(input_shape, classes, norm, width=8):
    """A torch.nn.Module from float32[batch, *input_shape] to logits float32[batch, classes].

    `norm` is the recipe's model.norm (this model has no use for it); further arguments come from
    model.params."""
    channels, _ = input_shape
    return nn.Sequential(
        nn.Conv1d(channels, width, 9, padding=4),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(width, 2 * width, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, classes),
    )


if __name__ == "__main__":
    train_inputs, train_labels, _, _ = data("")
    model = build(train_inputs.shape[1:], KINDS, "batchnorm")
    print(model(torch.from_numpy(train_inputs[:5])).shape)
