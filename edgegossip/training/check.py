"""Finds what is wrong with a recipe's model, data and training before anything starts. Imports no
torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from edgegossip import gossip
from edgegossip.agreement import Agreement, difference, unlike
from edgegossip.recipe import Recipe, TrainingSection, require_read
from edgegossip.training import models
from edgegossip.training.base import require_plain_steps
from edgegossip.training.data import Board, Description, describe, is_custom, locate, open_data
from edgegossip.training.names import check_params, import_function, is_custom_function, unknown
from edgegossip.types import ConfigError, DataError

# Of each task: what its targets may be (`Description.target`), and its training.task_params.
TASKS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classification": (("class",), ()),
    "multilabel": (("labels",), ("threshold",)),
    "regression": (("values",), ("loss", "delta")),
    "segmentation": (("places",), ()),
    "language-model": (("tokens", "places"), ()),
    "autoencoder": (("none", "class", "places", "labels", "values"), ()),
}
_TARGETS = {
    "class": "one class an example",
    "places": "a class at each of many places",
    "labels": "labels of which any may apply",
    "values": "numbers",
    "tokens": "the input's own next tokens",
    "none": "missing",
}

# Of each optimiser: what training.optimizer_params may set besides lr and weight decay.
_ALL = ("foreach", "fused", "maximize")
OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("dampening", *_ALL),
    "adam": ("betas", "eps", "amsgrad", *_ALL),
    "adamw": ("betas", "eps", "amsgrad", *_ALL),
    "rmsprop": ("alpha", "eps", "momentum", "centered", "foreach", "maximize"),
}
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")


def check(recipe: Recipe, boards: Sequence[Board] = ()) -> None:
    """Raise what `check_parts` and `check_data` do."""
    check_parts(recipe)
    check_data(recipe, boards)


def check_parts(recipe: Recipe) -> None:
    """Raise ConfigError for an unknown model, data set, task, optimiser, device or parameter of
    one of these (with the nearest valid choice), where they do not go together, and for what the
    mode does not read. Looks at no file."""
    require_read(recipe)
    if recipe.run.script:
        return
    models.check(recipe.model)
    check_task(recipe.training)
    if recipe.run.mode == "server":
        require_plain_steps(recipe.server, recipe.training.optimizer, recipe.training.momentum)
    check_optimizer(recipe.training)
    check_device(recipe.training)
    _check_evaluator(recipe)
    _check_together(recipe)
    if not is_custom(recipe.data):
        about = describe(recipe.data)
        check_augmentation(recipe, about)
        task_of(recipe.training, about)


def check_data(recipe: Recipe, boards: Sequence[Board] = ()) -> None:
    """Raise ConfigError for a script that is not there and for keys of data that contradict each
    other, DataError for files that are not there. Reads no data; contents are checked when a board
    loads them.

    `boards`: whose data are looked for on this machine; none: those that all share out."""
    if recipe.run.script:
        if not Path(recipe.run.script).is_file():
            raise ConfigError(f"run.script = {recipe.run.script}: there is no such file")
        return
    for board in boards or (None,):
        locate(recipe.data, board)


def data_doubts(recipe: Recipe, boards: Sequence[Board] = ()) -> list[str]:
    """Open the data as these boards will, and return what is doubtful in them, a sentence each.
    Raises as `open_data` does, and DataError for boards whose data are not of one kind, as they
    would when they meet; of a script nothing is known."""
    from edgegossip.training.data.doubts import doubts, sizes  # a board that waits for others has no use for it

    found: dict[str, list[str]] = {}
    held: dict[str, Mapping[str, float]] = {}
    first: tuple[str, Agreement] | None = None
    for board in () if recipe.run.script else boards or (None,):
        data = open_data(recipe.data, board)
        name = board.name if board else "the run"
        mine = Agreement(data.about.facts())
        first = first or (name, mine)
        if problem := difference(first[1], mine):
            raise DataError(f"{first[0]} and {name} cannot train together: {problem}")
        held[name] = sizes(data.train, data.about)
        for doubt in doubts(data.train, data.about, whole=True, test=data.test):
            found.setdefault(doubt, []).append(name)
    said = [f"the data of {', '.join(names)}: {doubt}" for doubt, names in found.items()]
    return [*said, *filter(None, [unlike(held)])]


def check_augmentation(recipe: Recipe, about: Description) -> None:
    """Raise ConfigError when crop and flip are asked for inputs that are not images, or would
    leave masks behind."""
    if not recipe.data.augment:
        return
    if len(about.shape) != 3:
        raise ConfigError(
            "data.augment = true needs images (channels, height, width); the inputs of "
            f"{recipe.data.name} have shape {about.shape}: set data.augment = false"
        )
    if about.target == "places":
        raise ConfigError(
            "data.augment = true moves images and not the masks beside them: set data.augment = "
            "false, and augment both in your own function"
        )


def _check_evaluator(recipe: Recipe) -> None:
    """Raise ConfigError where a coordinator is to evaluate a model of which it has a part only."""
    kept = [f"model.{key}" for key in ("share", "keep") if getattr(recipe.model, key)]
    if recipe.run.mode == "server" and recipe.evaluation.where == "coordinator" and kept:
        raise ConfigError(
            f'evaluation.where = "coordinator": {" and ".join(kept)} leave a part of the model on each board, which the '
            'coordinator has not; set evaluation.where = "boards"'
        )


def _check_together(recipe: Recipe) -> None:
    """Raise ConfigError where boards cannot normalise together."""
    if recipe.data.normalise != "together":
        return
    if recipe.training.precision == "int8":
        raise ConfigError(
            'data.normalise = together: a model with training.precision = "int8" has no layer for it; get data.mean and '
            "data.std from `edgegossip data combine` and declare them, or say training.precision = fp32"
        )
    if recipe.run.mode == "gossip" and gossip.get(recipe.gossip.algorithm).traits.repeats:
        raise ConfigError(
            f"data.normalise = together: gossip.algorithm = {recipe.gossip.algorithm} repeats in every later round what one "
            "got wrong, and training sets nothing right in sums; say dpsgd, or declare data.mean and data.std (`edgegossip "
            "data combine`)"
        )
    if recipe.run.mode == "server" and recipe.server.strategy not in ("fedavg", "scaffold", "fedavgm"):
        raise ConfigError(
            f"data.normalise = together: the coordinator must take the mean of what boards send, and server.strategy = "
            f"{recipe.server.strategy} does not; say fedavg or fedavgm, or declare data.mean and data.std (`edgegossip "
            "data combine`)"
        )


def check_task(section: TrainingSection) -> None:
    """Raise ConfigError for an unknown task or parameter of one."""
    if is_custom_function(section.task):
        import_function("training.task", section.task)
        return
    if section.task not in ("auto", *TASKS):
        raise unknown("training.task", section.task, ["auto", *TASKS, "module:function"])
    allowed = sorted({p for _, ps in TASKS.values() for p in ps}) if section.task == "auto" else TASKS[section.task][1]
    check_params("training.task_params", section.task, section.task_params, allowed)


def task_of(section: TrainingSection, about: Description) -> str:
    """Return the name of the task for these data. Raises ConfigError when their targets are of
    another kind, or a parameter is not the task's."""
    if is_custom_function(section.task):
        return section.task
    fitting = [task for task, (targets, _) in TASKS.items() if about.target in targets]
    name = fitting[0] if section.task == "auto" else section.task
    if name not in fitting:
        raise ConfigError(
            f'training.task = "{name}" does not fit data whose targets are {_TARGETS[about.target]}: '
            f"set training.task = {' or '.join(fitting)}, or data.target"
        )
    check_params("training.task_params", name, section.task_params, TASKS[name][1])
    return name


