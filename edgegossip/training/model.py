"""The model that a recipe names, as it is trained: built, brought to its precision, and seen as one
flat vector.

With `data.normalise = "together"` a first layer brings inputs to mean 0 and deviation 1, by
statistics of the examples of all boards. The statistics are values of the model, so nothing but a
run's ordinary messages is needed. They are three sums over boards, all linear in what a board puts
in: how much it counts, that times the mean of its inputs, and that times their mean square.
Whatever averages models, in whatever rounds, then averages these alike, and their quotients are
mean and mean square of all boards' examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from edgegossip.layout import SUMS, Layout
from edgegossip.recipe import Recipe
from edgegossip.training import models
from edgegossip.training.check import outputs_of
from edgegossip.training.data import Board, Description, describe
from edgegossip.training.data.schema import Sums
from edgegossip.training.models.layers import without_values
from edgegossip.training.names import is_custom_function
from edgegossip.training.vector import ModelVector, named_arrays
from edgegossip.types import ConfigError, UsageError, Vec

# Examples at a time with training.memory = "low"; with fewer, quantising weights anew takes most of
# a step.
MICRO_BATCH = 8
# What a board counts for is a multiple of this. Only quotients matter, and float32 is as exact for
# small numbers as for large ones. So sums are made much smaller than parameters: a board that comes
# late must not look as if its update were out of all proportion (`engine/plausible.py`).
UNIT = 2.0**-64
NARROWEST = 1e-3  # deviation, in root mean squares: float32 has no more of a difference of squares


def layout_of(recipe: Recipe, board: Board | None = None) -> Layout:
    """Return the layout of the recipe's model. A user's own model is built for real: it may not
    know the meta device. `board`: whose data say what the recipe does not declare."""
    about = describe(recipe.data, board)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a board says it when it builds the model
        return vector_of(recipe, _without_values(recipe, about)).layout


def conversion_notices(recipe: Recipe) -> list[str]:
    """Return what int8 replaces in the recipe's model and what it leaves in fp32, a sentence each;
    built as for `layout_of`."""
    from edgegossip.int8 import ConversionNotice

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _without_values(recipe, describe(recipe.data))
    return [str(one.message) for one in caught if issubclass(one.category, ConversionNotice)]


def _without_values(recipe: Recipe, about: Description) -> nn.Module:
    if is_custom_function(recipe.model.name):
        return build(recipe, about)
    with without_values():
        return _module(recipe, about)


def initial_values(
    recipe: Recipe, board: Board | None = None
) -> tuple[Layout, Vec, Callable[[Vec], Mapping[str, NDArray[Any]]]]:
    """Return layout and first vector, float32[n], of the recipe's model, and what makes the arrays
    of a model's file of such a vector (`named_arrays`)."""
    vector = vector_of(recipe, build(recipe, describe(recipe.data, board), recipe.run.seed))
    return vector.layout, vector.read(), named_arrays(vector.module, vector.layout)


def vector_of(recipe: Recipe, module: nn.Module) -> ModelVector:
    """Say what of the module travels. Raises ConfigError when model.share or model.keep do not fit
    it."""
    share, keep = recipe.model.share, recipe.model.keep
    if isinstance(module, Standardised):
        share, keep = _standardised_patterns(share, keep)
    try:
        return ModelVector(module, share, keep)
    except UsageError as error:
        raise ConfigError(f"model {recipe.model.name}: {error}") from None


def _module(recipe: Recipe, about: Description) -> nn.Module:
    """The recipe's model, with a first layer that normalises where boards do that together."""
    module = _inner(recipe, about)
    return Standardised(module, about.shape, recipe.run.nodes) if about.scale == "together" else module


