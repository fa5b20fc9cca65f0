"""Training: what a board does between two exchanges.

A `Workload` (base.py) is a model, this board's share of a data set and the local optimiser, seen as one flat float32
vector. Importing this package imports no torch, so that the command line can check a recipe's names; torch comes in
with the first model that is built.

Public functions, each taking a resolved `Recipe`:
    check(recipe)                      raises ConfigError or DataError before anything starts
    build_workload(recipe, node)       the Workload of board number `node`
    build_workloads(recipe)            the Workloads of all boards, in one process
    build_evaluator(recipe)            evaluates models without being a board
    initial_model(recipe)              the model's Layout and the vector that every board starts from
    build_model(recipe)                the model itself, a torch module
    layout_of(recipe)                  the model's Layout, without data and without initialising weights
    partition_counts(recipe)           int64[nodes, classes], examples of each class on each board
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.base import Workload, size_mb
from edgegossip.training.check import check

if TYPE_CHECKING:
    from torch import nn

    from edgegossip.layout import Layout
    from edgegossip.recipe import Recipe
    from edgegossip.training.data import DataSet
    from edgegossip.types import Metrics, Vec

__all__ = [
    "Workload",
    "build_evaluator",
    "build_model",
    "build_workload",
    "build_workloads",
    "check",
    "initial_model",
    "layout_of",
    "partition_counts",
    "size_mb",
]


def build_workload(recipe: Recipe, node_index: int) -> Workload:
    """The workload of board number `node_index` (0-based). Loads that board's share of the data and the test set.

    Sets the process's torch threads to `run.threads`. Raises ConfigError for an unknown name or an index outside
    0..nodes-1, DataError for missing or corrupt files, LocalError for a user's own function that fails."""
    from edgegossip.training.workload import TorchWorkload

    return TorchWorkload.build(recipe, node_index)


def build_workloads(recipe: Recipe, data: DataSet | None = None) -> Sequence[Workload]:
    """The workloads of all boards, for a process that holds the whole fleet. Each gives what `build_workload` of that
    board gives, but they share the module's memory and the test set: only one may be at work at a time.

    `data` is what `data.open_data(recipe.data)` gave, where it is at hand. Raises as `build_workload` does."""
    from edgegossip.training.workload import TorchWorkload

    return TorchWorkload.build_all(recipe, data)


def build_evaluator(recipe: Recipe) -> Callable[[Vec, int | None], Metrics]:
    """`Workload.evaluate` for a process that trains nothing, such as a coordinator. Loads the test set; raises as
    `build_workload` does."""
    from edgegossip.training.workload import TorchWorkload

    return TorchWorkload.build_evaluator(recipe).evaluate


def layout_of(recipe: Recipe) -> Layout:
    """Layout of the recipe's model. Tensors are made on torch's meta device: no memory, no initialisation."""
    from edgegossip.training.workload import layout_of as _layout_of

    return _layout_of(recipe)


def initial_model(recipe: Recipe) -> tuple[Layout, Vec]:
    """The recipe's model and the vector that every board starts from, float32[n]. Reads no data set."""
    from edgegossip.training.workload import initial_model as _initial_model

    return _initial_model(recipe)


def build_model(recipe: Recipe) -> nn.Module:
    """The recipe's model, a torch module with the values that a run starts from. Raises ConfigError for an unknown name,
    LocalError for a user's own function that fails."""
    from edgegossip.training.workload import build_model as _build_model

    return _build_model(recipe)


def partition_counts(recipe: Recipe) -> NDArray[np.int64]:
    """int64[nodes, classes]: examples of each class on each board. Needs no torch."""
    from edgegossip.training.data import open_data
    from edgegossip.training.partition import partition

    data = open_data(recipe.data)
    shares = partition(data.train.labels, recipe)
    return np.stack([np.bincount(data.train.labels[s], minlength=data.classes) for s in shares]).astype(np.int64)