def outputs_of(section: TrainingSection, about: Description) -> int:
    """Count the values that the model gives for one input, at each place where there are places: as
    many as the input has where that is rebuilt, whatever the targets are."""
    return math.prod(about.shape) if task_of(section, about) == "autoencoder" else about.outputs


def check_optimizer(section: TrainingSection) -> None:
    """Raise ConfigError for an unknown optimiser or parameter of one."""
    if is_custom_function(section.optimizer):
        import_function("training.optimizer", section.optimizer)
        return
    if section.optimizer not in OPTIMIZERS:
        raise unknown("training.optimizer", section.optimizer, [*OPTIMIZERS, "module:function"])
    key, allowed = "training.optimizer_params", OPTIMIZERS[section.optimizer]
    for name in ("lr", "weight_decay", *(("momentum", "nesterov") if section.optimizer == "sgd" else ())):
        if name in section.optimizer_params:
            raise ConfigError(f"{key}.{name} cannot be set: it has a key of its own, training.{name}")
    check_params(key, section.optimizer, section.optimizer_params, allowed)


def check_device(section: TrainingSection) -> None:
    """Raise ConfigError for a device that is none, or that cannot train in int8. Whether it is
    there is known when a board loads its model."""
    if not _DEVICE.fullmatch(section.device):
        raise ConfigError(f'training.device = "{section.device}": must be auto, cpu, cuda, cuda:N or mps')
    if section.precision == "int8" and section.device not in ("auto", "cpu"):
        raise ConfigError(
            f'training.precision = "int8" computes on the CPU, and training.device = "{section.device}": '
            'set training.device = "cpu", or training.precision = "bf16"'
        )
    for key, of in (("precision", ("int8", "fp16")), ("memory", ("low",))):
        if section.cuda_graph and getattr(section, key) in of:
            raise ConfigError(
                f'training.cuda_graph records whole steps, which training.{key} = "{getattr(section, key)}" '
                f"has not: leave one of them out{', or take bf16' if key == 'precision' else ''}"
            )


def _unused_by_script(recipe: Recipe) -> str:
    """Keys that were set to no effect, as the script's own code stands in their place."""
    changed = [
        f"{name}.{f.name}"
        for name, section in (("data", recipe.data), ("model", recipe.model), ("training", recipe.training))
        for f in fields(section)
        if getattr(section, f.name) != getattr(type(section)(), f.name)
    ]
    if not changed:
        return ""
    said = f"{' and '.join(changed)} {'are' if changed[1:] else 'is'} not used"
    return f"{Path(recipe.run.script).name} says itself what it trains: {said}; set it there (run.script_args)"


def data_notice(recipe: Recipe) -> str:
    """Return what becomes of a folder of the user's own, or of keys by which a script does not go,
    in a sentence; "" where there is nothing to say."""
    section = recipe.data
    if recipe.run.script:
        return _unused_by_script(recipe)
    if section.partition == "local":
        unsaid = is_custom(section) and not section.classes and not section.labels
        if not unsaid or section.target in ("values", "none"):
            return ""
        return (
            "data.partition = local and neither data.classes nor data.labels is set: where targets are "
            "classes, each board counts those in its own data, and boards that find other numbers "
            "cannot train together; declare data.labels, data.classes, or data.target = values, to be sure"
        )
    if not section.dir or not is_custom(section):
        return ""
    return (
        f"data.partition = {section.partition}: every board must find the same data in data.dir, "
        f"and trains on its share, about 1/{recipe.run.nodes} of them; if each board's folder holds "
        'data of its own, set data.partition = "local"'
    )
