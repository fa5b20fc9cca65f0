"""`data.name = "huggingface"`: what `Dataset.save_to_disk` of the package datasets wrote, also with
the parts "train" and "test".

Columns of numbers and texts are a table (`tables`). An input, or a target, that is a list or a
picture is read when it is needed. data.params are those of a table, and for pictures those of
`pictures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data import tables
from edgegossip.training.data.base import Batch, Board, ItemInputs, Items
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.data.pictures import PARAMS, File, PictureForm, Pictures, check_together
from edgegossip.types import ConfigError, DataError, HostError

_Read: TypeAlias = Callable[[int], NDArray[Any]]  # of row k, the value of a column


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or unfit parameters, HostError without the package datasets."""
    tables.check_columns(section, PARAMS)
    if find_spec("datasets") is None:
        raise HostError("data.name = huggingface needs the package datasets: pip install datasets")


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless the folder is there."""
    own_folder(section.name, folder)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Open the data set. Raises DataError, with row and column, for what cannot be read."""
    from datasets import DatasetDict, load_from_disk

    root = own_folder(section.name, folder)
    try:
        opened = load_from_disk(str(root))
    except (OSError, ValueError) as error:
        raise DataError(f"{root} is not what Dataset.save_to_disk wrote: {error}") from None
    found = opened if isinstance(opened, DatasetDict) else {"train": opened}
    if "train" not in found:
        raise DataError(f'{root}: expected a part named "train" (and "test"), found {", ".join(found)}')
    named = {f"{root}, {name}": found[name] for name in ("train", "test") if name in found}
    told = tables.passed_over([name for name in found if name not in ("train", "test")])
    wanted, train = tables.wanted_of(section), found["train"]
    names = tables.chosen(str(root), train.column_names, section)
    for source, part in named.items():
        if lacks := [name for name in (*names, *wanted) if name not in part.column_names]:
            raise DataError(f"{source} has no column {lacks[0]}; it has {', '.join(part.column_names)}")
    classes = getattr(train.features[wanted[0]], "names", ()) if len(wanted) == 1 else ()
    if classes and not section.labels:  # theirs have an order of their own
        section = replace(section, labels=list(classes))
    plain = [name for name in (*names, *wanted) if _is_plain(train.features[name])]
    pictures = _is_picture(train.features[names[0]]) and len(names) == 1
    if key := next((key for key in PARAMS if key in section.params and not pictures), None):
        raise ConfigError(f"data.params.{key}: no column of {root} that is an input holds pictures; leave it out")
    left = [name for name in train.column_names if name not in (*names, *wanted)]
    told |= {"left_out": left} if left else {}
    known = [name for name in wanted if name in plain]
    if len(plain) == len(names) + len(wanted):
        read = [_table(source, part, [*names, *wanted], wanted) for source, part in named.items()]
        return tables.parts(read, section, told)
    if len(names) > 1 or (len(wanted) > 1 and len(known) < len(wanted)):
        raise DataError(
            f"{root}: a list or a picture is an input by itself, or the only target: choose columns (data.params.columns, "
            "target)"
        )
    targets, labels = tables.targets([_table(*part, known, known) for part in named.items()], known, section)
    made: list[Items] = []
    for (source, part), given in zip(named.items(), targets, strict=True):
        target = _reader(source, part, wanted[0]) if wanted and not known else None
        if pictures:
            made.append(_pictures(source, part, names[0], target, given, section))
        else:
            made.append(_rows(source, part, names[0], target, given))
    check_together(made, list(named))
    return replace(made[0], told={"columns": names, **told}), made[1] if len(made) > 1 else None, labels


def _is_plain(feature: Any) -> bool:
    return type(feature).__name__ in ("Value", "ClassLabel")


def _is_picture(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _table(source: str, dataset: Any, names: Sequence[str], wanted: Sequence[str]) -> tables.ReadTable:
    """Columns in memory; those to predict with the names that this part has for its classes."""
    frame = dataset.select_columns(list(names)).to_pandas()
    for name in wanted:
        if classes := getattr(dataset.features[name], "names", None):
            numbers = frame[name].to_numpy()
            for k in np.flatnonzero(~((numbers >= 0) & (numbers < len(classes))))[:1]:
                raise DataError(
                    f"{source}, row {k + 1}: column {name} holds {numbers[k]}, which is none of its {len(classes)} classes"
                )
            frame[name] = [classes[int(number)] for number in numbers]
    return tables.ReadTable(source, frame)


def _rows(source: str, dataset: Any, name: str, target: _Read | None, known: NDArray[Any] | None) -> Items:
    """Lists of numbers, each read when it is needed."""
    value = _reader(source, dataset, name)

    def item(k: int) -> Batch:
        return Batch(np.atleast_1d(value(k)), target(k) if target is not None else None if known is None else known[k])

    return Items(known, ItemInputs(item, len(dataset)))


def _reader(source: str, dataset: Any, name: str) -> _Read:
    """What reads a value of a column, in the type that is stored: the package datasets widens those
    of few bits to what tokens are."""
    rows, inner = dataset.select_columns([name]).with_format("numpy"), dataset.features[name]
    while hasattr(inner, "feature"):
        inner = inner.feature
    stored = getattr(inner, "dtype", "")
    kind = stored if stored in ("int8", "uint8", "int16", "uint16") else None

    def value(k: int) -> NDArray[Any]:
        found = np.asarray(rows[k][name], kind)
        if found.dtype.kind not in "iufb":
            raise DataError(f"{source}, row {k + 1}: column {name} holds {found.dtype}, and lists hold numbers")
        return found

    return value


def _pictures(
    source: str, dataset: Any, name: str, target: _Read | None, known: NDArray[Any] | None, section: DataSection
) -> Pictures:
    """Pictures, looked through once."""
    stored = dataset.select_columns([name]).with_format(None)
    stored = stored.cast_column(name, type(dataset.features[name])(decode=False))

    def file(k: int) -> File:
        found = stored[k][name]
        where = f"{source}, row {k + 1}: column {name}"
        if found is None:
            raise DataError(f"{where} holds nothing")
        return where, Path(found["path"]) if found["bytes"] is None else BytesIO(found["bytes"])

    return Pictures.of(file, len(stored), PictureForm.of(section), known, target)
