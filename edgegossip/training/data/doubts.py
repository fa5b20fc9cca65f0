"""What in the data themselves keeps a model from learning, whatever its learning rate: said before
the first round, by `edgegossip data describe`, and by the verdict of a run that learnt nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.data.base import Description, Examples, InMemory, Items, Part, Selected, Stream
from edgegossip.training.data.schema import blurred

_LOOKED_AT, _MADE = 64, 8  # examples, spread over all; of those that are made one by one
_VALUES = 1 << 21  # in them
_FAINT = 0.02  # where normalised inputs differ by less, a model sees the same in all
_ROWS = 20  # a table has at least, of which anything is said
_CODES = (999, 9999, 99999, 999999)  # of no measurement, with either sign: one of them is enough
_MEASURED = 10  # different values of a column make it one of measurements
_LARGE = 100.0  # where a first step of any usual learning rate is far too large


def doubts(train: Part, about: Description, whole: bool = False) -> list[str]:
    """Return a sentence, with its cure, for each thing that is doubtful in a board's training
    examples; of a stream nothing is known. Looks at a few of them, at all rows of a table in
    memory. `whole`: they are all there are, and no share that was dealt out."""
    if isinstance(train, Stream) or len(train) < 2:
        return []
    most = _MADE if isinstance(train, Items) else _LOOKED_AT
    count = max(2, min(most, _VALUES // math.prod(about.shape)))
    places = np.unique(np.linspace(0, len(train) - 1, count).astype(np.int64))
    batch = train.take(places)
    inputs, some = batch.inputs, "" if len(places) == len(train) else f" in the {len(places)} that were looked at"
    if (inputs == inputs[:1]).all():
        what = f"every value is {inputs.flat[0]}" if (inputs == inputs.flat[0]).all() else "every input is the same"
        return [f"{what}{some}, and nothing can be told apart by them; look at how the data were made and are read"]
    found = _about_columns(train, about, whole)
    if not found and about.dtype != "int64" and about.scale != "together":
        found = _about_inputs(inputs, about)
    found += _about_classes(train, about) if whole else []
    if inputs.dtype == np.float64 and (places_of := np.argwhere(blurred(inputs))[:1].tolist()):
        found.append(
            f"float32 cannot tell the values at {places_of[0]} of an input apart{some}; subtract a constant from them"
        )
    if about.target == "values" and batch.targets is not None:
        found += _about_values(batch.targets)
    return found


def _about_columns(train: Examples, about: Description, whole: bool) -> list[str]:
    """Of a table in memory: what loggers write where they measured nothing, and numbers of rows."""
    inputs = train.inputs.inputs if isinstance(train.inputs, Selected) else train.inputs
    array = inputs.array if isinstance(inputs, InMemory) and not isinstance(inputs.array, np.memmap) else None
    if array is None or array.ndim != 2 or array.dtype.kind != "f" or len(array) < _ROWS:
        return []
    found = []
    for k, values in enumerate(array.T):
        name = f"column {about.columns[k]}" if len(about.columns) == array.shape[1] else f"column {k + 1}"
        for code in (values.min(), values.max()):
            rest = values[values != code]
            of_nothing = abs(code) in _CODES or (
                len(values) - len(rest) > 1 and len(np.unique(rest[:_LOOKED_AT])) >= _MEASURED
            )
            if of_nothing and len(rest) and (span := np.ptp(rest)) and np.abs(rest - code).min() > span:
                found.append(
                    f"{name} holds {code:g} in {len(values) - len(rest)} of {len(values)} rows, far from its other values, "
                    f"{rest.min():g} to {rest.max():g}; if it means that nothing was measured, leave these rows out"
                )
        if (
            whole
            and about.columns
            and values[0] in (0, 1)
            and np.array_equal(values, np.arange(len(values)) + values[0])
        ):
            found.append(
                f"{name} counts the rows, from {values[0]:g} on; if it is no input, choose others (data.params.columns)"
            )
    return found


def _about_classes(train: Examples, about: Description) -> list[str]:
    if about.target != "class" or about.names or train.targets is None or about.classes < 3:
        return []
    if (np.unique(train.targets).tolist()) != list(range(1, about.classes)):
        return []
    return [f"class 0 of {about.classes} has no example, and all others have; if they are numbered from 1, subtract 1"]


def _about_inputs(inputs: NDArray[Any], about: Description) -> list[str]:
    channels = inputs.reshape(len(inputs), inputs.shape[1], -1).astype(np.float64)
    mean, std = (np.array(v or (w,))[None, :, None] for v, w in ((about.mean, 0.0), (about.std, 1.0)))
    scaled = (channels - mean) / std
    differ = float(np.sqrt(scaled.var(0).max()))
    if differ < _FAINT:
        return [
            f"inputs hardly differ: they are {inputs.min():g} to {inputs.max():g}, and {differ:.2g} apart as the model gets "
            "them; set data.normalise = board or together (of pictures of more than 8 bits, data.params.range)"
        ]
    sizes = np.sqrt(np.square(scaled).mean((0, 2)))
    k = int(sizes.argmax())
    if sizes[k] < _LARGE:
        return []
    where = f"channel {k + 1} of {len(sizes)}" if len(sizes) > 1 else "inputs"
    where = f"column {about.columns[k]}" if len(about.columns) == len(sizes) else where
    return [
        f"{where} has values of about {sizes[k]:.3g} as the model gets them; set data.normalise = board or together"
    ]


def _about_values(targets: NDArray[Any]) -> list[str]:
    if (targets == targets[:1]).all():
        return ["every target is the same, so there is nothing to learn"]
    if (size := float(np.sqrt(np.square(targets.astype(np.float64)).mean()))) < _LARGE:
        return []
    return [f"targets are of about {size:.3g}, far from what a new model gives; subtract a constant and divide them"]
