"""Counts what a local update of a recipe takes: operations and bytes of memory, on torch's meta
device, where tensors have shapes and no values. So it takes a second for a model of any size,
and nothing is trained.

Operations are those that torch's FlopCounterMode knows (matrix products and convolutions,
forward and backward; a multiply-add is two). What it does not know (norms, activations, the
optimiser) is in a profile's rate, which is measured the same way. Integer training is counted as
its float32 twin: the products are the same ones."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from edgegossip.layout import Layout
from edgegossip.memory import SPOOL_BYTES
from edgegossip.node.spec import message_memory
from edgegossip.recipe import Recipe
from edgegossip.training import models, require_recipe
from edgegossip.training.data import Description, describe
from edgegossip.training.model import layout_of
from edgegossip.training.models.layers import without_values
from edgegossip.types import ConfigError

PROCESS_BYTES = 230_000_000  # Python, torch (CPU) and gRPC before there is a model: resident on x86-64, torch 2.13
FIRST_STEP_BYTES = 45_000_000  # of a script: threads, libraries and connections that come up with it; as above
# Training and test examples of the package's data sets; what a user's own data take is not counted.
_EXAMPLES = {
    "digits": (1437, 360),
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Says what one optimiser step costs one board."""

    flops: float  # operations, forward and backward
    saved_bytes: int  # what autograd keeps from forward to backward


def step_cost(module: nn.Module, inputs: Tensor) -> StepCost:
    """Count one forward and one backward run of a module on the device of `inputs`, [batch,
    *shape]."""
    saved: dict[int, int] = {}
    own = {p.untyped_storage()._cdata for p in module.parameters()}
    kept: list[Any] = []  # alive until the end, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept.append(storage)
        if storage._cdata not in own:
            saved[storage._cdata] = tensor.numel() * tensor.element_size()
        return tensor

    labels = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = F.cross_entropy(module(inputs), labels)
        torch.autograd.backward(loss)
    return StepCost(float(counter.get_total_flops()), sum(saved.values()))


def of_recipe(recipe: Recipe) -> tuple[Layout, StepCost]:
    """Return the layout of the recipe's model, and what a step of its batch size costs. Raises
    ConfigError as `run` does, and for a training script, of which nobody knows what a step is."""
    require_recipe(recipe)
    about = describe(recipe.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _on_meta(recipe, about)
    batch = torch.empty((recipe.training.batch_size, *about.shape), device="meta")
    module.train()
    cost = step_cost(module, batch)
    saved = cost.saved_bytes // 4 if recipe.training.precision == "int8" else cost.saved_bytes  # a byte a value
    return layout_of(recipe), StepCost(cost.flops, saved)


def counted(recipe: Recipe, step: StepCost) -> float:
    """Return the operations of a step. Raises ConfigError where there are none."""
    if not step.flops:
        raise ConfigError(f"model {recipe.model.name} has no product that is counted: choose another model.name")
    return step.flops


def _on_meta(recipe: Recipe, about: Description) -> nn.Module:
    with without_values():
        return models.build(recipe.model, about.shape, about.classes)


def board_bytes(recipe: Recipe, layout: Layout, cost: StepCost, neighbours: int, message_bytes: int) -> int:
    """Return the resident bytes of a board, modelled: the process, its vectors, what autograd
    keeps, the data and messages under way.

    Vectors of the model's size: the model, gradient, momentum, and those of `_exchange_bytes`."""
    second = recipe.training.optimizer in ("adam", "adamw")  # its second moment
    vectors = 3 + second
    train, test = _EXAMPLES.get(recipe.data.name, (0, 0))
    examples = (recipe.data.train_examples or train) / recipe.run.nodes + (recipe.data.test_examples or test)
    data = examples * (math.prod(describe(recipe.data).shape) + 8)  # as stored: a byte a pixel, and a label
    exchange = _exchange_bytes(recipe, layout, neighbours, message_bytes)
    return round(PROCESS_BYTES + 4 * layout.size * vectors + 2 * cost.saved_bytes + data + exchange)


def script_bytes(recipe: Recipe, layout: Layout, joined_bytes: int, neighbours: int, message_bytes: int) -> int:
    """Return the resident bytes of a board that runs a script: what it took up to its join, as
    measured, in which one vector more than the model was there to be compared; what comes up with
    the first step and message, gradient and Adam's two moments, and what the exchange takes. What a
    step keeps from forward to backward, and data that are read later, are not in it."""
    exchange = _exchange_bytes(recipe, layout, neighbours, message_bytes)
    return joined_bytes + FIRST_STEP_BYTES + 4 * layout.size * 2 + exchange


def _exchange_bytes(recipe: Recipe, layout: Layout, neighbours: int, message_bytes: int) -> int:
    """Update, the round's model and what is to be sent; a replica of each neighbour and one's own
    where differences travel (gossip), and a checkpoint's copy; messages under way."""
    vectors = 3 + (neighbours + 1 if recipe.run.mode == "gossip" else 1) + (1 if recipe.checkpoint.every else 0)
    messages = 2 * max(1, neighbours) * message_bytes if message_bytes <= SPOOL_BYTES else 0  # else in files
    if recipe.run.mode == "gossip":
        messages = min(messages, message_memory(recipe, layout))  # too
    return 4 * layout.size * vectors + messages
