"""Tables: `data.name = "csv"`, `"parquet"` and `"huggingface"`.

    DIR/train.csv and DIR/test.csv, or one *.csv in DIR     the same with .parquet
    what `Dataset.save_to_disk` of the package datasets wrote, also with "train" and "test"

data.params: target, the column to predict, or a list of columns of numbers (left out: none);
columns, those that make an input, in this order (left out: all others); for csv also delimiter, and
decimal, the mark before fractions. A target column of text or whole numbers is a class, one of
other numbers a value; what may be either is asked (`columns`). csv needs nothing, parquet pyarrow,
huggingface datasets.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.files import read_text
from edgegossip.recipe import DataSection
from edgegossip.training.data import columns, picture_column, pictures
from edgegossip.training.data.base import Batch, Board, Examples, InMemory, ItemInputs, Items
from edgegossip.training.data.columns import Column
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.names import unknown
from edgegossip.types import ConfigError, DataError, HostError

_MARKS = {"delimiter": ";", "decimal": ","}
_NEEDS = {
    "parquet": ("pyarrow", "pip install pyarrow"),
    "huggingface": ("datasets", "pip install datasets"),
}
_TEST_PART = re.compile(r"(?:test|testing|val|valid|validation)(?:-[0-9]{5}-of-[0-9]{5})?", re.IGNORECASE)
_FEW_BITS = ("int8", "uint8", "int16", "uint16")  # which the package datasets widens to what tokens are
_SEP = re.compile(r"sep=(.)")
_INDEX = re.compile(r"__index_level_\d+__")  # the rows' own names, which pandas writes beside its columns


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or unfit parameters, HostError without the package that reads
    this kind of table."""
    own: Mapping[str, Iterable[str]] = {"csv": _MARKS, "huggingface": pictures.PARAMS}
    allowed = ("target", "columns", *own.get(section.name, ()))
    for key, value in section.params.items():
        if key not in allowed:
            raise unknown(f"a key of data.params for {section.name}", key, allowed)
        if key in pictures.PARAMS:
            continue  # looked at where a column holds pictures
        texts = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if key in _MARKS and (not isinstance(value, str) or len(value) != 1):
            raise ConfigError(f"data.params.{key} = {value!r}: it is one character, such as {_MARKS[key]}")
        if not isinstance(value, str) and not texts:
            raise ConfigError(f"data.params.{key} = {value!r}: name a column or a list of columns")
    if section.params.get("decimal", ".") not in ".,":
        raise ConfigError(f"data.params.decimal = {section.params['decimal']!r}: it is a point or a comma")
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
    root = own_folder(section.name, folder)
    if section.name == "huggingface":
        return _huggingface(root, section)
    tables: list[_Table] = []
    files = [path for path in _files(root, section.name) if path is not None]
    for path in files:
        tables.append(_read(path, _as_before(section, tables[0].told["columns"]) if tables else section))
    if others := [path.name for path in _tables(root, section.name) if path not in files]:
        tables[0] = replace(tables[0], told={**tables[0].told, "skipped": _passed_over(others, f".{section.name}")})
    found, names = _targets([table.targets for table in tables], section)
    parts = [table.examples(targets) for table, targets in zip(tables, found, strict=True)]
    return parts[0], parts[1] if len(parts) > 1 else None, names


@dataclass(frozen=True, slots=True)
class _Table:
    """Is what was read of a file: the columns of the inputs and of the targets, and what was left
    out."""

    inputs: Sequence[Column]
    targets: Sequence[Column]
    told: Mapping[str, Any]

    def examples(self, targets: NDArray[Any] | None) -> Examples:
        """Return the rows as examples."""
        wide = next((c for c in self.inputs if np.ndim(c.values) > 1), None)
        if wide is None:
            made: NDArray[Any] = np.stack([c.float32() for c in self.inputs], axis=1)
        elif len(self.inputs) > 1:
            raise DataError(
                f"{wide.file}: column {wide.name} holds lists, which cannot stand beside others; make it the only input"
            )
        else:
            made = np.asarray(wide.values)
            made = wide.float32() if made.dtype.kind == "f" else made
        return Examples(targets, InMemory(made, self.told))


