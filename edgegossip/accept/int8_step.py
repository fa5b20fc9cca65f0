"""One training step of a small network in int8 and in torch's fp32, and one large convolution: what
`accept` and the benchmark of int8 time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import int8, memory
from edgegossip.native import int8 as kernels
from edgegossip.recipe import ModelSection, parse_value
from edgegossip.training import models
from edgegossip.training.model import MICRO_BATCH
from edgegossip.training.workload import channels_last, micro_batches

INPUT, CLASSES = (3, 32, 32), 10
# Each fp32 variant is torch's own, channels last, the norm as its name says.
LOW = "int8-low"  # int8, a few examples at a time
VARIANTS = {"int8": "range-evonorm", LOW: "range-evonorm", "batchnorm": "batchnorm", "evonorm-s0": "evonorm-s0"}


@dataclass(frozen=True, slots=True)
class Int8Training:
    """Holds a model, its optimiser and one batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    labels: Tensor
    at_a_time: int  # examples

    def loss(self) -> Tensor:
        """Return the mean cross entropy of the batch."""
        return F.cross_entropy(self.model(self.inputs), self.labels)

    def _add_gradient(self, part: slice) -> None:
        loss = F.cross_entropy(self.model(self.inputs[part]), self.labels[part], reduction="sum")
        torch.autograd.backward(loss / len(self.labels))

    def step(self) -> None:
        """Do forward, backward and update."""
        self.optimizer.zero_grad()
        for part in micro_batches(len(self.labels), self.at_a_time):
            self._add_gradient(part)
            if self.at_a_time < len(self.labels):
                memory.trim_heap()
        self.optimizer.step()


def section_of(model: str, variant: str = "int8") -> ModelSection:
    """Return the section for NAME or NAME:KEY=VALUE, such as mlp:hidden=[512,1024]; more pairs
    follow after a semicolon. Raises ConfigError."""
    name, _, pairs = model.partition(":")
    parted = (pair.partition("=") for pair in pairs.split(";") if pair)
    params = {key.strip(): parse_value(value) for key, _, value in parted}
    section = ModelSection(name=name, norm=VARIANTS[variant], params=params)
    models.check(section)
    return section


def training_of(variant: str, model: str, batch: int, dw: int) -> Int8Training:
    """Return the same weights, batch and optimiser (SGD with Nesterov momentum) for every variant.
    `model`: as `section_of` takes it. Sets torch's random state."""
    torch.manual_seed(0)
    network = models.build(section_of(model, variant), INPUT, CLASSES)
    inputs, labels = torch.randn(batch, *INPUT), torch.randint(0, CLASSES, (batch,))
    if variant in ("int8", LOW):
        with warnings.catch_warnings():
            warnings.simplefilter("error", int8.ConversionNotice)
            network = int8.convert(network, dw)
    else:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(  # fused: the quickest that torch has
        network.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )
    at_a_time = MICRO_BATCH if variant == LOW else batch
    return Int8Training(network, optimizer, channels_last(inputs), labels, at_a_time)


def large_convolution(threads: int) -> tuple[Callable[[], None], float]:
    """Return a function that computes that convolution once, and its products."""
    shape = kernels.ConvShape(8 * threads, 16, 16, 128, 64, 3, 3, 1, 1, 1, 1, 1)
    size = shape.height * shape.width * shape.inputs
    x, weight = kernels.Maps.empty(shape.batch, size), np.ones(64 * 128 * 9, np.float32)
    kernels.quantise(np.linspace(-1, 1, shape.batch * size, dtype=np.float32), shape.batch, x)
    out = kernels.Maps.empty(shape.batch, 16 * 16 * 64)
    return lambda: kernels.conv(shape, x, weight, None, out, threads=threads), products_of(shape)


def products_of(s: kernels.ConvShape) -> float:
    """Return the products of a convolution of this shape."""
    return float(s.batch * s.out_height * s.out_width * s.outputs * (s.inputs // s.groups) * s.kernel_h * s.kernel_w)
