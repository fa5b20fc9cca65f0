"""Multi-layer perceptron: flatten, then linear layers with ReLU between them. `norm` is not
used."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from edgegossip.training.models.shapes import widths


def mlp(input_shape: tuple[int, ...], classes: int, norm: str, hidden: Sequence[int] = (128,)) -> nn.Module:
    """`hidden` lists the widths of the hidden layers; an empty list gives softmax regression."""
    layers: list[nn.Module] = [nn.Flatten()]
    last = math.prod(input_shape)
    for size in widths("model.params.hidden", hidden):
        layers += [nn.Linear(last, size), nn.ReLU(inplace=True)]
        last = size
    return nn.Sequential(*layers, nn.Linear(last, classes))
