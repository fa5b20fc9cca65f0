"""Tables: `data.name = "csv"`, `"parquet"` and `"huggingface"`.

    DIR/train.csv and DIR/test.csv, or one *.csv in DIR     the same with .parquet
    what `Dataset.save_to_disk` of the package datasets wrote, also with "train" and "test"

data.params: target, the column to predict, or a list of columns of numbers (left out: none);
columns, those that make an input, in this order (left out: all others); for csv also delimiter. A
target column of text or whole numbers is a class, one of other numbers a value; data.target says
which where that is wrong. csv needs nothing, parquet pyarrow, huggingface datasets.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.recipe import DataSection
from edgegossip.training.data import picture_column, pictures, schema
from edgegossip.training.data.base import Batch, Board, Examples, InMemory, ItemInputs, Items
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.names import unknown
from edgegossip.types import ConfigError, DataError, HostError

_NEEDS = {
    "parquet": ("pyarrow", "pip install pyarrow"),
    "huggingface": ("datasets", "pip install datasets"),
}
Columns = Mapping[str, list[Any]]  # name -> a value a row


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or unfit parameters, HostError without the package that reads
    this kind of table."""
    more: Mapping[str, Sequence[str]] = {"csv": ("delimiter",), "huggingface": pictures.PARAMS}
    allowed = ("target", "columns", *more.get(section.name, ()))
    for key, value in section.params.items():
        if key not in allowed:
            raise unknown(f"a key of data.params for {section.name}", key, allowed)
        if key in pictures.PARAMS:
            continue  # looked at where a column holds pictures
        texts = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if not isinstance(value, str) and not (texts and key != "delimiter"):
            raise ConfigError(
                f"data.params.{key} = {value!r}: name a column" + " or a list of columns" * (key != "delimiter")
            )
    delimiter = section.params.get("delimiter", ",")
    if len(delimiter) != 1:
        raise ConfigError(f"data.params.delimiter = {delimiter!r}: it is one character, such as ;")
    if section.name in _NEEDS:
        module, cure = _NEEDS[section.name]
        if find_spec(module) is None:
            raise HostError(f"data.name = {section.name} needs the package {module}: {cure}")


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless the files are there."""
    root = own_folder(section.name, folder)
    if section.name != "huggingface":
        _files(root, section.name)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Read the tables. Raises DataError, with file, line and column, for what cannot be read."""
    check(section)
    root = own_folder(section.name, folder)
    if section.name == "huggingface":
        return _huggingface(root, section)
    train, test = _files(root, section.name)
    tables = [(path, _read(path, section)) for path in (train, test) if path is not None]
    targets = _wanted(section)
    names: dict[str, int] = {}
    if len(targets) == 1 and section.target != "values":
        words = [v for _, table in tables for v in table[targets[0]] if isinstance(v, str)]
        if words:
            names = schema.numbered(str(root), list(dict.fromkeys(words)), section)
    parts = [_part(path, table, targets, names, section) for path, table in tables]
    return parts[0], parts[1] if test is not None else None, tuple(names)


def _files(root: Path, kind: str) -> tuple[Path, Path | None]:
    """The training and the test table of a folder."""
    train, test = root / f"train.{kind}", root / f"test.{kind}"
    if train.is_file():
        return train, test if test.is_file() else None
    found = sorted(root.glob(f"*.{kind}"))
    if len(found) == 1:
        return found[0], None
    there = f"there are {', '.join(p.name for p in found[:4])}" if found else "there is none"
    raise DataError(f"{root}: expected train.{kind} (and test.{kind}), or one .{kind} file; {there}")


def _wanted(section: DataSection) -> list[str]:
    target = section.params.get("target", [])
    return [target] if isinstance(target, str) else list(target)


def _chosen(path: Path, there: Sequence[str], section: DataSection) -> list[str]:
    """The columns to read, inputs first. Raises DataError for one that is not there."""
    targets, columns = _wanted(section), section.params.get("columns")
    inputs = [columns] if isinstance(columns, str) else columns
    if inputs is None:
        inputs = [name for name in there if name not in targets]
    for name in (*inputs, *targets):
        if there.count(name) > 1:
            raise DataError(f"{path}: there are {there.count(name)} columns {name!r}; give each a name of its own")
        if name not in there:
            raise DataError(
                f"{path}: there is no column {name!r}{did_you_mean(name, there)} (columns: {', '.join(there)})"
            )
    if not inputs:
        raise DataError(f"{path}: no column is left for the inputs; name them with data.params.columns")
    both = next((name for name in inputs if name in targets), None)
    if both is not None:
        raise ConfigError(f"data.params: {both!r} is an input and the target; a model would only have to copy it")
    return [*inputs, *targets]


def _read(path: Path, section: DataSection) -> Columns:
    """The chosen columns, each with its values; text only where it is no number."""
    if section.name == "csv":
        return _read_csv(path, section)
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        names = _chosen(path, file.schema_arrow.names, section)
        table = file.read(columns=names)
        return {name: table.column(name).to_pylist() for name in names}
    except (OSError, ValueError) as error:  # pyarrow's own are kinds of these
        raise DataError(f"{path} cannot be read as parquet: {error}") from None


