"""The models for images, and the multi-layer perceptron.

Each builder is called as `models.build` says: (input_shape, classes, norm, **params). Convolutions
are initialised as He et al. do; the last layer gives logits, float32[batch, classes].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from edgegossip.int8.layers import conv_norm
from edgegossip.training.models.layers import (
    activated,
    after_addition,
    image_shape,
    initialise,
    plain,
    projection,
    width,
    widths,
)
from edgegossip.types import ConfigError

_SMALL = 64  # pixels; images up to this size keep their resolution in the stem


def mlp(input_shape: tuple[int, ...], classes: int, norm: str, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Build a multi-layer perceptron: flatten, then linear layers with ReLU between them.

    `hidden` lists the widths of the hidden layers; an empty list gives softmax regression. `norm`
    is not used."""
    layers: list[nn.Module] = [nn.Flatten()]
    last = math.prod(input_shape)
    for size in widths("model.params.hidden", hidden):
        layers += [nn.Linear(last, size), nn.ReLU(inplace=True)]
        last = size
    return nn.Sequential(*layers, nn.Linear(last, classes))


def cnn(
    input_shape: tuple[int, ...], classes: int, norm: str, channels: Sequence[int] = (16, 32, 64), hidden: int = 128
) -> nn.Module:
    """Build the small convolutional network ("vanilla CNN") of the federated-learning literature:
    3x3 convolutions with ReLU, each followed by 2x2 max pooling, then one hidden linear layer.

    `channels` lists the widths of the convolutions, `hidden` is the width of the linear layer;
    `norm` is not used. Pooling comes before the ReLU: outputs and gradients are the same bit for
    bit, since the larger of two values is the larger one after ReLU too, and a quarter of the
    values go through it. Raises ConfigError for images too small to be halved once a
    convolution."""
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


_VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # channels; max pooling ends each stage


def vgg11(input_shape: tuple[int, ...], classes: int, norm: str, hidden: int = 512) -> nn.Module:
    """Build VGG-11 (Simonyan, Zisserman 2015, configuration A) with normalisation.

    As in the low-precision decentralised training paper it has one linear layer of `hidden` before
    the last (9.49 million parameters); maps are averaged to one pixel before it."""
    last, _, _ = image_shape("vgg11", input_shape)
    layers: list[nn.Module] = []
    for stage in _VGG_STAGES:
        for channels in stage:
            layers += [nn.Conv2d(last, channels, 3, 1, 1, bias=False), activated(norm, channels)]
            last = channels
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # images of under 32 pixels keep their last one
    features = width("model.params.hidden", hidden)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, features), nn.ReLU(inplace=True)]
    return initialise(nn.Sequential(*layers, nn.Linear(features, classes)))