def _inner(recipe: Recipe, about: Description) -> nn.Module:
    """The recipe's model with the layers that its precision asks for. A model of the package is
    built with Range EvoNorm where int8 would replace its EvoNorm-S0, so that what surrounds the
    norm suits it too."""
    section, training, outputs = recipe.model, recipe.training, outputs_of(recipe.training, about)
    if training.precision != "int8":
        module = models.build(section, about.shape, outputs)
        if training.memory == "low":
            _require_independent(module)
        return module
    from edgegossip import int8
    from edgegossip.int8.norms import RangeEvoNorm

    norm = section.norm
    if not is_custom_function(section.name) and norm == "evonorm-s0":
        section = replace(section, norm="range-evonorm")
    module = models.build(section, about.shape, outputs)
    if norm != section.norm and any(isinstance(m, RangeEvoNorm) for m in module.modules()):
        notice = f'training.precision = "int8": model.norm = "{norm}" became "range-evonorm"'
        warnings.warn(notice, int8.ConversionNotice, stacklevel=2)
    module = int8.convert(module, training.dw)
    if training.memory == "low":
        _require_independent(module)
    return module


def build(recipe: Recipe, about: Description, seed: int = 0) -> nn.Module:
    """Make a freshly initialised model; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _module(recipe, about)


def layer_over_batch(module: nn.Module) -> str | None:
    """Return the first layer that takes statistics over the batch, by its name or kind; None where
    examples do not see each other, and a batch may come in parts."""
    norms = (n or type(layer).__name__ for n, layer in module.named_modules() if isinstance(layer, _BatchNorm))
    return next(norms, None)


def _require_independent(module: nn.Module) -> None:
    """Raise ConfigError where a layer takes statistics over the batch: micro-batches need examples
    that do not see each other."""
    if (name := layer_over_batch(module)) is not None:
        raise ConfigError(
            f'training.memory = "low" trains on {MICRO_BATCH} examples at a time, and {name} takes '
            'statistics of the whole batch: choose model.norm = "evonorm-s0", "range-evonorm" or "groupnorm"'
        )


class Standardise(nn.Module):
    """Brings inputs [batch, channels, ...] to (x - mean) / std of each channel; gives them as they
    are while no board has put anything in.

    Buffers: `weights` float32[boards], what of each board is in the sums; `sums` and `squares`
    float32[channels]. A deviation below `NARROWEST` root mean squares counts as that much, and 0
    as 1."""

    weights: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, shape: Sequence[int], boards: int) -> None:
        """`shape` is that of one input, its channels first."""
        super().__init__()
        self.register_buffer("weights", torch.zeros(boards))
        self.register_buffer("sums", torch.zeros(shape[0]))
        self.register_buffer("squares", torch.zeros(shape[0]))
        self._shape = (shape[0], *(1 for _ in shape[1:]))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation, float32[channels]."""
        total = self.weights.sum()
        total = torch.where(total > 0, total, torch.ones_like(total))
        mean, square = self.sums / total, self.squares / total
        std = torch.maximum(square - mean * mean, square * NARROWEST**2).sqrt()
        return mean, torch.where(std > 0, std, torch.ones_like(std))

    @override
    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.moments()
        return (x - mean.view(self._shape)) / std.view(self._shape)

    def lacks(self, board: int) -> bool:
        """Tell whether nothing of this board is in the sums.

        The model says so itself, and no memory of the board. So a board puts its statistics in once
        more where a coordinator has dropped its update, or where it has taken over a model that was
        made without it; and not twice when it starts again, be it with a model that others gave
        it."""
        return float(self.weights[board]) == 0.0

    @torch.no_grad()
    def add_board(self, board: int, own: Sums, weight: float) -> None:
        """Add a board's statistics to the sums, so that they count for `weight`."""
        weight *= UNIT
        self.weights[board] += weight
        self.sums += torch.from_numpy(own.sum / own.count * weight).to(self.sums)
        self.squares += torch.from_numpy(own.squares / own.count * weight).to(self.squares)


class Standardised(nn.Module):
    """Puts a model behind a `Standardise`. Names of its tensors begin with `model.`, and those of
    the sums with `layout.SUMS`."""

    def __init__(self, model: nn.Module, shape: Sequence[int], boards: int) -> None:
        super().__init__()
        self.standardise = Standardise(shape, boards)
        self.model = model

    @override
    def forward(self, x: Tensor) -> Any:
        return self.model(self.standardise(x))


def _standardised_patterns(share: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return model.share and model.keep, which are over the names of the model alone, for a
    `Standardised` one: its sums always travel."""
    inside = [f"model.{pattern}" for pattern in share]
    return [f"{SUMS}*", *inside] if inside else [], [f"model.{pattern}" for pattern in keep]
