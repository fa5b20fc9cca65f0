"""What in the data themselves keeps a model from learning, whatever its learning rate: said before
the first round, by `edgegossip data describe`, and by the verdict of a run that learnt nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.data.base import Batch, Description, Examples, ExampleStream, InMemory, Items, Part, Selected
from edgegossip.training.data.schema import blurred

_LOOKED_AT, _MADE = 64, 8  # examples, spread over all; of those that are made one by one
_VALUES = 1 << 21  # in them
_FAINT = 0.02  # where normalised inputs differ by less, a model sees the same in all
_ROWS = 20  # a table has at least, of which anything is said
_CODES = (999, 9999, 99999, 999999)  # of no measurement, with either sign: one of them is enough
_MEASURED = 10  # different values of a column make it one of measurements
_NAMED = 4  # classes, folders and columns
_LARGE = 100.0  # where a first step of any usual learning rate is far too large


def doubts(train: Part, about: Description, whole: bool = False, test: Examples | None = None) -> list[str]:
    """Return a sentence, with its cure, for each thing that is doubtful in a board's training
    examples; of a stream nothing is known. Looks at a few of them, and at many rows of a table in
    memory. `whole`: they are all there are, and no share that was dealt out. `test`: what is tested
    on, held against all of them that are in memory."""
    if isinstance(train, ExampleStream) or len(train) < 2:
        return []
    batch = _sample(train, about)
    inputs = batch.inputs
    some = "" if len(inputs) == len(train) else f" in the {len(inputs)} that were looked at"
    if (inputs == inputs[:1]).all():
        what = f"every value is {inputs.flat[0]}" if (inputs == inputs.flat[0]).all() else "every input is the same"
        return [f"{what}{some}, and nothing can be told apart by them; look at how the data were made and are read"]
    found = _about_columns(train, inputs, about)
    if not found and about.dtype != "int64" and about.scale != "together":
        found = _about_inputs(inputs, about)
    found += _about_classes(train, test, about) if whole else []
    if inputs.dtype == np.float64 and (places_of := np.argwhere(blurred(inputs))[:1].tolist()):
        found.append(
            f"float32 cannot tell the values at {places_of[0]} of an input apart{some}; subtract a constant from them"
        )
    if about.target == "values" and batch.targets is not None:
        whole_of = train.targets if train.targets is not None and train.targets.size <= _VALUES else batch.targets
        found += _about_values(np.asarray(whole_of))
    return found


def sizes(train: Part, about: Description) -> dict[str, float]:
    """Return of what size the inputs are as the model gets them, to one digit, by column or channel
    where these are few: what boards may tell each other (`agreement.unlike`). Empty where nothing
    is known."""
    if isinstance(train, ExampleStream) or not len(train) or about.dtype == "int64" or about.scale == "board":
        return {}  # what each board has scaled by itself has no unit left
    values = np.abs(_scaled(_sample(train, about).inputs, about))
    few = values.shape[1] <= _LOOKED_AT
    found = dict(zip(_channels(about), _by_channel(values), strict=True)) if few else {"the input": values.reshape(-1)}
    return {name: float(f"{np.median(of[of != 0]):.0e}") for name, of in found.items() if of.any()}


def _sample(part: Examples, about: Description) -> Batch:
    """A few examples, from the first to the last."""
    most = _MADE if isinstance(part, Items) else _LOOKED_AT
    count = max(2, min(most, _VALUES // math.prod(about.shape)))
    return part.take(np.unique(np.linspace(0, len(part) - 1, count).astype(np.int64)))


def _rows(part: Examples) -> NDArray[Any] | None:
    """All rows of a table in memory; None of what is none."""
    inputs = part.inputs.inputs if isinstance(part.inputs, Selected) else part.inputs
    array = inputs.array if isinstance(inputs, InMemory) and not isinstance(inputs.array, np.memmap) else None
    return array if array is not None and array.ndim == 2 and len(array) >= _ROWS else None


def _channels(about: Description) -> list[str]:
    """What the first dimension of an input holds, by name."""
    count = about.shape[0]
    if len(about.columns) == count:
        return [f"column {name}" for name in about.columns]
    return [f"channel {k + 1} of {count}" for k in range(count)] if count > 1 else ["the input"]


def _by_channel(inputs: NDArray[Any]) -> list[NDArray[Any]]:
    """The values of each channel; of a table without a copy."""
    return [inputs[:, k].reshape(-1) for k in range(inputs.shape[1])]


def _about_columns(train: Examples, inputs: NDArray[Any], about: Description) -> list[str]:
    """What loggers write where they measured nothing."""
    if about.dtype != "float32":
        return []
    table = _rows(train)
    some = inputs if table is None else table[:: 1 + table.size // _VALUES]
    of = "rows" if table is not None and len(some) == len(table) else "values that were looked at"
    columns = zip(_channels(about), _by_channel(some), strict=True)
    return [f"{name} {said}" for name, values in columns for said in _of_nothing(values.astype(np.float64), of)]


def _of_nothing(values: NDArray[np.float64], of: str) -> list[str]:
    """What is said of a code among measurements: it lies farther from all others than these from
    each other."""
    found = []
    for code in (values.min(), values.max()) if len(values) >= _ROWS else ():
        rest = values[values != code]
        count = len(values) - len(rest)
        if not code or not len(rest) or not (span := np.ptp(rest)) or np.abs(rest - code).min() <= span:
            continue
        measured = 1 < count <= len(rest) and len(np.unique(rest[:_LOOKED_AT])) >= _MEASURED
        if measured or abs(code) in _CODES:
            found.append(
                f"holds {code:g} in {count} of {len(values)} {of}, far from its other values, {rest.min():g} to "
                f"{rest.max():g}; if it means that nothing was measured, leave these rows out"
            )
    return found


def _about_classes(train: Examples, test: Examples | None, about: Description) -> list[str]:
    """Classes that are hardly what was meant, where the data alone say which there are."""
    if about.target != "class" or about.declared or about.names or train.targets is None:
        return []
    found, held = [], np.unique(train.targets)
    gaps = 2 * len(held) < about.classes or (len(held) > 2 and np.diff(held).min() > 1)
    if gaps or (about.classes > 2 and held[0] > 0):
        found.append(
            f"of {about.classes} classes only {_named(list(map(str, held)))} have examples; number classes from 0, or in a "
            "table name them in data.labels; if some are only elsewhere, declare data.classes"
        )
    tested = None if test is None else test.targets
    if tested is not None and len(alone := np.setdiff1d(tested, held)):
        found.append(f"of class {_named(list(map(str, alone)))} there are examples to test on and none to train on")
    return found


def _named(names: Sequence[str]) -> str:
    """Names such as "a, b, c, d and 5 more"."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _about_inputs(inputs: NDArray[Any], about: Description) -> list[str]:
    scaled = _scaled(inputs, about)
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
    return [
        f"{_channels(about)[k]} has values of about {sizes[k]:.3g} as the model gets them; set data.normalise = board or "
        "together"
    ]


def _scaled(inputs: NDArray[Any], about: Description) -> NDArray[np.float64]:
    """Inputs as the model gets them, [n, channels, values]."""
    mean, std = (np.array(v or (w,))[None, :, None] for v, w in ((about.mean, 0.0), (about.std, 1.0)))
    flat = inputs.reshape(len(inputs), inputs.shape[1], -1).astype(np.float64)
    return np.asarray((flat - mean) / std)


def _about_values(targets: NDArray[Any]) -> list[str]:
    if (targets == targets[:1]).all():
        return ["every target is the same, so there is nothing to learn"]
    columns = targets.reshape(len(targets), -1).astype(np.float64).T[:_LOOKED_AT]
    names = [f"value {k + 1} of the target" if len(columns) > 1 else "the target" for k in range(len(columns))]
    found = [f"{of} {said}" for of, c in zip(names, columns, strict=True) for said in _of_nothing(c, "rows")]
    if found:
        return found
    if (size := float(np.sqrt(np.square(targets.astype(np.float64)).mean()))) < _LARGE:
        return []
    return [f"targets are of about {size:.3g}, far from what a new model gives; subtract a constant and divide them"]
