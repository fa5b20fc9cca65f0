"""TorchWorkload: the package's own workload, SGD on a torch model over this board's share of a data set."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from edgegossip import heap
from edgegossip.agreement import Agreement
from edgegossip.layout import Layout
from edgegossip.profiling.records import STAGES
from edgegossip.recipe import Recipe
from edgegossip.training import micro_batches, models
from edgegossip.training.batches import Augmentation, Normaliser, Sampler
from edgegossip.training.check import check_augmentation
from edgegossip.training.data import DataSet, Description, describe, open_data
from edgegossip.training.flat_model import FlatModel, layout_of_module
from edgegossip.training.names import call_own, is_own
from edgegossip.training.optimizer import FlatSgd
from edgegossip.training.partition import partition
from edgegossip.training.rng import Purpose, words
from edgegossip.training.schedule import learning_rate
from edgegossip.types import ConfigError, LocalError, LocalUpdate, Metrics, Round, Vec

_EVALUATION_BATCH = {"normal": 250, "low": 25}  # examples at a time, by training.memory
_FORWARD, _BACKWARD, _OPTIMISER = range(len(STAGES))


def layout_of(recipe: Recipe) -> Layout:
    """Layout of the recipe's model. A user's own model is built for real: it may not know the meta device."""
    about = describe(recipe.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a board says it when it builds the model
        if is_own(recipe.model.name):
            return layout_of_module(_build(recipe, about))
        with torch.device("meta"):
            return layout_of_module(_module(recipe, about))


def initial_model(recipe: Recipe) -> tuple[Layout, Vec]:
    """Layout and first vector, float32[n], of the recipe's model; the same that `TorchWorkload.initial` gives."""
    flat = FlatModel(_build(recipe, describe(recipe.data), recipe.run.seed))
    return flat.layout, flat.array


def _module(recipe: Recipe, about: Description) -> nn.Module:
    """The recipe's model with the layers that its precision asks for. A model of the package is built with Range EvoNorm
    where int8 would replace its norm, so that what surrounds the norm suits it too."""
    section, training = recipe.model, recipe.training
    if training.precision != "int8":
        module = models.build(section, about.shape, about.classes)
        if training.memory == "low":
            micro_batches.check_independent(module)
        return module
    from edgegossip import int8
    from edgegossip.int8.norms import RangeEvoNorm

    norm = section.norm
    if not is_own(section.name) and norm in ("batchnorm", "evonorm-s0"):
        section = replace(section, norm="range-evonorm")
    module = models.build(section, about.shape, about.classes)
    if norm != section.norm and any(isinstance(m, RangeEvoNorm) for m in module.modules()):
        notice = f'training.precision = "int8": model.norm = "{norm}" became "range-evonorm"'
        warnings.warn(notice, int8.ConversionNotice, stacklevel=2)
    module = int8.convert(module, training.dw)
    if training.memory == "low":
        micro_batches.check_independent(module)
    return module


def _build(recipe: Recipe, about: Description, seed: int = 0) -> nn.Module:
    """A freshly initialised model; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _module(recipe, about)


def module_with(recipe: Recipe, about: Description, x: Vec) -> nn.Module:
    """The recipe's model in evaluation mode, with the values x, float32[n]."""
    model = FlatModel(_build(recipe, about))
    model.load(x)
    return model.module.eval()


def as_taken(inputs: NDArray[Any], normalise: Normaliser) -> torch.Tensor:
    """Stored inputs [batch, *shape] as a model takes them."""
    batch = normalise(inputs)
    return channels_last(batch) if batch.dim() == 4 else batch  # convolutions on a CPU are 1.4 to 1.7 times as fast so


def _prepare(recipe: Recipe, data: DataSet | None) -> DataSet:
    """Sets torch's threads and checks what a recipe names; opens its data set unless it is given."""
    torch.set_num_threads(recipe.run.threads)
    models.check(recipe.model)
    data = open_data(recipe.data) if data is None else data
    check_augmentation(recipe, data.about)
    return data


