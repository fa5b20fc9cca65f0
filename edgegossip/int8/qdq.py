"""An int8 model as float32 operations between pairs of QuantizeLinear and DequantizeLinear, for other inference engines.

`edgegossip.int8` gives each sample its own scale; QDQ models have one, fixed, for every tensor. It is set from what the int8
model itself did with examples: the lowest and the highest value (their means over samples cost a point of accuracy). Weights
have the scales that our kernels give them, one an output channel, so their int8 values are the same. The scheme is that of Jacob
et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only inference".
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.int8 import layers
from edgegossip.int8.functional import quantise
from edgegossip.int8.norms import EPSILON, chunks_of, range_factor
from edgegossip.int8.tensor import QuantisedTensor
from edgegossip.types import LocalError

_LOW, _HIGH = -128, 127
_WEIGHT_HIGH = 127.0
_LEAST_SCALE = 1e-30


@dataclass(slots=True)
class Range:
    """Lowest and highest value of a tensor in all samples seen, 0 among them."""

    low: float = 0.0
    high: float = 0.0

    def see(self, x: Tensor) -> None:
        """Count the samples of x in, as the int8 model quantises them."""
        q = quantise(x.detach())
        self.low = min(self.low, float((q.scale * (_LOW - q.zero)).min()))
        self.high = max(self.high, float((q.scale * (_HIGH - q.zero)).max()))

    def scale_and_zero(self) -> tuple[float, int]:
        scale = max((self.high - self.low) / (_HIGH - _LOW), _LEAST_SCALE)
        return scale, min(_HIGH, max(_LOW, round(_LOW - self.low / scale)))


@dataclass(slots=True)
class _Seen:
    taken: Range
    given: Range | None  # None: the layer gives float32


def qdq_twin(model: nn.Module, examples: Iterable[Tensor]) -> nn.Module:
    """A copy of a converted `model` with QDQ pairs where int8 values flow, in evaluation mode; it is for tracing and takes no
    gradients. `examples`: batches of its inputs. Raises LocalError when the model has no int8 layer or no example came."""
    seen = _ranges(model, examples)
    twin = copy.deepcopy(model).eval()
    for name, found in seen.items():
        layer = twin.get_submodule(name)
        stand_in = _QdqLayer(layer, found)
        if not name:
            return stand_in
        parent, _, key = name.rpartition(".")
        setattr(twin.get_submodule(parent), key, stand_in)
    return twin


def _ranges(model: nn.Module, examples: Iterable[Tensor]) -> dict[str, _Seen]:
    """What every int8 layer took and gave, by its name."""
    found: dict[str, _Seen] = {}
    hooks = []

    def watch(name: str) -> None:
        def look(_layer: nn.Module, taken: tuple[Tensor, ...], given: Tensor) -> None:
            of_layer = found.setdefault(name, _Seen(Range(), Range() if isinstance(given, QuantisedTensor) else None))
            if not isinstance(_layer, layers.Embedding):  # which takes ids
                x = taken[0]
                of_layer.taken.see(x.reshape(-1, x.shape[-1]) if x.dim() not in (2, 4) else x)
            if of_layer.given is not None:
                of_layer.given.see(given)

        hooks.append(model.get_submodule(name).register_forward_hook(look))

    for name, layer in model.named_modules():
        if type(layer).__module__ == layers.__name__:
            watch(name)
    if not hooks:
        raise LocalError("the model has no int8 layers: convert it first (edgegossip.int8.convert)")
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            for batch in examples:
                model(batch)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    if not found:
        raise LocalError("no examples came, of which the scales could be made")
    return found


class _Pair(nn.Module):
    """QuantizeLinear and DequantizeLinear of a tensor, once: what comes from such a pair goes through as it is."""

    def __init__(self, values: Range) -> None:
        super().__init__()
        self.scale, self.zero = values.scale_and_zero()

    def forward(self, x: Tensor) -> Tensor:
        if getattr(x, "_is_qdq", False):
            return x
        y: Any = torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, _LOW, _HIGH)
        y._is_qdq = True
        return y


def _range_evonorm(layer: layers.RangeEvoNorm, y: Tensor) -> Tensor:
    """See `norms.RangeEvoNorm`. The sizes of a map are numbers here, so that a trace has no arithmetic on shapes."""
    channels, height, width = (int(size) for size in y.shape[1:])
    chunks, wide = chunks_of(height * width), (1, channels, 1, 1)
    grouped = y.reshape(-1, layer.groups, channels // layer.groups, chunks, height * width // chunks)
    spread = (grouped.amax((2, 4)) - grouped.amin((2, 4))).mean(2)
    inverse = 1.0 / (spread * range_factor(grouped.shape[2] * grouped.shape[4]) + EPSILON)
    by_channel = inverse.reshape(-1, layer.groups, 1) * layer.gamma.reshape(layer.groups, -1)
    activated = y * F.hardsigmoid(layer.v.reshape(wide) * y)
    return activated * by_channel.reshape(-1, *wide[1:]) + layer.beta.reshape(wide)


class _QdqLayer(nn.Module):
    """One layer in float32 between pairs."""

    weight_scale: Tensor
    weight_zero: Tensor

    def __init__(self, layer: nn.Module, seen: _Seen) -> None:
        super().__init__()
        self.layer, self.taken = layer, _Pair(seen.taken)
        self.given = None if seen.given is None else _Pair(seen.given)
        if isinstance(layer, (layers.Conv2d, layers.Linear)):
            largest = layer.weight.detach().abs().flatten(1).amax(1)
            self.register_buffer("weight_scale", (largest / _WEIGHT_HIGH).clamp_min(_LEAST_SCALE))
            self.register_buffer("weight_zero", torch.zeros(len(largest), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, layers.Embedding):
            assert self.given is not None
            y = F.embedding(x, self.given(self.layer.weight))
            y._is_qdq = True  # type: ignore[attr-defined]
            return y
        y = self._compute(self.taken(x))
        return y if self.given is None else self.given(y)

    def _compute(self, x: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, (layers.Conv2d, layers.Linear)):
            weight = torch.fake_quantize_per_channel_affine(
                layer.weight, self.weight_scale, self.weight_zero, 0, _LOW, _HIGH
            )
            if isinstance(layer, layers.Linear):
                return F.linear(x, weight, layer.bias)
            return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding, groups=layer.groups)
        if isinstance(layer, layers.ReLU):
            return F.relu(x)
        if isinstance(layer, layers.RangeEvoNorm):
            return _range_evonorm(layer, x)
        plain = type(layer).__mro__[1]  # the float32 class that the int8 one is made of
        y: Tensor = plain.forward(layer, x)  # type: ignore[attr-defined]
        return y