def _targets(
    tables: Sequence[Sequence[Column]], section: DataSection
) -> tuple[list[NDArray[Any] | None], tuple[str, ...]]:
    """The targets of the training and the test table, and the names of classes."""
    width = len(tables[0])
    if not width:
        return [None] * len(tables), ()
    if width == 1 and (section.target != "labels" or np.ndim(tables[0][0].values) > 1):
        found, names = columns.targets([table[0] for table in tables], section)
        return list(found), names
    made = [np.stack([c.float32("values are") for c in table], axis=1) for table in tables]
    if section.target != "labels":
        return list(made), ()
    for table, values in zip(tables, made, strict=True):
        for k, j in np.argwhere((values != 0) & (values != 1))[:1]:
            raise DataError(f"{table[j].at(k)} holds {values[k, j]:g}, and with data.target = labels all are 0 or 1")
    return [values.astype(bool) for values in made], ()


def _files(root: Path, kind: str) -> tuple[Path, Path | None]:
    """The training and the test table of a folder."""
    found = _tables(root, kind)
    named = {path.name.casefold(): path for path in reversed(found)}
    if (train := named.get(f"train.{kind}")) is not None:
        return train, named.get(f"test.{kind}")
    if len(found) == 1:
        if _TEST_PART.fullmatch(found[0].stem):
            raise DataError(
                f"{found[0]} is the only table, and its name is that of a test set: add train.{kind}, or give it another name "
                "if it is to train on"
            )
        return found[0], None
    others = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))[:4]
    there = f"there are {', '.join(p.name for p in found[:4])}" if found else "there is none"
    there += f", but {', '.join(others)}" if others and not found else ""
    raise DataError(f"{root}: expected train.{kind} (and test.{kind}), or one .{kind} file; {there}")


def _tables(root: Path, kind: str) -> list[Path]:
    """The tables that a user sees in a folder."""
    found = (path for path in root.iterdir() if path.suffix.casefold() == f".{kind}" and path.is_file())
    return sorted(path for path in found if not path.name.startswith("."))


def _passed_over(names: Sequence[str], kind: str = "") -> dict[str, str]:
    """What `describe` says of tables that are not read."""
    return dict.fromkeys(names, f"neither train{kind} nor test{kind}")


def _as_before(section: DataSection, names: Sequence[str]) -> DataSection:
    """The section of a test table, whose inputs are the columns of the training table in their
    order, whatever its own order is."""
    return replace(section, params={**section.params, "columns": list(names)})


def _wanted(section: DataSection) -> list[str]:
    target = section.params.get("target", [])
    return [target] if isinstance(target, str) else list(target)


def _chosen(path: Path, there: Sequence[str], section: DataSection, index: Sequence[str] = ()) -> list[str]:
    """The columns to read, inputs first; `index`: those that are the rows' names, and inputs only
    where they are asked for. Raises DataError for one that is not there."""
    targets, chosen = _wanted(section), section.params.get("columns")
    inputs = [chosen] if isinstance(chosen, str) else chosen
    if inputs is None:
        inputs = [name for name in there if name not in (*targets, *index) and not _INDEX.fullmatch(name)]
        if "" in inputs:
            raise DataError(
                f"{path}: column {there.index('') + 1} of {len(there)} has no name, as pandas writes its index and as a "
                "separator at the end of lines makes it; name it, or choose with data.params.columns"
            )
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


def _read(path: Path, section: DataSection) -> _Table:
    """The chosen columns of one file."""
    if section.name == "csv":
        return _read_csv(path, section)
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        there = file.schema_arrow.names
        index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        names = _chosen(path, there, section, [name for name in index if isinstance(name, str)])
        table = file.read(columns=names)
    except (OSError, ValueError) as error:  # pyarrow's own are kinds of these
        raise DataError(f"{path} cannot be read as parquet: {error}") from None
    return _table(names, [_typed(path, name, table.column(name)) for name in names], there, section)


def _table(names: Sequence[str], read: Sequence[Column], there: Sequence[str], section: DataSection) -> _Table:
    inputs = len(names) - len(_wanted(section))
    told: dict[str, Any] = {"columns": list(names[:inputs])}
    if left := [name for name in there if name not in names]:
        told["left_out"] = left
    return _Table(read[:inputs], read[inputs:], told)