class _CifarBlock(nn.Module):
    """Two convolutions, whose input is added to their result."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = activated(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = plain(norm, outputs)
        self.end = after_addition(norm)
        self.stride, self.extra = stride, outputs - inputs

    @override
    def forward(self, x: Tensor) -> Tensor:
        branch = conv_norm(self.conv2, self.norm2, conv_norm(self.conv1, self.norm1, x))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        out: Tensor = self.end(branch + x)
        return out


def cifar_resnet(input_shape: tuple[int, ...], classes: int, norm: str, blocks: int) -> nn.Module:
    """Build a ResNet for small images (He et al. 2016, section 4.2): three stages of 16, 32 and 64
    channels, identity shortcuts that subsample and pad with zero channels (their option A).

    It has 6 `blocks` + 2 layers: 1, 2, 3, 5, 7, 9 and 18 blocks a stage give ResNet-8, 14, 20, 32,
    44, 56 and 110. "ResNet-54" is the name that the low-precision decentralised training paper
    gives a network of 0.76 million parameters; 8 blocks a stage (50 layers) have just that many."""
    channels, _, _ = image_shape(f"resnet{6 * blocks + 2}", input_shape)
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), activated(norm, 16)]
    last = 16
    for planes in (16, 32, 64):
        for _ in range(blocks):
            layers.append(_CifarBlock(last, planes, 1 if planes == last else 2, norm))
            last = planes
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)))


def _stem(channels: int, height: int, norm: str | None) -> list[nn.Module]:
    """The layers before the first stage, 64 channels: 3x3 for images of at most 64 pixels,
    otherwise 7x7, stride 2, and 3x3 max pooling. `norm` None leaves the normalisation out (for
    pre-activation networks)."""
    small = height <= _SMALL
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, kernel, stride, padding, bias=norm is None)]
    layers += [activated(norm, 64)] if norm is not None else []
    return layers if small else [*layers, nn.MaxPool2d(3, 2, 1)]


class _Residual(nn.Module):
    def __init__(self, branch: nn.Module, shortcut: nn.Module, end: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.end = branch, shortcut, end

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.branch(x) + self.shortcut(x))
        return out


def _basic(inputs: int, planes: int, stride: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, planes, 3, stride, 1, bias=False),
        activated(norm, planes),
        nn.Conv2d(planes, planes, 3, 1, 1, bias=False),
        plain(norm, planes),
    ]


def _bottleneck(inputs: int, planes: int, stride: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, planes, 1, bias=False),
        activated(norm, planes),
        nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
        activated(norm, planes),
        nn.Conv2d(planes, 4 * planes, 1, bias=False),
        plain(norm, 4 * planes),
    ]


_RESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def resnet(input_shape: tuple[int, ...], classes: int, norm: str, depth: int) -> nn.Module:
    """Build ResNet-18, 34 or 50, by `depth` (He et al. 2016, table 1), with a 3x3 stem for small
    images; stride in the 3x3 convolution."""
    channels, height, _ = image_shape(f"resnet{depth}", input_shape)
    make, expansion = (_bottleneck, 4) if depth == 50 else (_basic, 1)
    layers = _stem(channels, height, norm)
    last = 64
    for stage, blocks in enumerate(_RESNET_BLOCKS[depth]):
        planes = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            same = last == planes * expansion and stride == 1
            shortcut = nn.Identity() if same else projection(norm, last, planes * expansion, stride)
            branch = nn.Sequential(*make(last, planes, stride, norm))
            layers.append(_Residual(branch, shortcut, after_addition(norm)))
            last = planes * expansion
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)))


_V2_STAGES = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # planes, blocks, stride of the last block


class _V2Block(nn.Module):
    """A pre-activation bottleneck."""

    def __init__(self, inputs: int, planes: int, stride: int, norm: str, project: bool) -> None:
        super().__init__()
        self.first = activated(norm, inputs)
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, planes, 1, bias=False),
            activated(norm, planes),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
            activated(norm, planes),
            nn.Conv2d(planes, 4 * planes, 1),
        )
        self.projection = nn.Conv2d(inputs, 4 * planes, 1) if project else None
        self.pool = nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()

    @override
    def forward(self, x: Tensor) -> Tensor:
        # Not in place: with an identity shortcut x itself is needed again.
        ready = self.first(x)
        shortcut = self.pool(x) if self.projection is None else self.projection(ready)
        out: Tensor = self.branch(ready) + shortcut
        return out


def resnet50v2(input_shape: tuple[int, ...], classes: int, norm: str) -> nn.Module:
    """Build ResNet-50V2: pre-activation bottlenecks (He et al. 2016, "Identity mappings in deep
    residual networks"), with a 3x3 stem without pooling for images of at most 64 pixels.

    The arrangement is that of Keras's ResNet50V2, which CO3's experiments use: stride in a stage's
    last block, biased last convolutions and projections."""
    channels, height, _ = image_shape("resnet50v2", input_shape)
    layers = _stem(channels, height, None)
    last = 64
    for planes, blocks, stride in _V2_STAGES:
        for block in range(blocks):
            layers.append(_V2Block(last, planes, stride if block == blocks - 1 else 1, norm, project=not block))
            last = 4 * planes
    layers += [activated(norm, last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return initialise(nn.Sequential(*layers))


_GROWTH = 32
_DENSENET_BLOCKS = (6, 12, 24, 16)


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

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


def densenet121(input_shape: tuple[int, ...], classes: int, norm: str) -> nn.Module:
    """Build DenseNet-121 (Huang et al. 2017, table 1): growth 32, bottlenecks of four times the
    growth, compression 1/2. Images of at most 64 pixels get a plain 3x3 stem."""
    channels, height, _ = image_shape("densenet121", input_shape)
    last = 2 * _GROWTH
    layers: list[nn.Module] = [nn.Conv2d(channels, last, 3, 1, 1, bias=False)]
    if height > _SMALL:
        layers = [nn.Conv2d(channels, last, 7, 2, 3, bias=False), activated(norm, last), nn.MaxPool2d(3, 2, 1)]
    for stage, blocks in enumerate(_DENSENET_BLOCKS):
        for _ in range(blocks):
            layers.append(_Dense(last, norm))
            last += _GROWTH
        if stage < len(_DENSENET_BLOCKS) - 1:
            # Tiny images are used up before the last transition; they keep their one pixel.
            layers += [activated(norm, last), nn.Conv2d(last, last // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2, ceil_mode=True))
            last //= 2
    layers += [activated(norm, last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return initialise(nn.Sequential(*layers))
