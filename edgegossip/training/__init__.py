"""Training: what a board does between two exchanges.

A `Workload` (base.py) is a model, this board's partition of a data set and the local optimiser,
seen as one flat float32 vector. Importing this package imports no torch, so that the command line
can check a recipe's names; torch comes in with the first model that is built.

Public functions, each taking a resolved `Recipe`:
    check(recipe)                      raises ConfigError or DataError before anything starts
    build_workload(recipe, node)       the Workload of board number `node`
    build_workloads(recipe)            the Workloads of all boards, in one process
    build_evaluator(recipe)            evaluates models without being a board
    initial_model(recipe)              the model's Layout and the vector that every board starts
                                       from
    build_model(recipe)                the model itself, a torch module
    layout_of(recipe)                  the model's Layout, without data and without initialising
                                       weights
    conversion_notices(recipe)         what int8 replaces in the model, a sentence each
    partition_counts(recipe)           examples of each class on each board, where they are known
                                       beforehand
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.agreement import Agreement
from edgegossip.training import names
from edgegossip.training.base import Workload, plugin_facts
from edgegossip.training.check import check, check_data, check_parts
from edgegossip.types import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from edgegossip.layout import Layout
    from edgegossip.recipe import Recipe
    from edgegossip.telemetry.records import Sink
    from edgegossip.training.data import Board, DataSet
    from edgegossip.training.workload import TorchWorkload
    from edgegossip.types import Metrics, Vec

__all__ = [
    "FirstModel",
    "Workload",
    "build_evaluator",
    "build_model",
    "build_workload",
    "build_workloads",
    "can_be_together",
    "check",
    "check_data",
    "check_parts",
    "conversion_notices",
    "first_model",
    "initial_model",
    "is_custom",
    "layout_of",
    "partition_counts",
    "require_device",
    "require_recipe",
]


def build_workload(recipe: Recipe, node_index: int, name: str = "", sink: Sink | None = None) -> Workload:
    """Build the workload of board number `node_index` (0-based), and set the process's torch
    threads to `run.threads`.

    It loads that board's partition of the data, or with data.partition = local the board's own, by
    its `name`; then `sink` is told how many examples of each class these are, and in both cases
    what is doubtful in them. Or it runs the recipe's script up to its `join`; then `sink` is told
    what a user should know of it.

    Raises ConfigError for an unknown name or an index outside 0..nodes-1, DataError for missing or
    corrupt files, UsageError for a user's own function that fails."""
    if recipe.run.script:
        from edgegossip.training.script import ScriptWorkload

        return ScriptWorkload(recipe, node_index, name, *([] if sink is None else [partial(sink.event, name)]))
    from edgegossip.training.workload import TorchWorkload

    workload = TorchWorkload.build(recipe, node_index, name)
    if sink is not None:
        from edgegossip.training.data.doubts import doubts

        local = recipe.data.partition == "local"
        if local:
            _tell_holdings(sink, name, workload)
        for doubt in doubts(workload.loader.part, workload.about, whole=local, test=workload.test):
            sink.event(name, "doubt", f"{name}'s data: {doubt}", why=doubt)
    return workload


def _tell_holdings(sink: Sink, name: str, workload: TorchWorkload) -> None:
    """Put counts and the size of inputs, and nothing else of a board's data, into the records of
    the run."""
    from edgegossip.telemetry.run_folder import HOLDS
    from edgegossip.training.data.doubts import sizes

    held, counts, about = workload.loader.holds, workload.loader.counts, workload.about
    names = about.names or tuple(map(str, range(about.classes)))
    several = f" of {int((counts > 0).sum())} of {about.classes} classes" if counts is not None else ""
    text = f"{name} holds {held or 'a stream of'} examples{several}"
    row = [] if counts is None else counts.tolist()
    classes = [] if counts is None else list(names)
    fields = {"classes": classes, "counts": row, "sizes": sizes(workload.loader.part, about)}
    sink.event(name, HOLDS, text, examples=held, **{key: json.dumps(value) for key, value in fields.items()})


def is_custom(recipe: Recipe) -> bool:
    """Tell whether model or data are the user's own: then boards say at the join what they train,
    and compare."""
    from edgegossip.training import data

    return bool(recipe.run.script) or names.is_custom_function(recipe.model.name) or data.is_custom(recipe.data)


def build_workloads(recipe: Recipe, data: DataSet | None = None, lanes: int = 1) -> Sequence[Workload]:
    """Build the workloads of all boards, for a process that holds the whole fleet. Each gives what
    `build_workload` of that board gives, but they share the test set, and those of a lane (board k
    is in lane k modulo `lanes`) a module's memory: only one of a lane may be at work at a time, and
    several lanes only where `can_be_together`.

    `data` is what `data.open_data(recipe.data)` gave, where it is at hand. Raises as
    `build_workload` does."""
    require_recipe(recipe)
    from edgegossip.training.workload import TorchWorkload

    return TorchWorkload.build_all(recipe, data, lanes)


def can_be_together(recipe: Recipe) -> bool:
    """Tell whether boards of a process may compute at the same time, in threads, with the results
    of one after the other.

    Not on a GPU, which does one thing at a time; not where random numbers are drawn (int8's
    rounding, dropout), for torch has one generator; and not with code of a user's, of which nobody
    knows."""
    from edgegossip.training import data, models

    training = recipe.training
    users = (recipe.model.name, training.task, training.optimizer)
    if recipe.run.script or data.is_custom(recipe.data) or any(map(names.is_custom_function, users)):
        return False
    if training.precision == "int8" or models.draws(recipe.model):
        return False
    from edgegossip.training.device import select_device

    return select_device(training).type == "cpu"


