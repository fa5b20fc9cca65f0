"""The small convolutional network ("vanilla CNN") of the federated-learning literature: 3x3
convolutions with ReLU, each followed by 2x2 max pooling, then one hidden linear layer. It has no
normalisation; `norm` is not used.

Pooling comes before the ReLU: outputs and gradients are the same bit for bit, since the larger of
two values is the larger one after ReLU too, and a quarter of the values go through it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from edgegossip.training.models.shapes import image_shape, width, widths
from edgegossip.types import ConfigError


def cnn(
    input_shape: tuple[int, ...], classes: int, norm: str, channels: Sequence[int] = (16, 32, 64), hidden: int = 128
) -> nn.Module:
    """`channels` lists the widths of the convolutions, `hidden` is the width of the linear layer.

    Raises ConfigError for images too small to be halved once a convolution."""
    last, height, breadth = image_shape("cnn", input_shape)
    layers: list[nn.Module] = []
    for size in widths("model.params.channels", channels):
        layers += [nn.Conv2d(last, size, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        last, height, breadth = size, height // 2, breadth // 2
    if not height or not breadth:
        raise ConfigError(f"model.params.channels = {list(channels)} halves images of shape {input_shape} to nothing")
    features = width("model.params.hidden", hidden)
    layers += [nn.Flatten(), nn.Linear(last * height * breadth, features), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(features, classes))
