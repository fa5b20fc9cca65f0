"""ResNet-50V2: pre-activation bottlenecks (He et al. 2016, "Identity mappings in deep residual
networks"), in the arrangement of Keras's ResNet50V2, which CO3's experiments use: stride in a
stage's last block, biased last convolutions and projections."""

from __future__ import annotations

from torch import Tensor, nn

from edgegossip.training.models.norms import activated, initialise
from edgegossip.training.models.resnet import stem
from edgegossip.training.models.shapes import image_shape

_STAGES = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # width, blocks, stride of the last block


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, norm: str, project: bool) -> None:
        super().__init__()
        self.first = activated(norm, inputs)
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            activated(norm, width),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            activated(norm, width),
            nn.Conv2d(width, 4 * width, 1),
        )
        self.projection = nn.Conv2d(inputs, 4 * width, 1) if project else None
        self.pool = nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        # Not in place: with an identity shortcut x itself is needed again.
        ready = self.first(x)
        shortcut = self.pool(x) if self.projection is None else self.projection(ready)
        out: Tensor = self.branch(ready) + shortcut
        return out


def resnet50v2(input_shape: tuple[int, ...], classes: int, norm: str) -> nn.Module:
    """Images of at most 64 pixels get a 3x3 stem without pooling."""
    channels, height, _ = image_shape("resnet50v2", input_shape)
    layers = stem(channels, height, None)
    last = 64
    for width, blocks, stride in _STAGES:
        for block in range(blocks):
            layers.append(_Block(last, width, stride if block == blocks - 1 else 1, norm, project=not block))
            last = 4 * width
    layers += [activated(norm, last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return initialise(nn.Sequential(*layers))