def build_evaluator(recipe: Recipe) -> Callable[[Vec, int | None], Metrics]:
    """Return `Workload.evaluate` for a process that trains nothing, such as a coordinator. Loads
    the test set, with data.partition = local the coordinator's own; raises as `build_workload`
    does, and ConfigError where there is none."""
    require_recipe(recipe)
    from edgegossip.training.data import Board
    from edgegossip.training.workload import TorchWorkload

    workload = TorchWorkload.build_evaluator(recipe, Board("coordinator", -1))

    def evaluate(x: Vec, examples: int | None = None) -> Metrics:
        found = workload.evaluate(x, examples)
        assert found is not None  # there is a test set
        return found

    return evaluate


@dataclass(frozen=True, slots=True)
class FirstModel:
    """Describes what a coordinator trains.

    Attributes:
        layout: the model's.
        x: the vector that the run starts from, float32[n].
        evaluate: evaluates a model here; None: the boards do.
        agreement: what every board must have alike.
        arrays: makes the arrays of the model's file of a vector: what travels, by the names of the
            `state_dict`.
        over: is called with the final model.
        abandon: is called where there is no final model, and ends a script.
    """

    layout: Layout
    x: Vec
    evaluate: Callable[[Vec, int | None], Metrics] | None
    agreement: Agreement
    arrays: Callable[[Vec], Mapping[str, NDArray[Any]]]
    over: Callable[[Vec | None], None] = lambda x: None
    abandon: Callable[[], None] = lambda: None


def first_model(
    recipe: Recipe, board: Board, event: Callable[..., None] = lambda name, text, **fields: None
) -> FirstModel:
    """Build the recipe's model for its coordinator. `board`: as for `layout_of`. A script is run up
    to its `join`, which tells the model, with events of what a user should know of it; with
    evaluation.where = coordinator it evaluates, too. Raises as `build_workload` does."""
    here = recipe.evaluation.where == "coordinator"
    if recipe.run.script:
        from edgegossip.training.script import ScriptWorkload

        script = ScriptWorkload(recipe, -1, "coordinator", event)
        x, agreement = script.initial(recipe.run.seed), script.agreement()
        if here:
            script.require_function()
        evaluate = script.require_evaluation if here else None
        return FirstModel(script.layout, x, evaluate, agreement, script.arrays(), script.over, script.abandon)
    from edgegossip.training.model import initial_values

    layout, x, arrays = initial_values(recipe, board)
    agreement = Agreement({**(layout.facts() if is_custom(recipe) else {}), **plugin_facts(recipe)})
    return FirstModel(layout, x, build_evaluator(recipe) if here else None, agreement, arrays)


def require_device(recipe: Recipe) -> None:
    """Raise HostError unless this machine has the device that the recipe asks for; a script sees
    to its own. Imports torch where that is a GPU."""
    if recipe.run.script or recipe.training.device in ("auto", "cpu"):
        return
    from edgegossip.training.device import select_device

    select_device(recipe.training)


def layout_of(recipe: Recipe, board: Board | None = None) -> Layout:
    """Return the layout of the recipe's model. Tensors are made on torch's meta device: no memory,
    no initialisation. `board`: whose data are opened where the recipe does not declare what an
    example is."""
    require_recipe(recipe)
    from edgegossip.training import model

    return model.layout_of(recipe, board)


def conversion_notices(recipe: Recipe) -> list[str]:
    """Return what int8 replaces in the recipe's model and what it leaves in fp32, a sentence each;
    none for a script, or where an example's shape is known on the boards alone. Imports torch for
    int8 only."""
    from edgegossip.training.data import is_declared

    if recipe.training.precision != "int8" or recipe.run.script or not is_declared(recipe.data):
        return []
    from edgegossip.training import model

    return model.conversion_notices(recipe)


def initial_model(recipe: Recipe) -> tuple[Layout, Vec]:
    """Return the layout of the recipe's model and the vector that every board starts from,
    float32[n]."""
    require_recipe(recipe)
    from edgegossip.training.model import initial_values

    layout, x, _ = initial_values(recipe)
    return layout, x


def build_model(recipe: Recipe, board: Board | None = None) -> nn.Module:
    """Build the recipe's model, a torch module with the values that a run starts from. `board`:
    as for `layout_of`. Raises ConfigError for an unknown name, UsageError for a user's own function
    that fails."""
    from edgegossip.training.data import describe
    from edgegossip.training.model import build

    return build(recipe, describe(recipe.data, board), recipe.run.seed)


def partition_counts(recipe: Recipe) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """Return the names of the classes, and int64[nodes, classes], the examples of each class on
    each board, of a data set that boards share out; one column "examples" where there are no
    classes. None where each board has its own (data.partition = local, or a script): boards say
    themselves what they hold. Needs no torch."""
    if recipe.run.script:
        return None
    from edgegossip.training.data import open_data
    from edgegossip.training.partition import partition_data

    if recipe.data.partition == "local":
        return None
    data = open_data(recipe.data)
    shares, about = partition_data(data, recipe), data.about
    targets = data.indexed().targets
    if about.target != "class" or targets is None:
        return ("examples",), np.array([[len(s)] for s in shares], np.int64)
    rows = [np.bincount(targets[s], minlength=about.classes) for s in shares]
    return about.names or tuple(map(str, range(about.classes))), np.stack(rows).astype(np.int64)


def require_recipe(recipe: Recipe) -> None:
    """Raise ConfigError for a training script: only its own process knows its model."""
    if recipe.run.script:
        raise ConfigError(
            f"{Path(recipe.run.script).name} is a training script, and this command takes recipes only; scripts are for "
            "`run`, `plan`, `node` and `coordinator`"
        )
