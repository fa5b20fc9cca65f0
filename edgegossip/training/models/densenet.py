"""DenseNet-121 (Huang et al. 2017, table 1): growth 32, bottlenecks of four times the growth,
compression 1/2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgegossip.training.models.norms import activated, initialise
from edgegossip.training.models.shapes import image_shape

_GROWTH = 32
_BLOCKS = (6, 12, 24, 16)
_SMALL = 64  # pixels; images up to this size keep their resolution in the stem


class _Dense(nn.Module):
    """Adds `_GROWTH` channels to its input."""

    def __init__(self, inputs: int, norm: str) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            activated(norm, inputs),
            nn.Conv2d(inputs, 4 * _GROWTH, 1, bias=False),
            activated(norm, 4 * _GROWTH),
            nn.Conv2d(4 * _GROWTH, _GROWTH, 3, 1, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


def densenet121(input_shape: tuple[int, ...], classes: int, norm: str) -> nn.Module:
    """Images of at most 64 pixels get a plain 3x3 stem."""
    channels, height, _ = image_shape("densenet121", input_shape)
    last = 2 * _GROWTH
    layers: list[nn.Module] = [nn.Conv2d(channels, last, 3, 1, 1, bias=False)]
    if height > _SMALL:
        layers = [nn.Conv2d(channels, last, 7, 2, 3, bias=False), activated(norm, last), nn.MaxPool2d(3, 2, 1)]
    for stage, blocks in enumerate(_BLOCKS):
        for _ in range(blocks):
            layers.append(_Dense(last, norm))
            last += _GROWTH
        if stage < len(_BLOCKS) - 1:
            # Tiny images are used up before the last transition; they keep their one pixel.
            layers += [activated(norm, last), nn.Conv2d(last, last // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2, ceil_mode=True))
            last //= 2
    layers += [activated(norm, last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return initialise(nn.Sequential(*layers))
