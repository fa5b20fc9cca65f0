"""The networks that are compared, and one training step of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgegossip import int8, memory
from edgegossip.recipe import ModelSection, parse_value
from edgegossip.training import models
from edgegossip.training.model import MICRO_BATCH
from edgegossip.training.workload import channels_last, micro_batches

INPUT, CLASSES = (3, 32, 32), 10
# Each fp32 variant is torch's own, channels last, the norm as its name says.
LOW = "int8-low"  # int8, a few examples at a time
VARIANTS = {"int8": "range-evonorm", LOW: "range-evonorm", "batchnorm": "batchnorm", "evonorm-s0": "evonorm-s0"}


@dataclass(frozen=True, slots=True)
class Training:
    """A model, its optimiser and one batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    labels: Tensor
    at_a_time: int  # examples

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.inputs), self.labels)

    def _add_gradient(self, part: slice) -> None:
        loss = F.cross_entropy(self.model(self.inputs[part]), self.labels[part], reduction="sum")
        (loss / len(self.labels)).backward()

    def step(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad()
        for part in micro_batches(len(self.labels), self.at_a_time):
            self._add_gradient(part)
            if self.at_a_time < len(self.labels):
                memory.trim_heap()
        self.optimizer.step()


def section_of(model: str, variant: str = "int8") -> ModelSection:
    """Of NAME or NAME:KEY=VALUE, such as mlp:hidden=[512,1024]; more pairs follow after a
    semicolon. Raises ConfigError."""
    name, _, pairs = model.partition(":")
    parted = (pair.partition("=") for pair in pairs.split(";") if pair)
    params = {key.strip(): parse_value(value) for key, _, value in parted}
    section = ModelSection(name=name, norm=VARIANTS[variant], params=params)
    models.check(section)
    return section


def training_of(variant: str, model: str, batch: int, dw: int) -> Training:
    """The same weights, batch and optimiser (SGD with Nesterov momentum) for every variant.
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
    return Training(network, optimizer, channels_last(inputs), labels, at_a_time)


def saved_bytes(training: Training) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, parameters left out;
    memory counted once."""
    known = {p.untyped_storage().data_ptr() for p in training.model.parameters()}
    known.add(training.inputs.untyped_storage().data_ptr())
    found: dict[int, tuple[int, Tensor]] = {}  # the tensors are held, so that no address is used twice

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = (storage.nbytes(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = training.loss()
    size = sum(size for size, _ in found.values())
    loss.backward()
    return size


def steps(trainings: dict[str, Training]) -> dict[str, Callable[[], None]]:
    return {name: training.step for name, training in trainings.items()}
