"""ResNet-18, 34 and 50 (He et al. 2016, table 1), with a 3x3 stem for small images; stride in the
3x3 convolution."""

from __future__ import annotations

from torch import Tensor, nn

from edgegossip.training.models.norms import activated, after_addition, initialise, plain, projection
from edgegossip.training.models.shapes import image_shape

_SMALL = 64  # pixels; images up to this size keep their resolution in the stem
_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def stem(channels: int, height: int, norm: str | None) -> list[nn.Module]:
    """Layers up to the first stage, 64 channels: 3x3 for images of at most 64 pixels, otherwise
    7x7, stride 2, and 3x3 max pooling. `norm` None leaves the normalisation out (for pre-activation
    networks)."""
    small = height <= _SMALL
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, kernel, stride, padding, bias=norm is None)]
    layers += [activated(norm, 64)] if norm is not None else []
    return layers if small else [*layers, nn.MaxPool2d(3, 2, 1)]


class _Residual(nn.Module):
    def __init__(self, branch: nn.Module, shortcut: nn.Module, end: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.end = branch, shortcut, end

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.branch(x) + self.shortcut(x))
        return out


def _basic(inputs: int, width: int, stride: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, width, 3, stride, 1, bias=False),
        activated(norm, width),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        plain(norm, width),
    ]


def _bottleneck(inputs: int, width: int, stride: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, width, 1, bias=False),
        activated(norm, width),
        nn.Conv2d(width, width, 3, stride, 1, bias=False),
        activated(norm, width),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        plain(norm, 4 * width),
    ]


def resnet(input_shape: tuple[int, ...], classes: int, norm: str, depth: int) -> nn.Module:
    """`depth` is 18, 34 or 50."""
    channels, height, _ = image_shape(f"resnet{depth}", input_shape)
    make, expansion = (_bottleneck, 4) if depth == 50 else (_basic, 1)
    layers = stem(channels, height, norm)
    last = 64
    for stage, blocks in enumerate(_BLOCKS[depth]):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            same = last == width * expansion and stride == 1
            shortcut = nn.Identity() if same else projection(norm, last, width * expansion, stride)
            branch = nn.Sequential(*make(last, width, stride, norm))
            layers.append(_Residual(branch, shortcut, after_addition(norm)))
            last = width * expansion
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)))
