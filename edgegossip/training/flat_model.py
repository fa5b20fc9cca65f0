"""A torch module whose tensors all lie in one flat float32 vector that torch and numpy share.

Codecs and algorithms see a model as float32[n] in the order of its `Layout`; the module computes on views into the
very same memory, so handing a model over costs no copy. Gradients lie in a second such vector.
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
    numpy. Keep to in-place changes of the tensors: assigning a new one (`p.data = ...`, `p.grad = None`) breaks the
    sharing."""

    def __init__(self, module: nn.Module, layout: Layout | None = None) -> None:
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
        self._point(module)
        self._variances = [b for n, b in module.named_buffers() if n.rpartition(".")[2] == "running_var"]

    def _point(self, module: nn.Module) -> None:
        offsets = {t.name: int(o) for t, o in zip(self.layout.tensors, self.layout.offsets, strict=False)}
        for name, tensor, trainable in _tensors(module):
            start = offsets[name]
            view = self.vec[start : start + tensor.numel()].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            if trainable:
                tensor.grad = self.grad[start : start + tensor.numel()].view(tensor.shape)

    def load(self, x: Vec) -> None:
        """Set every value from x, float32[n] (one copy). Raises LocalError for another shape or type.

        Mixing lossily coded models can push a small running variance below zero, where batch normalisation has no
        meaning: it is raised to zero here."""
        self.layout.check(x)
        self.array[...] = x
        for variance in self._variances:
            variance.clamp_(min=0.0)

    def zero_grad(self) -> None:
        """Zero gradients in place; the module's own zero_grad would drop the views."""
        self.grad.zero_()


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
