"""ResNets for small images (He et al. 2016, section 4.2): three stages of 16, 32 and 64 channels,
identity shortcuts that subsample and pad with zero channels (their option A).

6 n + 2 layers for n blocks a stage: n = 1, 2, 3, 5, 7, 9, 18 give ResNet-8, 14, 20, 32, 44, 56,
110. "ResNet-54" is the name that the low-precision decentralised training paper gives a network of
0.76 million parameters; n = 8 (50 layers) has just that many.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.int8.sequence import normed
from edgegossip.training.models.norms import activated, after_addition, initialise, plain
from edgegossip.training.models.shapes import image_shape


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = activated(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = plain(norm, outputs)
        self.end = after_addition(norm)
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        branch = normed(self.conv2, self.norm2, normed(self.conv1, self.norm1, x))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        out: Tensor = self.end(branch + x)
        return out


def cifar_resnet(input_shape: tuple[int, ...], classes: int, norm: str, blocks: int) -> nn.Module:
    """`blocks` residual blocks a stage."""
    channels, _, _ = image_shape(f"resnet{6 * blocks + 2}", input_shape)
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), activated(norm, 16)]
    last = 16
    for width in (16, 32, 64):
        for _ in range(blocks):
            layers.append(_Block(last, width, 1 if width == last else 2, norm))
            last = width
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)))
