"""An int8 model as float32 operations between pairs of QuantizeLinear and DequantizeLinear, for
other inference engines.

`edgegossip.int8` gives each sample its own scale; QDQ models have one, fixed, for every tensor. It
is set from what the int8 model itself did with examples: the lowest and the highest value (their
means over samples cost a point of accuracy). Weights have the scales that our kernels give them,
one an output channel, so their int8 values are the same. The scheme is that of Jacob et al. 2018,
"Quantization and training of neural networks for efficient integer-arithmetic-only inference".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip.int8 import layers
from edgegossip.int8.norms import EPSILON, chunks_of, range_factor
from edgegossip.int8.tensor import QuantisedTensor, quantise
from edgegossip.types import UsageError

_LOW, _HIGH = -128, 127
_WEIGHT_HIGH = 127.0
_LEAST_SCALE = 1e-30


@dataclass(slots=True)
class TensorRange:
    """Holds the lowest and the highest value of a tensor in all samples seen, 0 among them."""

    low: float = 0.0
    high: float = 0.0

    def see(self, x: Tensor) -> None:
        """Count the samples of x in, as the int8 model quantises them."""
        q = quantise(x.detach())
        self.low = min(self.low, float((q.scale * (_LOW - q.zero)).min()))
        self.high = max(self.high, float((q.scale * (_HIGH - q.zero)).max()))

    def scale_and_zero(self) -> tuple[float, int]:
        """Return the scale and the zero point that spread the int8 values over this range."""
        scale = max((self.high - self.low) / (_HIGH - _LOW), _LEAST_SCALE)
        return scale, min(_HIGH, max(_LOW, round(_LOW - self.low / scale)))


@dataclass(slots=True)
class _CallRange:
    taken: TensorRange
    given: TensorRange | None  # None: the layer gives float32


def qdq_model(model: nn.Module, examples: Iterable[Tensor]) -> nn.Module:
    """Copy a converted `model`, with QDQ pairs where int8 values flow, in evaluation mode; the copy
    is for tracing and takes no gradients. A layer that a pass through the model calls several times
    has pairs of its own for each call.

    `examples`: batches of its inputs, each [batch, ...]. Raises UsageError when the model has no
    int8 layer or no example came, and the copy does where a pass calls a layer more often than the
    examples' passes did."""
    seen = _ranges(model, examples)
    qdq = copy.deepcopy(model).eval()
    for name in seen:
        _QdqLayer.take_over(qdq.get_submodule(name), name, seen[name])
    qdq.register_forward_pre_hook(_begin)
    qdq.register_forward_hook(_end, always_call=True)
    return qdq


def _ranges(model: nn.Module, examples: Iterable[Tensor]) -> dict[str, list[_CallRange]]:
    """What every int8 layer took and gave in each call of a pass, by its (first) name. [] of a
    layer that nobody called."""
    found: dict[str, list[_CallRange]] = {name: [] for name, layer in model.named_modules() if layers.is_int8(layer)}
    for name in found:
        if isinstance(model.get_submodule(name), layers.DotProductAttention | layers.MultiheadAttention):
            raise UsageError(
                f"{name or type(model).__name__}: attention has no QDQ form, because each query's probabilities have a "
                "scale of their own; export the model in fp32"
            )
    if not found:
        raise UsageError("the model has no int8 layers: convert it first (edgegossip.int8.convert)")
    calls = dict.fromkeys(found, 0)  # in this pass
    hooks = [model.get_submodule(name).register_forward_hook(_watching(name, found[name], calls)) for name in found]
    modes = [(module, module.training) for module in model.modules()]
    some = False
    try:
        model.eval()
        with torch.no_grad():
            for batch in examples:
                _check_batch(batch)
                calls.update(dict.fromkeys(found, 0))
                model(batch)
                some = True
    finally:
        for module, mode in modes:  # each its own: parts may be frozen in evaluation mode
            module.training = mode
        for hook in hooks:
            hook.remove()
    if not some:
        raise UsageError("no examples came, of which the scales could be made")
    return found


def _check_batch(batch: Any) -> None:
    if not isinstance(batch, Tensor):
        kind = type(batch).__name__
        raise UsageError(f"a batch of examples is a tensor of inputs, [batch, ...], not a {kind}: leave out labels")


def _watching(
    name: str, sites: list[_CallRange], calls: dict[str, int]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    """A hook that counts what a layer takes and gives into `sites`, one an nth call of a pass."""

    def look(layer: nn.Module, taken: tuple[Tensor, ...], given: Tensor) -> None:
        is_table = isinstance(layer, layers.Embedding)
        nth = 0 if is_table else calls[name]  # one table of values serves all calls
        calls[name] += 1
        if nth == len(sites):
            sites.append(_CallRange(TensorRange(), TensorRange() if isinstance(given, QuantisedTensor) else None))
        site = sites[nth]
        if not is_table:  # which takes ids
            x = taken[0]
            site.taken.see(x if x.dim() in (2, 3, 4) else x.reshape(-1, x.shape[-1]))
        if site.given is not None:
            site.given.see(given)

    return look


class _Pair(nn.Module):
    """QuantizeLinear and DequantizeLinear of a tensor, once: what comes from such a pair goes
    through as it is."""

    def __init__(self, values: TensorRange) -> None:
        super().__init__()
        self.scale, self.zero = values.scale_and_zero()

    def forward(self, x: Tensor) -> Tensor:
        if getattr(x, "_qdq_version", None) == _version(x):
            return x
        return _marked(torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, _LOW, _HIGH))


