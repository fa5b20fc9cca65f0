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
    layout_of(recipe)                  the model's Layout, without data and without initialising weights
    partition_counts(recipe)           int64[nodes, classes], examples of each class on each board
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgegossip.agreement import Agreement, Fact
from edgegossip.training.base import Workload, size_mb
from edgegossip.training.check import check

if TYPE_CHECKING:
    from edgegossip.layout import Layout
    from edgegossip.recipe import Recipe
    from edgegossip.training.data import DataSet
    from edgegossip.types import Metrics, NodeId, Vec

__all__ = [
    "Workload",
    "build_evaluator",
    "build_workload",
    "FirstModel",
    "build_workloads",
    "check",
    "first_model",
    "initial_model",
    "is_own",
    "layout_of",
    "partition_counts",
    "size_mb",
]


def build_workload(
    recipe: Recipe, node_index: int, name: NodeId = "", say: Callable[[str], None] = lambda text: None
) -> Workload:
    """The workload of board number `node_index` (0-based). Loads that board's share of the data and the test set; or runs the
    recipe's script up to its `join`, for the board of this `name`, with sentences about a slow one to `say`.

    Sets the process's torch threads to `run.threads`. Raises ConfigError for an unknown name or an index outside
    0..nodes-1, DataError for missing or corrupt files, LocalError for a user's own function that fails."""
    if recipe.run.script:
        from edgegossip.training.script import ScriptWorkload

        return ScriptWorkload(recipe, node_index, name, say)
    from edgegossip.training.workload import TorchWorkload

    return TorchWorkload.build(recipe, node_index)


def is_own(recipe: Recipe) -> bool:
    """Whether model or data are the user's own: then boards say at the join what they train, and compare."""
    return bool(recipe.run.script) or ":" in recipe.model.name or ":" in recipe.data.name


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


@dataclass(frozen=True, slots=True)
class FirstModel:
    """What a coordinator trains: the model's layout, the vector that the run starts from, and how to evaluate a model here
    (None: the boards do). `over` is called with the final model."""

    layout: Layout
    x: Vec  # float32[n]
    evaluate: Callable[[Vec, int | None], Metrics | None] | None
    agreement: Agreement
    over: Callable[[Vec], None] = lambda x: None


def first_model(recipe: Recipe, say: Callable[[str], None] = lambda text: None) -> FirstModel:
    """The recipe's model for its coordinator. A script is run up to its `join`, which tells the model; with evaluation.where =
    coordinator it evaluates, too. Raises as `build_workload` does."""
    here = recipe.evaluation.where == "coordinator"
    if recipe.run.script:
        from edgegossip.training.script import ScriptWorkload

        script = ScriptWorkload(recipe, -1, "coordinator", say)
        x, agreement = script.initial(recipe.run.seed), script.agreement()
        return FirstModel(script.layout, x, script.evaluate if here else None, agreement, script.over)
    layout, x = initial_model(recipe)
    facts: dict[str, Fact] = {}
    if is_own(recipe):
        facts = {"layout": f"{layout.hash:016x}", "values": layout.size}
    return FirstModel(layout, x, build_evaluator(recipe) if here else None, Agreement(facts))


def layout_of(recipe: Recipe) -> Layout:
    """Layout of the recipe's model. Tensors are made on torch's meta device: no memory, no initialisation."""
    from edgegossip.training.workload import layout_of as _layout_of

    return _layout_of(recipe)


def initial_model(recipe: Recipe) -> tuple[Layout, Vec]:
    """The recipe's model and the vector that every board starts from, float32[n]. Reads no data set."""
    from edgegossip.training.workload import initial_model as _initial_model

    return _initial_model(recipe)


def partition_counts(recipe: Recipe) -> NDArray[np.int64]:
    """int64[nodes, classes]: examples of each class on each board, without classes where only the boards know. Needs no
    torch."""
    if recipe.run.script:
        return np.zeros((recipe.run.nodes, 0), np.int64)
    from edgegossip.training.data import open_data
    from edgegossip.training.partition import partition

    data = open_data(recipe.data)
    shares = partition(data.train.labels, recipe)
    return np.stack([np.bincount(data.train.labels[s], minlength=data.classes) for s in shares]).astype(np.int64)