def _read_csv(path: Path, section: DataSection) -> _Table:
    delimiter, decimal = section.params.get("delimiter", ","), section.params.get("decimal", ".")
    try:
        rows = csv.reader(io.StringIO(read_text(path)), delimiter=delimiter, strict=True)
        there = [name.strip() for name in next(rows, [])]
        if len(there) < 3 and (said := _SEP.fullmatch(delimiter.join(there))):
            raise DataError(
                f"{path}, line 1: {said[0]!r} tells Excel the delimiter, and is no line of names: remove it, and set "
                f"data.params.delimiter = {said[1]!r}"
            )
        other = next((mark for mark in ";\t|," if len(there) == 1 and mark != delimiter and mark in there[0]), None)
        if other is not None:
            raise DataError(
                f"{path}, line 1: there is no {delimiter!r} in it, and {other!r} is: set data.params.delimiter = {other!r}"
            )
        names = _chosen(path, there, section)
        places = [there.index(name) for name in names]
        inputs = len(names) - len(_wanted(section))
        cells: list[Any] = [array("d") if k < inputs else [] for k in range(len(names))]
        marks = [columns.Thousands() for _ in names] if "decimal" not in section.params else []
        lines = array("q")
        truths: dict[int, int] = {}  # how many of an input are True or False
        blank = 0
        for row in rows:
            if not row:
                blank += 1
                continue
            line = rows.line_num
            if len(row) != len(there):
                raise DataError(
                    f"{path}, line {line}: expected {len(there)} values, as in the first line, found {len(row)}"
                )
            lines.append(line)
            for k, (name, place) in enumerate(zip(names, places, strict=True)):
                text = row[place].strip()
                if not text:
                    raise DataError(f"{path}, line {line}: column {name} is empty")
                cell = columns.number(text, decimal) if k < inputs else text
                if cell != cell and text in columns.TRUTH:
                    truths[k] = truths.get(k, 0) + 1
                    cell = columns.TRUTH[text]
                if cell != cell or (k in truths and truths[k] != len(lines)):  # numbers and both
                    why = "inputs are numbers" + ", or all of a column True and False" * (k in truths)
                    raise columns.unfit(f"{path}, line {line}: column {name}", text, why)
                cells[k].append(cell)
                if marks:
                    marks[k].see(text, line)
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: cannot be read as csv: {error}") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as csv: {error}") from None
    values = [np.array(column) for column in cells[:inputs]] + cells[inputs:]
    read = [Column(path, name, column, lines, True, decimal) for name, column in zip(names, values, strict=True)]
    for name, seen in zip(names, marks, strict=False):
        seen.check(path, name)
    table = _table(names, read, there, section)
    _check_header(path, table.inputs)
    return replace(table, told={**table.told, "blank_lines": blank}) if blank else table


def _check_header(path: Path, inputs: Sequence[Column]) -> None:
    """Raise DataError where the first line is one of the data: where names are numbers, and half
    of them among those of their column. Columns may be numbered: 0, 1, 2."""
    named = [c for c in inputs if not np.isnan(c.number(c.name))]
    if not named or not len(named[0].values) or [c.name for c in named] == [str(k) for k in range(len(named))]:
        return
    inside = 0
    for column in named:
        values, name = column.float32(), column.number(column.name)
        low, high = float(values.min()), float(values.max())
        inside += low - (high - low) <= name <= high + (high - low)
    if 2 * inside < len(named):  # such as wavelengths
        return
    raise DataError(
        f"{path}, line 1: it holds numbers ({named[0].name}) and no names of columns: put a first line with names"
    )


def _typed(path: Path, name: str, found: Any) -> Column:
    """A column of pyarrow (`ChunkedArray`): numbers, texts, or lists of numbers that are all as
    long. Raises DataError for others, and for missing values."""
    from pyarrow import types

    kind = found.type
    if types.is_dictionary(kind):
        found, kind = found.cast(kind.value_type), kind.value_type
    if found.null_count:
        row = int(np.argmax(found.is_null().to_numpy())) + 1
        raise DataError(f"{path}, row {row}: column {name} holds nothing (null): fill it, or leave the row out")
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Column(path, name, found.to_pylist())
    if types.is_decimal(kind):
        return Column(path, name, np.array([float(value) for value in found.to_pylist()], np.float64))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return Column(path, name, found.to_numpy())
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise DataError(
            f"{path}: column {name} holds {kind}, and columns hold numbers, texts or lists of numbers: turn it into such, "
            "or choose others with data.params.columns"
        )
    rows = found.to_pylist()
    try:
        values = np.array(rows)
    except ValueError:
        raise DataError(f"{path}: column {name} holds lists of different lengths; pad them") from None
    if values.dtype.kind not in "iufb":
        bad = next((k for k, row in enumerate(rows) if np.array(row).dtype.kind not in "iufb"), 0)
        raise DataError(f"{path}, row {bad + 1}: column {name} holds {rows[bad]!r:.80}, and lists hold numbers")
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return Column(path, name, values.astype(kind.to_pandas_dtype()))  # 16 bits are no tokens


