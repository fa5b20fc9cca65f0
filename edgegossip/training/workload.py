"""TorchWorkload: the package's own workload, local steps on a torch model over this board's share
of a data set.

A round is: the values that travel go into the module, the optimiser takes `training.local_steps`
steps on batches of the board's own examples, and what they changed goes out. The optimiser's state,
and whatever of the model does not travel, stay with the board from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from edgegossip import memory
from edgegossip.agreement import Agreement, difference, sums
from edgegossip.layout import Layout
from edgegossip.recipe import Recipe
from edgegossip.telemetry.records import STAGES
from edgegossip.training import device as devices
from edgegossip.training import models, tasks
from edgegossip.training import optimizer as optimizers
from edgegossip.training.base import KEPT, Workload, plugin_facts
from edgegossip.training.check import check_augmentation, task_of
from edgegossip.training.data import Board, DataSet, Description, Examples, boards_of, open_data
from edgegossip.training.data.doubts import doubts
from edgegossip.training.loader import DataLoader, Normalize, in_order, make_loader, shares_of
from edgegossip.training.model import MICRO_BATCH, Standardised, build, layer_over_batch, vector_of
from edgegossip.training.names import call_custom, is_custom_function
from edgegossip.training.rng import Purpose, words
from edgegossip.training.schedule import Plateau, learning_rate
from edgegossip.training.vector import ModelVector, plain_array, whole_state
from edgegossip.types import ConfigError, LocalUpdate, Metrics, Round, UsageError, Vec

_EVALUATION_BATCH, _IN_PARTS = 250, 25  # examples at a time; the less where memory is spared
_FORWARD, _BACKWARD, _OPTIMISER = range(len(STAGES))


def as_taken(inputs: NDArray[Any], normalise: Normalize) -> torch.Tensor:
    """Return stored inputs [batch, *shape] as a model takes them."""
    batch = normalise(inputs)
    return channels_last(batch) if batch.dim() == 4 else batch  # convolutions on a CPU are 1.4 to 1.7 times as fast so


def _prepare(recipe: Recipe, data: DataSet | None, board: Board | None = None) -> DataSet:
    """Sets torch's threads and checks what a recipe names; opens its data set, as `board` has it,
    unless it is given."""
    torch.set_num_threads(recipe.run.threads)
    models.check(recipe.model)
    data = open_data(recipe.data, board) if data is None else data
    check_augmentation(recipe, data.about)
    return data


@dataclass(slots=True, eq=False)
class _SharedModule:
    """Holds what the boards of a lane share: the module with its gradients. Each call loads
    the model anew; of what does not travel, `holder` has its own in the module, and every other
    board keeps its own aside."""

    vector: ModelVector
    task: tasks.Task
    device: torch.device
    fresh: dict[str, Tensor]  # copies of ModelVector.personal_state as it was before anybody trained
    holder: TorchWorkload | None = field(default=None)
    recorded: dict[tuple[torch.Size, ...], devices.RecordedGradient] = field(default_factory=dict)  # by shapes

    @classmethod
    def of(cls, recipe: Recipe, data: DataSet) -> _SharedModule:
        device = devices.set_up(recipe.training)
        module = build(recipe, data.about, recipe.run.seed)
        if recipe.training.precision != "int8":
            _turn_convolutions(module)
        vector = vector_of(recipe, module.to(device))
        return cls(
            vector=vector,
            task=tasks.make(recipe.training, data.about),
            device=device,
            fresh={name: t.clone() for name, t in vector.personal_state().items()},
        )


def _turn_convolutions(module: nn.Module) -> None:
    """Let the weights of convolutions lie as torch's channels-last kernels take them, which else
    turn them forward and backward in every step. Of torch's own alone: a subclass may look at its
    weight as if it lay in its own order."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d:
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _minus(values: Vec, x: Vec) -> Vec:
    """values - x, in the memory of `values`."""
    return np.subtract(values, x, out=values)


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """Copy images [n, channels, height, width] to memory with the channels next to each other.

    Not `contiguous(memory_format=torch.channels_last)`: with one channel that changes nothing,
    because both orders are the same memory, and torch then takes the slow kernels all the way
    through the network. The strides tell it."""
    n, channels, height, width = images.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return torch.empty_strided((n, channels, height, width), strides, dtype=images.dtype).copy_(images)