@dataclass(frozen=True, slots=True, eq=False)
class Equipment:
    """What the boards of one process can share, because each call loads the model anew and nothing of a board stays in
    it: the module with its gradients, and the test set as stored."""

    model: FlatModel
    test_inputs: NDArray[Any]
    test_labels: torch.Tensor
    normalise: Normaliser

    @classmethod
    def of(cls, recipe: Recipe, data: DataSet) -> Equipment:
        every = np.arange(len(data.test), dtype=np.int64)
        labels = torch.from_numpy(data.test.labels)
        model = FlatModel(_build(recipe, data.about), channels_last=recipe.training.precision != "int8")
        return cls(model, data.test.inputs.take(every), labels, Normaliser.of(data.about))


def _minus(values: Vec, x: Vec) -> Vec:
    """values - x, in the memory of `values`."""
    return np.subtract(values, x, out=values)


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """The same values, [n, channels, height, width], with the channels next to each other in memory.

    Not `contiguous(memory_format=torch.channels_last)`: with one channel that changes nothing, because both orders are
    the same memory, and torch then takes the slow kernels all the way through the network. The strides tell it."""
    n, channels, height, width = images.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return torch.empty_strided((n, channels, height, width), strides, dtype=images.dtype).copy_(images)


class TorchWorkload:
    """See `base.Workload`. The momentum is this board's own and stays with it from round to round."""

    def __init__(
        self,
        recipe: Recipe,
        node_index: int,
        data: DataSet,
        share: NDArray[np.int64] | None = None,
        equipment: Equipment | None = None,
    ) -> None:
        """Keeps node_index's share of data.train and all of data.test in memory, as stored. `share` and `equipment` are
        given when other boards of the same recipe live in this process."""
        settings = recipe.training
        self._recipe, self._node, self._about = recipe, node_index, data.about
        shared = Equipment.of(recipe, data) if equipment is None else equipment
        self._model, self._normalise = shared.model, shared.normalise
        self._test_inputs, self._test_labels = shared.test_inputs, shared.test_labels
        self._sgd = FlatSgd(
            self._model.layout.trainable_size, settings.momentum, settings.nesterov, settings.weight_decay
        )
        if share is None:
            share = partition(data.train.labels, recipe)[node_index]
        self._inputs, self._labels = data.train.inputs.take(share), torch.from_numpy(data.train.labels[share])
        self._sampler = Sampler(len(share), settings.batch_size, recipe.run.seed, node_index)
        self._augmentation = Augmentation(recipe.run.seed, node_index) if recipe.data.augment else None
        self._stages_ns = [0] * len(STAGES)

    @classmethod
    def build(cls, recipe: Recipe, node_index: int) -> TorchWorkload:
        if not 0 <= node_index < recipe.run.nodes:
            raise ConfigError(f"board {node_index} does not exist: boards are 0 to {recipe.run.nodes - 1}")
        return cls(recipe, node_index, _prepare(recipe, None))

    @classmethod
    def build_evaluator(cls, recipe: Recipe) -> TorchWorkload:
        """One that only evaluates: it has next to no training data."""
        return cls(recipe, 0, _prepare(recipe, None), np.zeros(1, np.int64))

    @classmethod
    def build_all(cls, recipe: Recipe, data: DataSet | None = None) -> list[TorchWorkload]:
        """Every board of the recipe in this process, each equal to what `build` makes. They share one module and one
        test set, so only one of them can compute at a time. `data` is what `open_data(recipe.data)` gave."""
        data = _prepare(recipe, data)
        shared = Equipment.of(recipe, data)
        shares = partition(data.train.labels, recipe)
        return [cls(recipe, k, data, share, shared) for k, share in enumerate(shares)]

    @property
    def layout(self) -> Layout:
        return self._model.layout

    def initial(self, seed: int) -> Vec:
        return FlatModel(_build(self._recipe, self._about, seed), self.layout).array

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        recipe, model = self._recipe, self._model
        self._stages_ns = [0] * len(STAGES)
        steps, lr = recipe.training.local_steps, learning_rate(recipe.training, round, recipe.run.rounds)
        model.load(x)
        if not model.module.training:  # asking every layer costs as much as a small one
            model.module.train()
        with torch.random.fork_rng(devices=[]):  # for layers that draw, such as dropout
            # not torch.manual_seed, which also queues a seed for devices that are not there, each with a stack trace: 2 ms
            torch.default_generator.manual_seed(
                int(words(recipe.run.seed, Purpose.TORCH, 1, self._node, round)[0] >> np.uint64(1))
            )
            losses = [self._step(round * steps + k, round, lr) for k in range(steps)]
        return LocalUpdate(
            delta=_minus(model.values(), x),
            lr=lr,
            loss=float(np.mean(losses)),
            examples=steps * self._sampler.batch_size,
            steps=steps,
            stages_s={stage: ns / 1e9 for stage, ns in zip(STAGES, self._stages_ns, strict=True)},
        )

    def _step(self, step: int, round: Round, lr: float) -> float:
        """One optimiser step on the flat model; its loss before the step."""
        chosen = self._sampler.batch(step)
        inputs = self._inputs[chosen]
        if self._augmentation:
            inputs = self._augmentation(inputs, step)
        labels = self._labels[torch.from_numpy(chosen)]
        self._model.zero_grad()
        low = self._recipe.training.memory == "low"
        at_a_time = micro_batches.EXAMPLES if low else len(chosen)
        value = 0.0
        for part in micro_batches.parts(len(chosen), at_a_time):
            value += self._gradient(inputs[part], labels[part], len(chosen))
            if low:
                heap.give_back()
        if not np.isfinite(value):
            raise LocalError(
                f"board {self._node}: the training loss became {value} in round {round}, at learning rate {lr:g}; "
                "try a smaller training.lr"
            )
        began_ns = perf_counter_ns()
        self._sgd.step(self._model.trainable, self._model.grad, lr)
        self._stages_ns[_OPTIMISER] += perf_counter_ns() - began_ns
        return value

    def _gradient(self, inputs: NDArray[Any], labels: torch.Tensor, batch: int) -> float:
        """Adds what these examples give to the gradient of the mean loss over `batch`; their part of that loss."""
        began_ns = perf_counter_ns()
        loss = F.cross_entropy(self._forward(inputs), labels)
        if len(labels) != batch:
            loss = loss * (len(labels) / batch)
        value = float(loss.detach())
        forward_ns = perf_counter_ns()
        if np.isfinite(value):
            loss.backward()
        self._stages_ns[_FORWARD] += forward_ns - began_ns
        self._stages_ns[_BACKWARD] += perf_counter_ns() - forward_ns
        return value

    def _forward(self, inputs: NDArray[Any]) -> torch.Tensor:
        """Stored inputs [batch, *shape] -> logits float32[batch, classes]."""
        batch = as_taken(inputs, self._normalise)
        name, module = self._recipe.model.name, self._model.module
        logits: torch.Tensor = call_own(name, module, batch) if is_own(name) else module(batch)
        if logits.shape != (len(batch), self._about.classes):
            expected = (len(batch), self._about.classes)
            raise LocalError(f"model {name} gave outputs of shape {tuple(logits.shape)}; expected {expected}")
        return logits

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        count = len(self._test_labels) if examples is None else min(examples, len(self._test_labels))
        if count < 1:
            raise LocalError("an evaluation needs at least one example")
        self._model.load(x)
        self._model.module.eval()
        loss, right = 0.0, 0
        with torch.inference_mode():
            for part in micro_batches.parts(count, _EVALUATION_BATCH[self._recipe.training.memory]):
                logits, labels = self._forward(self._test_inputs[part]), self._test_labels[part]
                loss += float(F.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(1) == labels).sum())
        return Metrics(loss / count, right / count, count)

    def agreement(self) -> Agreement:
        """See `base.Workload`."""
        layout = self.layout
        return Agreement({"layout": f"{layout.hash:016x}", "values": layout.size})

    def over(self, x: Vec) -> None:
        """See `base.Workload`: nothing is left to do."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {"momentum": self._model.in_order(self._sgd.momentum.numpy())}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Raises LocalError unless `snapshot` is one that this workload's `snapshot` could have given."""
        momentum = snapshot.get("momentum")
        mine = self._sgd.momentum.numpy()
        if momentum is None or momentum.shape != mine.shape or momentum.dtype != mine.dtype:
            raise LocalError("the snapshot is not one of this workload: its momentum is missing or of another size")
        self._model.out_of_order(momentum, mine)