def _huggingface(root: Path, section: DataSection) -> Parts:
    """A data set on the disk, whose rows are read when they are needed."""
    from datasets import DatasetDict, load_from_disk

    try:
        opened = load_from_disk(str(root))
    except (OSError, ValueError) as error:
        raise DataError(f"{root} is not what Dataset.save_to_disk wrote: {error}") from None
    train, test, others = opened, None, []
    if isinstance(opened, DatasetDict):
        if "train" not in opened:
            raise DataError(f'{root}: expected a part named "train" (and "test"), found {", ".join(opened)}')
        train, test = opened["train"], opened.get("test")
        others = [name for name in opened if name not in ("train", "test")]
    parts = [part for part in (train, test) if part is not None]
    wanted = _wanted(section)
    feature = train.features.get(wanted[0]) if len(wanted) == 1 else None
    names = tuple(getattr(feature, "names", ()) or ())
    if names and not section.labels:  # theirs have an order of their own
        section = replace(section, labels=list(names))
    found: list[NDArray[Any] | None] = [None] * len(parts)
    if not any(type(train.features.get(name)).__name__ == "Image" for name in wanted):  # masks stay on the disk
        given = [[_column(root, part, name, names) for name in wanted] for part in parts]
        found, names = _targets(given, section)
    made: list[Examples] = []
    for part, targets in zip(parts, found, strict=True):
        inputs = _as_before(section, _inputs(root, train, section)) if made else section
        made.append(_rows(root, part, targets, inputs))
    pictures.check_together(made, [f"{root}, {name}" for name in ("train", "test")[: len(made)]])
    if others:
        told = {**made[0].inputs.told, "skipped": _passed_over(others)}
        made[0] = replace(made[0], inputs=replace(made[0].inputs, told=told))  # type: ignore[type-var]
    return made[0], made[1] if test is not None else None, names


def _column(root: Path, dataset: Any, name: str, names: Sequence[str]) -> Column:
    """A column of targets; `names`: of the training part's classes, where they are known. A part
    that numbers its classes for itself goes by its own names."""
    _chosen(root, dataset.column_names, DataSection(params={"target": name}))
    read = _typed(root, name, dataset.select_columns([name]).with_format("arrow")[:][name])
    if not names:
        return read
    names = getattr(dataset.features[name], "names", None) or names
    numbers = read.values
    if (bad := next((k for k, v in enumerate(numbers) if not 0 <= int(v) < len(names)), None)) is not None:
        raise DataError(f"{read.at(bad)} holds {numbers[bad]}, which is none of its {len(names)} classes")
    return replace(read, values=[names[int(v)] for v in numbers])


def _inputs(root: Path, dataset: Any, section: DataSection) -> list[str]:
    names = _chosen(root, dataset.column_names, section)
    return names[: len(names) - len(_wanted(section))]


def _rows(root: Path, dataset: Any, targets: NDArray[Any] | None, section: DataSection) -> Examples:
    wanted, inputs = _wanted(section), _inputs(root, dataset, section)
    shown = picture_column.find(root, dataset.features, inputs, section)
    apart = wanted if targets is None else []  # targets that are read with their inputs
    kinds = [dataset.features[name] for name in inputs]
    if not apart and all(type(kind).__name__ in ("Value", "ClassLabel") for kind in kinds):  # a table as any other
        table = dataset.select_columns(inputs).with_format("arrow")[:]
        read = [_typed(root, name, table.column(name)) for name in inputs]
        return _table([*inputs, *wanted], read, dataset.column_names, section).examples(targets)
    rows = dataset.select_columns(apart if shown else [*inputs, *apart]).with_format("numpy")

    few_bits = {name: kind for name in inputs if (kind := picture_column.kind_of(dataset.features[name])) in _FEW_BITS}

    def value(row: Mapping[str, Any], name: str) -> NDArray[Any]:
        found = np.asarray(row[name], few_bits.get(name))
        if found.dtype.kind not in "iufb":
            raise DataError(f"{root}: column {name} holds {found.dtype}, and inputs are numbers: leave it out")
        return found

    def joined(row: Mapping[str, Any], chosen: Sequence[str]) -> NDArray[Any]:
        found = [value(row, name) for name in chosen]
        return found[0] if len(found) == 1 and found[0].ndim else np.stack(found)

    def item(k: int) -> Batch:
        row = rows[k]
        return Batch(joined(row, inputs), joined(row, apart) if apart else None if targets is None else targets[k])

    if shown:
        target = (lambda k: joined(rows[k], apart)) if apart else None
        return picture_column.read(root, dataset, shown, section, targets, target)
    return Items(targets, ItemInputs(item, len(rows), {"columns": inputs}))