def micro_batches(examples: int, at_a_time: int) -> Iterator[slice]:
    """Yield consecutive slices of range(examples), each of `at_a_time` and the last one perhaps of
    fewer.

    The gradient of a batch is that of its mean loss, summed over the slices (gradient
    accumulation), so nothing but the order of float32 additions differs from doing all at once;
    what is kept for the backward pass is that of one slice."""
    return (slice(start, min(start + at_a_time, examples)) for start in range(0, examples, at_a_time))


class TorchWorkload(Workload):
    """Trains a torch model on this board's partition of a data set, as its recipe says."""

    def __init__(
        self,
        recipe: Recipe,
        node_index: int,
        data: DataSet,
        share: NDArray[np.int64] | None = None,
        shared: _SharedModule | None = None,
    ) -> None:
        """Keeps node_index's share of data.train, or with data.partition = local all of it, as
        stored. `share` and `shared` are given when other boards of the same recipe live in this
        process."""
        settings = recipe.training
        self._recipe, self._node, self._data, self._about = recipe, node_index, data, data.about
        self._shared = shared = _SharedModule.of(recipe, data) if shared is None else shared
        self._aside = shared.fresh  # of this board, while another holds the module
        self._optimizer = optimizers.make(settings, shared.vector.module)
        self._precision = devices.Precision.of(settings, shared.device)
        self._plateau = Plateau.of(settings, recipe.run.rounds)
        self.loader: DataLoader = make_loader(data, recipe, node_index, share)
        self._normalise = Normalize.of(data.about)  # with data of its own, perhaps by a board's own statistics
        self._stages_ns = [0] * len(STAGES)
        self._steps, self._in_parts = settings.local_steps, settings.memory == "low"  # see `take_share`
        self._seen = self._left_out = 0  # examples, and steps whose gradients overflowed, in this round
        self._records = settings.cuda_graph and shared.device.type == "cuda"
        self._add: Callable[[], None] | None = None  # what is added to each step's gradient in it

    @classmethod
    def build(cls, recipe: Recipe, node_index: int, name: str = "") -> TorchWorkload:
        """Build the workload of board number `node_index`, called `name`, with data opened for it.
        Raises ConfigError and DataError."""
        if not 0 <= node_index < recipe.run.nodes:
            raise ConfigError(f"board {node_index} does not exist: boards are 0 to {recipe.run.nodes - 1}")
        board = Board(name, node_index) if name else boards_of(recipe.run.nodes)[node_index]
        return cls(recipe, node_index, _prepare(recipe, None, board))

    @classmethod
    def build_evaluator(cls, recipe: Recipe, board: Board | None = None) -> TorchWorkload:
        """Build one that only evaluates: it has next to no training data. `board`: whose test set
        it is. Raises ConfigError when there is none."""
        data = _prepare(recipe, None, board)
        if data.test is None:
            raise ConfigError(
                "evaluation.where = coordinator, and the coordinator has no test set: give it one in its own data.dir, or set "
                "evaluation.where = boards"
            )
        return cls(recipe, 0, replace(data, train=data.test), np.zeros(1, np.int64))

    @classmethod
    def build_all(cls, recipe: Recipe, data: DataSet | None = None, lanes: int = 1) -> list[TorchWorkload]:
        """Build every board of the recipe in this process, each equal to what `build` makes. They
        share one test set, and those of a lane, k modulo `lanes`, a module: one of them can compute
        at a time. `data` is what `open_data(recipe.data)` gave."""
        boards = boards_of(recipe.run.nodes)
        data = _prepare(recipe, data, boards[0])
        modules = [_SharedModule.of(recipe, data) for _ in range(lanes)]
        shares = shares_of(data, recipe)
        if shares is not None:
            return [cls(recipe, k, data, share, modules[k % lanes]) for k, share in enumerate(shares)]
        others = [_prepare(recipe, None, board) for board in boards[1:]]
        for board, own in zip(boards[1:], others, strict=True):
            if problem := difference(Agreement(data.about.facts()), Agreement(own.about.facts())):
                raise ConfigError(f"{boards[0].name} and {board.name} cannot train together: {problem}")
        return [cls(recipe, k, own, None, modules[k % lanes]) for k, own in enumerate([data, *others])]

    @property
    def about(self) -> Description:
        """Says what one example of this board's data is."""
        return self._about

    @property
    def test(self) -> Examples | None:
        """Gives what this board tests on."""
        return self._data.test

    @property
    @override
    def layout(self) -> Layout:
        return self._shared.vector.layout

    @override
    def agreement(self) -> Agreement:
        """Return what this board must have in common with those it trains with: task, kinds of
        inputs and targets, names of classes, normalisation, layout, frozen parameters and first
        model."""
        task, start = task_of(self._recipe.training, self._about), sums(self.initial(self._recipe.run.seed))
        return Agreement(
            {
                **self._about.facts(),
                **self._shared.vector.facts(),
                **plugin_facts(self._recipe),
                "task": task,
                "start": start,
            }
        )

    @override
    def initial(self, seed: int) -> Vec:
        return vector_of(self._recipe, build(self._recipe, self._about, seed)).read()

    @override
    def take_share(self, share: float, *, spare_memory: bool = False) -> float:
        steps = self._recipe.training.local_steps
        self._steps = max(1, int(share * steps + 0.5))
        spares = spare_memory and layer_over_batch(self._shared.vector.module) is None
        self._in_parts = spares or self._recipe.training.memory == "low"
        return self._steps / steps

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        recipe, vector, module = self._recipe, self._shared.vector, self._shared.vector.module
        self._stages_ns = [0] * len(STAGES)
        steps, lr = recipe.training.local_steps, learning_rate(recipe.training, round, recipe.run.rounds)
        lr *= 1.0 if self._plateau is None else self._plateau.scale
        optimizers.set_rate(self._optimizer, lr, recipe.training.lr)
        self._load(x)
        if isinstance(module, Standardised) and module.standardise.lacks(self._node):
            module.standardise.add_board(self._node, self.loader.sums(), self._counts_for())
        if not module.training:  # asking every layer costs as much as a small one
            module.train()
        seed = int(words(recipe.run.seed, Purpose.TORCH, 1, self._node, round)[0] >> np.uint64(1))
        self._seen, self._left_out, proximal = 0, 0, recipe.training.proximal
        adds = proximal or correction is not None
        self._add = partial(vector.add_to_gradients, correction, proximal, x) if adds else None
        with (
            devices.seeded(self._shared.device, seed),
            devices.explain_errors(f"board {self._node}", self._shared.device),
        ):
            losses = [self._step(round * steps + k) for k in range(self._steps)]
        loss = sum(float(value) for value in losses) / self._steps  # here a GPU is waited for
        if not math.isfinite(loss):
            cure = "; ".join(doubts(self.loader.part, self._about)) or "try a smaller training.lr"
            raise UsageError(
                f"board {self._node}: the training loss became {loss} in round {round}, at learning rate {lr:g}; {cure}"
            )
        if self._plateau is not None:
            self._plateau.take(loss)
        return LocalUpdate(
            delta=_minus(vector.read(), x),
            consumable=True,
            lr=lr,
            loss=loss,
            examples=self._seen,
            steps=self._steps - self._left_out,
            stages_s={stage: ns / 1e9 for stage, ns in zip(STAGES, self._stages_ns, strict=True)},
            holds=self.loader.holds,
            corrected=correction is not None,
        )

    def _counts_for(self) -> float:
        """What this board counts for in sums over boards: its examples, unless a coordinator weighs
        all that a board sends by them."""
        recipe = self._recipe
        weighed = recipe.run.mode == "server" and recipe.server.weighting == "examples"
        return 1.0 if weighed else float(self.loader.holds)

    def _load(self, x: Vec) -> None:
        """Put a model into the module, with what of it is this board's own."""
        self._hold()
        self._shared.vector.write(x)

    def _hold(self) -> None:
        """Put what is this board's own into the module, in the place of another board's."""
        shared = self._shared
        if shared.holder is not self:
            if shared.holder is not None:
                shared.holder._aside = {name: t.clone() for name, t in shared.vector.personal_state().items()}
            for name, tensor in shared.vector.personal_state().items():
                tensor.copy_(self._aside[name])
            shared.holder = self

    def _step(self, step: int) -> Tensor:
        """One step of the optimiser; the loss before it, a scalar on the device."""
        inputs, targets = self.loader.batch(step)
        self._seen += len(inputs)
        self._optimizer.zero_grad()
        low = self._in_parts
        at_a_time = MICRO_BATCH if low else len(inputs)
        total: Tensor | None = None  # terms of the whole batch's loss, where it comes in parts
        if at_a_time < len(inputs):
            total = self._terms(inputs, targets)
        values = []
        for part in micro_batches(len(inputs), at_a_time):
            values.append(self._gradient(inputs[part], None if targets is None else targets[part], total))
            if low:
                memory.trim_heap()
        began_ns = perf_counter_ns()
        self._left_out += not self._precision.step(self._optimizer, self._recipe.training.clip, self._add)
        self._stages_ns[_OPTIMISER] += perf_counter_ns() - began_ns
        return values[0] if len(values) == 1 else torch.stack(values).sum()

    def _terms(self, inputs: NDArray[Any], targets: NDArray[Any] | None) -> Tensor:
        task = self._shared.task
        return task.terms(torch.from_numpy(inputs if task.of_inputs or targets is None else targets))

    def _gradient(self, inputs: NDArray[Any], targets: NDArray[Any] | None, total: Tensor | None) -> Tensor:
        """Adds what these examples give to the gradient of the batch's loss, a mean over `total`
        terms (None: they are the batch); their part of that loss."""
        began_ns = perf_counter_ns()
        batch = self._taken(inputs, targets)
        if total is None and self._records:
            loss = self._recorded(*batch)
            self._stages_ns[_FORWARD] += perf_counter_ns() - began_ns  # with the backward pass
            return loss
        loss = self._loss(*batch)
        if total is not None:
            loss = loss * (float(self._terms(inputs, targets)) / max(float(total), 1e-12))
        forward_ns = perf_counter_ns()
        self._precision.backward(loss)
        self._stages_ns[_FORWARD] += forward_ns - began_ns
        self._stages_ns[_BACKWARD] += perf_counter_ns() - forward_ns
        return loss.detach()

    def _recorded(self, batch: Tensor, targets: Tensor | None) -> Tensor:
        """Sets the gradients as `_gradient` adds them, and gives the loss."""
        shared = self._shared
        shapes = (batch.shape, *(() if targets is None else (targets.shape,)))
        if shapes not in shared.recorded:
            shared.recorded[shapes] = devices.RecordedGradient(
                shared.vector.module, self._loss, self._precision.backward, batch, targets
            )
        return shared.recorded[shapes](batch, targets)

    def _loss(self, batch: Tensor, targets: Tensor | None) -> Tensor:
        return self._shared.task.loss(*self._forward(batch, targets))

    def _taken(self, inputs: NDArray[Any], targets: NDArray[Any] | None) -> tuple[Tensor, Tensor | None]:
        """Stored inputs [batch, *shape] and targets on the device; no targets where the task takes
        inputs for them."""
        shared = self._shared
        batch = as_taken(inputs, self._normalise).to(shared.device)
        if targets is None or shared.task.of_inputs:
            return batch, None
        return batch, torch.from_numpy(targets).to(shared.device)

    def _forward(self, batch: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor]:
        """A batch [batch, *shape] and targets -> what the task takes. Where there are no targets
        they are the inputs, as the model takes them."""
        shared = self._shared
        name, module = self._recipe.model.name, shared.vector.module
        if wanted is None:
            wanted = module.standardise(batch) if isinstance(module, Standardised) else batch
        with self._precision.forward():
            outputs = tensor_in(call_custom(name, module, batch) if is_custom_function(name) else module(batch))
        if outputs is None:
            raise UsageError(f"model {name} must give a tensor, or something with a tensor named logits or out")
        try:
            return shared.task.fit(outputs.float(), wanted)
        except UsageError as error:
            raise UsageError(f"model {name} {error}") from None

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        shared, test = self._shared, self._data.test
        if test is None:
            return None
        count = len(test) if examples is None else min(examples, len(test))
        if count < 1:
            raise UsageError("an evaluation needs at least one example")
        self._load(x)
        shared.vector.module.eval()
        found: dict[str, NDArray[np.float64]] = {}
        with torch.inference_mode(), devices.explain_errors(f"board {self._node}", shared.device):
            for batch in in_order(self._data.name, test, self._about, count, self._evaluated_at_a_time()):
                for name, value in shared.task.sums(*self._forward(*self._taken(*batch))).items():
                    found[name] = found.get(name, 0.0) + value.cpu().double().numpy()
        loss, scores = shared.task.scores(found)
        return Metrics.known({"loss": loss, **scores}, count)[0]

    def _evaluated_at_a_time(self) -> int:
        """Examples; those with an output at every place are large."""
        settings, most = self._recipe.training, _IN_PARTS if self._in_parts else _EVALUATION_BATCH
        return min(most, settings.batch_size) if self._about.target in ("places", "tokens") else most

    @override
    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        self._hold()
        return whole_state(self._shared.vector.module, self.layout, x)

    @override
    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        shared = self._shared
        personal = shared.vector.personal_state() if shared.holder is self else self._aside
        kept = {f"{KEPT}{name}": plain_array(t).copy() for name, t in personal.items()}
        kept |= optimizers.snapshot(self._optimizer, own=is_custom_function(self._recipe.training.optimizer))
        kept |= self._precision.snapshot()
        return kept if self._plateau is None else kept | {"plateau": self._plateau.snapshot()}

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        shared = self._shared
        known = {optimizers.OPAQUE, "scaler", "plateau", *(f"{KEPT}{name}" for name in shared.fresh)}
        if odd := [name for name in snapshot if name not in known and not name.startswith(optimizers.STATE)]:
            raise UsageError(f"the snapshot is not one of this workload: it has {odd[0]}")
        aside = {}
        for name, tensor in shared.fresh.items():
            array = snapshot.get(f"{KEPT}{name}")
            if array is None or array.shape != tuple(tensor.shape) or array.dtype != plain_array(tensor).dtype:
                raise UsageError(f"the snapshot is not one of this workload: {name} is missing or of another size")
            aside[name] = torch.from_numpy(np.array(array)).to(tensor)
        optimizers.restore(self._optimizer, snapshot, own=is_custom_function(self._recipe.training.optimizer))
        self._precision.restore(snapshot.get("scaler"))
        if self._plateau is not None:
            self._plateau.restore(snapshot.get("plateau"))
        self._aside = aside
        if shared.holder is self:
            shared.holder = None


def tensor_in(given: Any) -> Tensor | None:
    """Return the tensor that a model gave, also where it is a field of what it gave: logits
    (transformers), out (torchvision's segmentation models). None where there is no such field."""
    if isinstance(given, Tensor):
        return given
    for name in ("logits", "out"):
        found = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        if isinstance(found, Tensor):
            return found
    return None
