"""Classes, whichever way arrays have them: int[n], a column [n, 1], one-hot rows [n, k], whole
numbers as floats. What is declared decides; where nothing is, what could be something else is
asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data.base import Examples, ExampleStream, Part, native, with_targets
from edgegossip.types import ConfigError, DataError

MANY = 20  # as many classes, or classes without an example, may always be
_LOOKED_AT = 64  # examples, where targets come one at a time
_WHOLE = 2.0**53  # below it a float holds every whole number
_FEW = 100  # different whole numbers among floats, which may be classes


def settled(
    source: str, train: Part, test: Examples | None, *, named: bool, section: DataSection
) -> tuple[Part, Examples | None]:
    """Return parts whose targets are classes with targets int64[n]. `named`: the reader went by the
    names of data.labels. Raises DataError, with the place of the target, for what is no class."""
    if section.labels and not named and section.labels != [str(k) for k in range(len(section.labels))]:
        number = next((name for name in section.labels if name.isascii() and name.isdigit()), None)
        if number is not None:
            raise ConfigError(
                f"data.labels has {number!r} as place {section.labels.index(number)}, and targets of {source} are places "
                "in it: give names that are no numbers, or let class k be called k"
            )
    made = [
        with_targets(part, partial(as_labels, f"{source}, {what} part"))
        for what, part in (("training", train), ("test", test))
        if part is not None
    ]
    known = [p.targets for p in made if isinstance(p, Examples) and p.targets is not None]
    if len(known) == len(made) and not section.classes and not section.labels and not named:
        check_classes(source, known, named=section.target == "class")
    return made[0], None if test is None else made[1]  # type: ignore[return-value]


def as_labels(source: str, targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return int64[n] of classes as `settled` takes them. Raises DataError, with the place."""
    if targets.ndim == 1 and targets.dtype == np.int64 and not isinstance(targets, np.memmap):
        return native(targets)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim == 2:
        bad = ~_one_hot(targets)
        rows: NDArray[Any] = targets.argmax(1)
    elif targets.ndim == 1:
        bad = ~(np.isfinite(targets) & (np.rint(targets) == targets) & (np.abs(targets.astype(np.float64)) < _WHOLE))
        rows = targets
    else:
        raise DataError(f"{source}: targets are {targets.dtype}{list(targets.shape[1:])}; a class is one number")
    if bad.any():
        k = int(bad.argmax())
        raise DataError(
            f"{source}: target {k} is {'not one-hot' if targets.ndim == 2 else targets[k]}, which is no class; if targets "
            'are values, set data.target = "values", and leave out data.classes and data.labels'
        )
    return np.array(rows, np.int64)  # in memory, also where they were a map: all are looked at


def are_classes(source: str, train: Part, first: NDArray[Any], section: DataSection) -> bool:
    """Tell whether targets are classes; `first` [1, ...] is that of the first example. Raises
    DataError for what is not as declared, and for what may be classes or not."""
    kind, width = first.dtype.kind, first.shape[1] if first.ndim == 2 else 0
    if section.target != "auto" or kind not in "iufb" or first.ndim > 2:
        return section.target == "class" and kind in "iufb"
    told = section.classes or len(section.labels)
    if kind in "iub" and (first.ndim == 1 or width == 1):
        return first.ndim == 1 or kind != "b"
    every = _seen(train, first)
    one_hot = width > 1 and kind != "b" and told in (0, width) and bool(_one_hot(every).all())
    if kind in "iub":
        return one_hot
    if told:
        if width > 1 and not one_hot:
            raise DataError(
                f"{source}: targets are {first.dtype}[{width}] and not one-hot, and {told} classes are declared: set "
                'data.target = "labels" where any may apply, or leave data.classes and data.labels out'
            )
        return True
    if one_hot or (len(every) > 1 and _few_whole(every)):
        shown, of_several = "one-hot" if one_hot else "whole numbers", width > 1 and not one_hot
        what, target = ("labels", "labels") if of_several else ("classes", "class")
        raise DataError(
            f"{source}: targets are {first.dtype}, and all of them {shown}; {what} or values? set data.target = "
            f'"{target}" or "values"'
        )
    return False


def check_classes(source: str, labels: Sequence[NDArray[np.int64]], *, named: bool) -> None:
    """Raise DataError where whole numbers [n] are hardly classes: far fewer than the largest would
    make, or nearly as many as there are examples. `named`: data.target = class is said, and only
    their range is looked at."""
    every = np.concatenate(list(labels))
    if not every.size:
        return
    low, high, different = int(every.min()), int(every.max()), len(np.unique(every))
    as_values = 'if these are numbers and no classes, set data.target = "values"'
    if low < 0:
        raise DataError(
            f"{source}: expected labels from 0, found {low}; number classes from 0, or in a table name them in data.labels; "
            f"{as_values}"
        )
    if high + 1 > 2 * different + MANY:
        raise DataError(
            f"{source}: {different} different whole numbers, and found the label {high}, which makes {high + 1} classes; "
            f"{as_values}, else declare data.labels or data.classes"
        )
    if not named and different > MANY and 2 * different > len(every):
        raise DataError(
            f"{source}: {different} different values in {len(every)} examples are hardly classes; {as_values}, else "
            'set data.target = "class"'
        )


def check_masks(source: str, different: int, high: int) -> None:
    """Raise DataError for labels of places that fit into a byte and are far fewer than the largest
    would make: masks of 0 and 255, or with 255 for places that do not count."""
    if high < 256 and high + 1 > 2 * different + MANY:
        raise DataError(
            f"{source}: masks have {different} different labels, and found the label {high}, which makes {high + 1} classes: "
            "number classes from 0, and places that do not count -100; or declare data.classes"
        )


def _seen(train: Part, first: NDArray[Any]) -> NDArray[Any]:
    """The targets, as far as they are known: all, or where the first one may be a class some of
    those that come one at a time."""
    if isinstance(train, ExampleStream):
        return first
    if train.targets is not None:
        return np.asarray(train.targets)
    if not np.isfinite(first).all() or (np.rint(first) != first).any():
        return first
    targets = train.take(np.unique(np.linspace(0, len(train) - 1, _LOOKED_AT).astype(np.int64))).targets
    return first if targets is None else targets


def _one_hot(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row [n, k] is a single one among zeros."""
    ones = targets == 1
    return np.asarray((ones.sum(1) == 1) & (ones | (targets == 0)).all(1))


def _few_whole(targets: NDArray[Any]) -> bool:
    """Whether floats are whole numbers from 0, few of them different and more than one."""
    if not np.isfinite(targets).all() or targets.min() < 0 or (np.rint(targets) != targets).any():
        return False
    return 1 < len(np.unique(targets)) <= min(_FEW, len(targets) // 2)