def _read_csv(path: Path, section: DataSection) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, delimiter=section.params.get("delimiter", ","))
            header = [name.strip() for name in next(rows, [])]
            names = _chosen(path, header, section)
            places = [header.index(name) for name in names]
            columns: dict[str, list[Any]] = {name: [] for name in names}
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {rows.line_num}: expected {len(header)} values, as in the first line, "
                        f"found {len(row)}"
                    )
                for name, place in zip(names, places, strict=True):
                    text = row[place].strip()
                    if not text:
                        raise DataError(f"{path}, line {rows.line_num}: column {name} is empty")
                    columns[name].append(_number(text))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as csv in UTF-8: {error}") from None
    return columns


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _part(
    path: Path,
    table: Columns,
    targets: Sequence[str],
    names: Mapping[str, int],
    section: DataSection,
) -> Examples:
    inputs = [name for name in table if name not in targets]
    columns = [_column(path, name, table[name]) for name in inputs]
    if len(columns) == 1 and columns[0].ndim > 1:
        stored = columns[0]
    else:
        wide = next((name for name, c in zip(inputs, columns, strict=True) if c.ndim > 1), None)
        if wide is not None:
            raise DataError(
                f"{path}: column {wide} holds lists, which cannot stand beside others; make it the only input"
            )
        stored = np.stack([c.astype(np.float32) for c in columns], axis=1)
    if stored.dtype == np.float64:
        stored = stored.astype(np.float32)
    return Examples(_targets(path, table, targets, names, section), InMemory(stored))


def _targets(
    path: Path,
    table: Columns,
    targets: Sequence[str],
    names: Mapping[str, int],
    section: DataSection,
) -> NDArray[Any] | None:
    if not targets:
        return None
    if len(targets) > 1:
        columns = [_column(path, name, table[name]) for name in targets]
        whole = section.target == "labels"
        return np.stack([c.astype(bool if whole else np.float32) for c in columns], axis=1)
    values = table[targets[0]]
    if names:
        mixed = next((v for v in values if not isinstance(v, str)), None)
        if mixed is not None:
            raise DataError(
                f"{path}: column {targets[0]} holds {mixed!r} among texts; its classes are texts or numbers"
            )
        return np.array([names[v] for v in values], np.int64)
    column = _column(path, targets[0], values)
    if column.dtype.kind == "f" or section.target == "values":
        return column.astype(np.float32)
    return column.astype(np.int64)


def _column(path: Path, name: str, values: list[Any]) -> NDArray[Any]:
    """A column of numbers, or of lists of numbers that are all as long. Raises DataError."""
    try:
        column = np.array(values)
    except ValueError:
        raise DataError(f"{path}: column {name} holds lists of different lengths; pad them") from None
    if column.dtype.kind not in "iufb":
        row, value = next(
            ((k, v) for k, v in enumerate(values) if isinstance(v, str) or v is None),
            (0, values[:1]),
        )
        what = "nothing" if value is None else repr(value)
        raise DataError(
            f"{path}: column {name} holds {what} (row {row + 1}), and inputs are numbers: leave it out with "
            "data.params.columns, or make it numbers"
        )
    return column


def _huggingface(root: Path, section: DataSection) -> Parts:
    """A data set on the disk, whose rows are read when they are needed."""
    from datasets import DatasetDict, load_from_disk

    try:
        opened = load_from_disk(str(root))
    except (OSError, ValueError) as error:
        raise DataError(f"{root} is not what Dataset.save_to_disk wrote: {error}") from None
    train, test = opened, None
    if isinstance(opened, DatasetDict):
        if "train" not in opened:
            raise DataError(f'{root}: expected a part named "train" (and "test"), found {", ".join(opened)}')
        train, test = opened["train"], opened.get("test")
    targets = _wanted(section)
    feature = train.features.get(targets[0]) if len(targets) == 1 else None
    names = tuple(getattr(feature, "names", ()) or ())
    made = [_rows(root, part, targets, section) for part in (train, test) if part is not None]
    pictures.check_together(made, [f"{root}, {name}" for name in ("train", "test")[: len(made)]])
    return made[0], made[1] if test is not None else None, names


def _rows(root: Path, dataset: Any, targets: Sequence[str], section: DataSection) -> Items:
    names = _chosen(root, dataset.column_names, section)
    inputs = names[: len(names) - len(targets)]
    shown = picture_column.find(root, dataset.features, inputs, section)
    rows = dataset.select_columns(targets if shown else names).with_format("numpy")

    def value(row: Mapping[str, Any], name: str) -> NDArray[Any]:
        found = np.asarray(row[name])
        if found.dtype.kind not in "iufb":
            raise DataError(f"{root}: column {name} holds {found.dtype}, and inputs are numbers: leave it out")
        return found

    def joined(row: Mapping[str, Any], chosen: Sequence[str]) -> NDArray[Any]:
        found = [value(row, name) for name in chosen]
        return found[0] if len(found) == 1 else np.stack(found)

    def item(k: int) -> Batch:
        row = rows[k]
        return Batch(joined(row, inputs), joined(row, targets) if targets else None)

    labels = None
    if len(targets) == 1:
        column = np.asarray(rows.select_columns(targets)[:][targets[0]])
        if column.dtype.kind in "iub" and column.ndim == 1 and section.target != "values":
            labels = column.astype(np.int64)
    if shown:
        target = (lambda k: joined(rows[k], targets)) if targets else None
        return picture_column.read(root, dataset, shown, section, labels, target)
    return Items(labels, ItemInputs(item, len(rows)))
