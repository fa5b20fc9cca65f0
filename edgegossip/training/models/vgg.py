"""VGG-11 (Simonyan, Zisserman 2015, configuration A) with normalisation and one hidden linear layer
of 512, as in the low-precision decentralised training paper (9.49 million parameters). Maps are
averaged to one pixel before the linear layers."""

from __future__ import annotations

from torch import nn

from edgegossip.training.models.norms import activated, initialise
from edgegossip.training.models.shapes import image_shape, width

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels; max pooling ends each stage


def vgg11(input_shape: tuple[int, ...], classes: int, norm: str, hidden: int = 512) -> nn.Module:
    """`hidden` is the width of the hidden linear layer."""
    last, _, _ = image_shape("vgg11", input_shape)
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for channels in stage:
            layers += [nn.Conv2d(last, channels, 3, 1, 1, bias=False), activated(norm, channels)]
            last = channels
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # images of under 32 pixels keep their last one
    features = width("model.params.hidden", hidden)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, features), nn.ReLU(inplace=True)]
    return initialise(nn.Sequential(*layers, nn.Linear(features, classes)))
