"""A torch module whose tensors all lie in one flat float32 vector that torch and numpy share.

Codecs and algorithms see a model as float32[n] in the order of its `Layout`; the module computes on views into the
very same memory, so handing a model over costs no copy. Gradients lie in a second such vector.

With `channels_last` the weights of convolutions lie as torch's channels-last kernels take them, which else convert them forward
and backward in every step. The vectors are then in an order of their own, and `values`, `in_order` and `out_of_order` give and
take the layout's: one copy a local update in place of several a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalError, Vec


def layout_of_module(module: nn.Module) -> Layout:
    """Layout of a module: trainable parameters, then frozen parameters and floating-point buffers.

    Integer buffers (batch norm's num_batches_tracked) are no part of the vector. Raises LocalError for a tensor of
    another floating-point type than float32 or a module without trainable parameters."""
    return Layout.of(TensorSpec(name, tuple(t.shape), trainable) for name, t, trainable in _tensors(module))


class FlatModel:
    """Re-points every parameter, gradient and float buffer of `module` into flat vectors.

    `vec` float32[layout.size] and `grad` float32[layout.trainable_size] are the flat tensors; `array` is `vec` as
    numpy, all in the layout's order without `channels_last`. Keep to in-place changes of the tensors: assigning a new one
    (`p.data = ...`, `p.grad = None`) breaks the sharing."""

    def __init__(self, module: nn.Module, layout: Layout | None = None, *, channels_last: bool = False) -> None:
        """Takes the module's present values over. Raises LocalError if `layout` is not the module's own."""
        own = layout_of_module(module)
        if layout is not None and layout.hash != own.hash:
            raise LocalError("the layout does not belong to this model")
        self.module = module
        self.layout = own
        self.vec = torch.empty(own.size, dtype=torch.float32)
        self.grad = torch.zeros(own.trainable_size, dtype=torch.float32)
        self.array: Vec = self.vec.numpy()
        self.trainable = self.vec[: own.trainable_size]
        self._turned: list[tuple[int, tuple[int, ...]]] = []  # where a weight with its channels last begins, its shape
        self._point(module, _convolution_weights(module) if channels_last else frozenset())
        self._variances = [b for n, b in module.named_buffers() if n.rpartition(".")[2] == "running_var"]

    def _point(self, module: nn.Module, turned: frozenset[str]) -> None:
        offsets = {t.name: int(o) for t, o in zip(self.layout.tensors, self.layout.offsets, strict=False)}
        for name, tensor, trainable in _tensors(module):
            start = offsets[name]
            if name in turned:
                self._turned.append((start, tuple(tensor.shape)))
            view = self._view(self.vec, start, tensor, name in turned)
            view.copy_(tensor.detach())
            tensor.data = view
            if trainable:
                tensor.grad = self._view(self.grad, start, tensor, name in turned)

    @staticmethod
    def _view(vector: Tensor, start: int, like: Tensor, turned: bool) -> Tensor:
        """The part of `vector` that holds a tensor of the shape of `like`, with its channels last if `turned`."""
        part = vector[start : start + like.numel()]
        if not turned:
            return part.view(like.shape)
        n, channels, height, width = like.shape
        return part.view(n, height, width, channels).permute(0, 3, 1, 2)

    def load(self, x: Vec) -> None:
        """Set every value from x, float32[n] (one copy). Raises LocalError for another shape or type.

        Mixing lossily coded models can push a small running variance below zero, where batch normalisation has no
        meaning: it is raised to zero here."""
        self.layout.check(x)
        self.array[...] = x
        self._turn(x, self.array, back=False)
        for variance in self._variances:
            variance.clamp_(min=0.0)

    def values(self) -> Vec:
        """Every value, float32[n] in the layout's order, as a new array."""
        return self.in_order(self.array)

    def in_order(self, vector: Vec) -> Vec:
        """A copy of `vector`, which lies as `vec` or `trainable` do, in the layout's order."""
        copy = vector.copy()
        if copy.size:
            self._turn(vector, copy, back=True)
        return copy

    def out_of_order(self, vector: Vec, into: Vec) -> None:
        """The inverse: `vector`, in the layout's order, goes to `into`."""
        into[...] = vector
        if into.size:
            self._turn(vector, into, back=False)

    def _turn(self, source: Vec, target: Vec, *, back: bool) -> None:
        """Copy the turned weights from the layout's order, or `back` to it."""
        for start, (n, channels, height, width) in self._turned:
            part = slice(start, start + n * channels * height * width)
            plain, turned = (n, channels, height * width), (n, height * width, channels)
            into = target[part].reshape(plain if back else turned)
            into[...] = source[part].reshape(turned if back else plain).transpose(0, 2, 1)

    def zero_grad(self) -> None:
        """Zero gradients in place; the module's own zero_grad would drop the views."""
        self.grad.zero_()


def _convolution_weights(module: nn.Module) -> frozenset[str]:
    """Names of the weights that channels-last kernels want turned. Of torch's own convolutions only: a subclass may look at its
    weight as if it lay in its own order."""
    found = ((f"{name}.weight".lstrip("."), m.weight) for name, m in module.named_modules() if type(m) is nn.Conv2d)
    return frozenset(name for name, w in found if w.shape[1] > 1 and w.shape[2] * w.shape[3] > 1)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor, bool]]:
    """(name, tensor, trainable) of everything that travels; tensors used twice are listed once."""
    found: list[tuple[str, Tensor, bool]] = [(n, p, p.requires_grad) for n, p in module.named_parameters()]
    found += [(n, b, False) for n, b in module.named_buffers() if b.is_floating_point()]
    for name, tensor, _ in found:
        if tensor.dtype != torch.float32:
            raise LocalError(f"tensor {name} is {tensor.dtype}; models are trained in float32")
    if not any(trainable for _, _, trainable in found):
        raise LocalError("the model has no trainable parameter")
    return found