def _version(x: Tensor) -> int:
    """Of its values, which what works in place (`nn.ReLU6(inplace=True)`) changes. Tensors of
    inference mode have none."""
    return 0 if x.is_inference() else x._version


def _marked(y: Tensor) -> Tensor:
    """Mark y as one that came from a pair."""
    y._qdq_version = _version(y)  # type: ignore[attr-defined]
    return y


def _range_evonorm(layer: Any, y: Tensor) -> Tensor:
    """See `norms.RangeEvoNorm`. The sizes of a map are numbers here, so that a trace has no
    arithmetic on shapes."""
    channels, height, width = (int(size) for size in y.shape[1:])
    chunks, wide = chunks_of(height * width), (1, channels, 1, 1)
    grouped = y.reshape(-1, layer.groups, channels // layer.groups, chunks, height * width // chunks)
    spread = (grouped.amax((2, 4)) - grouped.amin((2, 4))).mean(2)
    inverse = 1.0 / (spread * range_factor(grouped.shape[2] * grouped.shape[4]) + EPSILON)
    by_channel = inverse.reshape(-1, layer.groups, 1) * layer.gamma.reshape(layer.groups, -1)
    activated = y * F.hardsigmoid(layer.v.reshape(wide) * y)
    made: Tensor = activated * by_channel.reshape(-1, *wide[1:]) + layer.beta.reshape(wide)
    return made


class _CallSite(nn.Module):
    """The pairs of one call."""

    def __init__(self, seen: _CallRange) -> None:
        super().__init__()
        self.taken = _Pair(seen.taken)
        self.given = None if seen.given is None else _Pair(seen.given)


class _QdqLayer(nn.Module):
    """One layer in float32 between pairs."""

    name: str
    kind: type[nn.Module]  # what the layer was
    sites: nn.ModuleList  # of _CallSite, by call
    calls: int | None = None  # in this pass; None outside of one
    weight: Tensor
    bias: Tensor | None
    weight_scale: Tensor
    weight_zero: Tensor

    @staticmethod
    def take_over(layer: nn.Module, name: str, seen: list[_CallRange]) -> None:
        """Make a _QdqLayer of `layer`. The object stays, so everything that has it has the new
        layer: other names in the model, other modules, plain lists."""
        kind: Any = type(layer)
        layer.__class__ = _QdqLayer
        assert isinstance(layer, _QdqLayer)
        layer.name, layer.kind, layer.sites = name, kind, nn.ModuleList(map(_CallSite, seen)).eval()
        if issubclass(kind, (layers.Conv2d, layers.Linear)):
            largest = layer.weight.detach().abs().flatten(1).amax(1)
            layer.register_buffer("weight_scale", (largest / _WEIGHT_HIGH).clamp_min(_LEAST_SCALE))
            layer.register_buffer("weight_zero", torch.zeros(len(largest), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        site = self._site()
        if issubclass(self.kind, layers.Embedding):
            return _marked(F.embedding(x, site.given(self.weight)))
        y = self._compute(site.taken(x))
        return y if site.given is None else site.given(y)

    def _site(self) -> Any:
        """The pairs of this call. Where only a part of the qdq runs, nobody knows which call it
        is."""
        nth = self.calls or 0
        if self.calls is not None and not issubclass(self.kind, layers.Embedding):
            self.calls += 1
        if nth >= len(self.sites):
            raise UsageError(
                f"layer {self.name!r} is called {nth + 1} times in a pass, and {len(self.sites)} times in those with the"
                " examples: a QDQ model takes one way through its layers, whatever the inputs"
            )
        if self.calls is None and len(self.sites) > 1:
            raise UsageError(
                f"layer {self.name!r} is called several times in a pass: call the whole QDQ model, not a part"
            )
        return self.sites[nth]

    def _compute(self, x: Tensor) -> Tensor:
        layer: Any = self
        if issubclass(self.kind, (layers.Conv2d, layers.Linear)):
            weight = torch.fake_quantize_per_channel_affine(
                self.weight, self.weight_scale, self.weight_zero, 0, _LOW, _HIGH
            )
            if issubclass(self.kind, layers.Linear):
                return F.linear(x, weight, self.bias)
            return F.conv2d(x, weight, self.bias, layer.stride, layer.padding, groups=layer.groups)
        if issubclass(self.kind, layers.ReLU):
            return F.relu(x)
        if issubclass(self.kind, layers.RangeEvoNorm):
            return _range_evonorm(layer, x)
        if issubclass(self.kind, layers.BatchNorm2d):
            running = layer.running_mean, layer.running_var
            return F.batch_norm(x, *running, self.weight, self.bias, layer.running_mean is None, 0.0, layer.eps)
        plain: Any = self.kind.__mro__[1]  # the float32 class that the int8 one is made of
        y: Tensor = plain.forward(layer, x)
        return y


def _begin(qdq: nn.Module, _inputs: object) -> None:
    _set_calls(qdq, 0)


def _end(qdq: nn.Module, _inputs: object, _output: object) -> None:
    _set_calls(qdq, None)


def _set_calls(qdq: nn.Module, calls: int | None) -> None:
    for layer in qdq.modules():
        if isinstance(layer, _QdqLayer):
            layer.calls = calls
