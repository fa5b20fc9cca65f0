"""NASNet-A (Zoph et al. 2018, "Learning transferable architectures for scalable image recognition",
figure 4) in its mobile size, as Keras's NASNetMobile has it: the network of CO3's figures.

Every cell takes the outputs of the two cells before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from edgegossip.training.models.layers import activated, image_shape, includes_activation, initialise, plain
from edgegossip.types import ConfigError

NAME = "lab.papers.nasnet:nasnet_mobile"  # in a recipe
_STEM = 32  # channels
_FILTERS = 44  # of the first stage's branches; a 24th of what the head gets
_CELLS = 4  # normal cells a stage


def _relu(norm: str) -> nn.Module:
    """The ReLU before a convolution, not in place: others need its input as it is. An EvoNorm,
    which ended what comes in, has had its own."""
    return nn.Identity() if includes_activation(norm) else nn.ReLU()


def _pad(x: Tensor, kernel: int) -> Tensor:
    """Zeros around x so that a window of stride 2 ends with it: one less in front of even sizes."""
    half = kernel // 2
    rows, columns = (half - (size % 2 == 0) for size in x.shape[2:])
    return F.pad(x, (columns, half, rows, half))


def _average(x: Tensor) -> Tensor:
    """The mean of 3x3 values, as many of them as lie in the map."""
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class _Depthwise(nn.Module):
    """A depthwise and then a 1x1 convolution, without anything between them."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        padding = kernel // 2 if stride == 1 else 0
        self.depth = nn.Conv2d(inputs, inputs, kernel, stride, padding, groups=inputs, bias=False)
        self.point = nn.Conv2d(inputs, outputs, 1, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.point(self.depth(x if self.stride == 1 else _pad(x, self.kernel)))
        return out


def _separable(norm: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Twice ReLU, separable convolution, norm; the stride is the first one's."""
    return nn.Sequential(
        _relu(norm),
        _Depthwise(inputs, outputs, kernel, stride),
        activated(norm, outputs),
        _Depthwise(outputs, outputs, kernel, 1),
        plain(norm, outputs),
    )


def _squeeze(norm: str, inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_relu(norm), nn.Conv2d(inputs, outputs, 1, bias=False), plain(norm, outputs))


class _Halve(nn.Module):
    """Brings a map of twice the size to a cell's: every other pixel, and those between them, each
    by a 1x1 convolution to half of the channels."""

    def __init__(self, norm: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.relu = _relu(norm)
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.norm = plain(norm, 2 * (outputs // 2))

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        between = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        out: Tensor = self.norm(torch.cat([self.even(x[:, :, ::2, ::2]), self.odd(between[:, :, ::2, ::2])], 1))
        return out


class _Normal(nn.Module):
    """A normal cell of six times `filters` channels. `adjust`: what makes p alike to the rest."""

    def __init__(self, norm: str, inputs: int, adjust: nn.Module, filters: int) -> None:
        super().__init__()
        self.adjust = adjust
        self.squeeze = _squeeze(norm, inputs, filters)
        self.h5, self.p3, self.p5, self.q3, self.h3 = (
            _separable(norm, filters, filters, kernel) for kernel in (5, 3, 5, 3, 3)
        )

    @override
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        p, h = self.adjust(p), self.squeeze(x)
        mean = _average(p)
        return torch.cat(
            [p, self.h5(h) + self.p3(p), self.p5(p) + self.q3(p), _average(h) + p, mean + mean, self.h3(h) + h], 1
        )


class _Reduction(nn.Module):
    """A reduction cell: half the size, four times `filters` channels. The first one has no cell
    before its input, and takes the stem's output, `before` channels, for it."""

    def __init__(self, norm: str, inputs: int, adjust: nn.Module, before: int, filters: int) -> None:
        super().__init__()
        self.adjust = adjust
        self.squeeze = _squeeze(norm, inputs, filters)
        self.h5 = _separable(norm, filters, filters, 5, 2)
        self.p7, self.q7, self.p5 = (_separable(norm, before, filters, kernel, 2) for kernel in (7, 7, 5))
        self.end = _separable(norm, filters, filters, 3)

    @override
    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        p, h = self.adjust(p), self.squeeze(x)
        padded = _pad(h, 3)  # with zeros, which count in maximum and mean
        largest, mean = F.max_pool2d(padded, 3, 2), F.avg_pool2d(padded, 3, 2)
        first, second = self.h5(h) + self.p7(p), largest + self.q7(p)
        return torch.cat([second, mean + self.p5(p), second + _average(first), self.end(first) + largest], 1)


def _adjust(norm: str, inputs: int, outputs: int, halve: bool) -> nn.Module:
    """What a cell does to the output of the cell before the last."""
    if halve:
        return _Halve(norm, inputs, outputs)
    return nn.Identity() if inputs == outputs else _squeeze(norm, inputs, outputs)


class _NasNet(nn.Module):
    """Stem, two reductions, and three stages of normal cells with a reduction between them."""

    def __init__(self, channels: int, size: tuple[int, int], classes: int, norm: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, _STEM, 3, 2, bias=False), plain(norm, _STEM))
        size = ((size[0] - 1) // 2, (size[1] - 1) // 2)
        cells: list[nn.Module] = []
        width, before, halve = _STEM, _STEM, False  # of the last cell and the one before; is that one larger?
        for k, filters in enumerate((_FILTERS // 4, _FILTERS // 2, _FILTERS, 2 * _FILTERS, 4 * _FILTERS)):
            if k != 2:
                adjusted = filters if k else _STEM
                adjust = _adjust(norm, before, adjusted, halve)
                cells.append(_Reduction(norm, width, adjust, adjusted, filters))
                smaller = ((size[0] + 1) // 2, (size[1] + 1) // 2)
                width, before, halve, size = 4 * filters, width, smaller != size, smaller
            for _ in range(_CELLS if k > 1 else 0):
                cells.append(_Normal(norm, width, _adjust(norm, before, filters, halve), filters))
                width, before, halve = 6 * filters, width, False
        self.cells = nn.ModuleList(cells)
        self.end = nn.Sequential(_relu(norm), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    @override
    def forward(self, x: Tensor) -> Tensor:
        last = before = self.stem(x)
        for cell in self.cells:
            last, before = cell(last, before), last
        out: Tensor = self.end(last)
        return out


def nasnet_mobile(input_shape: tuple[int, ...], classes: int, norm: str) -> nn.Module:
    """Build NASNet-A (4 @ 1056), Keras's NASNetMobile, for images of any size.

    As in Keras, and so in CO3's experiments, the stem is the same for small images: those of 32x32
    pixels reach the stages as maps of 4x4, 2x2 and 1x1. Deviations: batch norm has torch's epsilon
    and averaging (Keras: 1e-3 and 0.9997, which would take ten thousand steps to forget its start).
    Raises ConfigError for images of under 3x3 pixels."""
    channels, height, width = image_shape("nasnet-mobile", input_shape)
    if min(height, width) < 3:
        raise ConfigError(f"model.name = 'nasnet-mobile' needs images of at least 3x3 pixels, not {height}x{width}")
    return initialise(_NasNet(channels, (height, width), classes, norm))
