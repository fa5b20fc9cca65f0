"""A convolution and the norm behind it, computed in one step where nobody asks for what is between
them: sample by sample, while the convolution's result is in the cache, and with one step of the
backward pass. The bits are those of the two layers."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from edgegossip.int8 import layers, norm


def normed(conv: nn.Module, after: nn.Module, x: Tensor) -> Tensor:
    """after(conv(x)), of any two modules."""
    if (
        type(conv) is layers.Conv2d
        and type(after) is layers.RangeEvoNorm
        and torch.is_grad_enabled()
        and _is_bare(conv)
        and _is_bare(after)
        and not torch_module._has_any_global_hook()
    ):
        return norm.conv_range_evonorm(x, conv.convolution(), after.parameters_of(), after.groups)
    made: Tensor = after(conv(x))
    return made


def _is_bare(module: nn.Module) -> bool:
    """Whether a call of the module is a call of its class's `forward`, and nothing else."""
    return not (
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or module._compiled_call_impl
        or "forward" in module.__dict__
    )


class Sequential(nn.Sequential):
    """As nn.Sequential, with `normed` for neighbours."""

    def forward(self, input: Any) -> Any:
        x, conv = input, None
        for module in self._modules.values():
            if type(module) is layers.Conv2d:
                x, conv = x if conv is None else conv(x), module
            else:
                x, conv = module(x) if conv is None else normed(conv, module, x), None
        return x if conv is None else conv(x)


def join(model: nn.Module) -> None:
    """Every nn.Sequential that has such neighbours becomes a `Sequential`."""
    for module in model.modules():
        if type(module) is nn.Sequential:
            parts = list(module._modules.values())
            pairs = itertools.pairwise(parts)
            if any(type(a) is layers.Conv2d and type(b) is layers.RangeEvoNorm for a, b in pairs):
                module.__class__ = Sequential
