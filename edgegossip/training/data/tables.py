"""Tables: `data.name = "csv"` and `"parquet"`, as pandas reads them.

    DIR/train.csv and DIR/test.csv, or one *.csv in DIR     the same with .parquet

data.params: target, the column to predict, or a list of columns of numbers (left out: none);
columns, those that make an input, in this order (left out: all others); for csv also delimiter, and
decimal, the mark before fractions. Inputs are numbers. A target of words is classes; numbers are
what arrays of the same numbers are (`labels`). What may be either is asked.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.files import read_text
from edgegossip.recipe import DataSection
from edgegossip.training.data import labels, schema
from edgegossip.training.data.base import Board, Examples, InMemory
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.names import check_params
from edgegossip.types import ConfigError, DataError, HostError

if TYPE_CHECKING:
    import pandas

_MARKS = {"delimiter": ";", "decimal": ","}
_NEEDS = {"csv": ("pandas",), "parquet": ("pandas", "pyarrow")}
_TEST_PART = re.compile(r"test|testing|val|valid|validation", re.IGNORECASE)
_NUMBERS = ("integer", "floating", "mixed-integer-float", "boolean", "decimal")  # as pandas calls them
_DIGITS = re.compile(r"\d+")
_QUANTITY = re.compile(r"\W*\d")  # begins a date, a time, a price, a number with its unit
_MISSING = ("", "na", "n/a", "nan", "null", "<na>", "?", "-")  # folded, in place of a class


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or unfit parameters, HostError without the packages that read
    this kind of table."""
    check_columns(section, tuple(_MARKS) if section.name == "csv" else ())
    for key in _MARKS:
        value = section.params.get(key, ",")
        if not isinstance(value, str) or len(value) != 1 or (key == "decimal" and value not in ".,"):
            raise ConfigError(f"data.params.{key} = {value!r}: it is one character, such as {_MARKS[key]}")
    for module in _NEEDS[section.name]:
        if find_spec(module) is None:
            needs = " ".join(_NEEDS[section.name])
            raise HostError(f"data.name = {section.name} needs the package {module}: pip install {needs}")


def check_columns(section: DataSection, others: Sequence[str]) -> None:
    """Raise ConfigError for a parameter that is neither columns by name nor one of the `others`."""
    check_params("data.params", section.name, section.params, ("target", "columns", *others))
    for key, value in section.params.items():
        texts = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if key not in others and not isinstance(value, str) and not texts:
            raise ConfigError(f"data.params.{key} = {value!r}: name a column or a list of columns")


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless the files are there."""
    _files(own_folder(section.name, folder), section.name)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Read the tables. Raises DataError, with file, row and column, for what cannot be read."""
    root = own_folder(section.name, folder)
    files = [path for path in _files(root, section.name) if path is not None]
    tables = [_read(path, section) for path in files]
    skipped = [path.name for path in _tables(root, section.name) if path not in files]
    return parts(tables, section, passed_over(skipped, f".{section.name}"))


def passed_over(names: Sequence[str], kind: str = "") -> dict[str, Any]:
    """Return what `describe` says of tables that are not read."""
    return {"skipped": dict.fromkeys(names, f"neither train{kind} nor test{kind}")} if names else {}


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Holds a table as it was read. `source`: what errors call it."""

    source: str
    frame: pandas.DataFrame

    def at(self, name: str, k: int) -> str:
        """Say where a value stands."""
        return f"{self.source}, row {k + 1}: column {name}"

    def column(self, name: str) -> NDArray[Any]:
        """Return numbers [n], lists of numbers [n, ...], or texts as objects [n]. Raises DataError
        for what is missing, and for what is none of these."""
        from pandas.api.types import infer_dtype

        values = self.frame[name]
        if len(missing := np.flatnonzero(values.isna())):
            raise DataError(f"{self.at(name, int(missing[0]))} holds nothing: fill it, or leave the row out")
        if hasattr(values, "cat"):
            values = values.astype(values.cat.categories.dtype)
        kind = infer_dtype(values, skipna=False)
        if kind in _NUMBERS:
            found = np.asarray(values, getattr(values.dtype, "numpy_dtype", None))
            try:
                return found.astype(np.float64) if found.dtype == object else found
            except OverflowError:
                raise DataError(f"{self.source}: column {name} holds numbers beyond those of float64") from None
        if kind == "string":
            return np.array([schema.composed(text) for text in values], object)
        try:
            lists = np.stack(list(values))
        except (TypeError, ValueError):
            lists = np.empty(0, object)
        if lists.ndim < 2 or lists.dtype.kind not in "iufb":
            raise DataError(
                f"{self.source}: column {name} holds {kind}, and columns hold numbers, texts, or lists of numbers that are all "
                "as long: turn it into such, or choose others with data.params.columns"
            )
        return lists

    def numbers(self, name: str, what: str = "inputs are") -> NDArray[Any]:
        """Return a column of numbers. Raises DataError for texts. `what`: begins the sentence about
        what is allowed."""
        found = self.column(name)
        if found.dtype == object:
            from pandas import to_numeric

            k = int(np.argmax(np.isnan(to_numeric(found, errors="coerce"))))
            raise DataError(
                f"{self.at(name, k)} holds {found[k]!r:.80}, and {what} numbers: mend it, choose other data.params.columns, or "
                "say data.params.delimiter and decimal where the file is written with others"
            )
        return found

    def inputs(self, names: Sequence[str]) -> NDArray[Any]:
        """Return these columns as the inputs of a model. Raises DataError for what is no number of
        float32, and for numbers that it cannot tell apart."""
        columns = [self.numbers(name) for name in names]
        if len(columns) == 1 and columns[0].ndim > 1:
            return columns[0]
        for name, column in zip(names, columns, strict=True):
            if column.ndim > 1:
                raise DataError(
                    f"{self.source}: column {name} holds lists, which cannot stand beside others; make it the only input"
                )
        made = self._float32(names, columns)
        for name, column in zip(names, columns, strict=True):
            if schema.blurred(column).any():
                raise DataError(
                    f"{self.source}: column {name} has numbers from {column.min()} to {column.max()}, too close together for "
                    "float32 to tell them apart: subtract a constant from them, or choose other columns"
                )
        return made

    def values(self, names: Sequence[str]) -> NDArray[Any]:
        """Return these columns as numbers to predict, float32[n, columns]."""
        return self._float32(names, [self.numbers(name, "values are") for name in names])

    def _float32(self, names: Sequence[str], columns: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            made = np.stack([column.astype(np.float32) for column in columns], axis=1)
        for k, j in np.argwhere(~np.isfinite(made))[:1]:
            raise DataError(f"{self.at(names[j], k)} holds {columns[j][k]}, and float32 has no such number: mend it")
        return made


def parts(tables: Sequence[ReadTable], section: DataSection, told: Mapping[str, Any]) -> Parts:
    """Make a training part, and perhaps a test part, of tables. `told`: what else `describe` says
    of the training part."""
    wanted, first = wanted_of(section), tables[0]
    names = chosen(first.source, list(first.frame), section)
    told = {"columns": names, **told}
    if left := [name for name in first.frame if name not in (*names, *wanted)]:
        told["left_out"] = left
    for table in tables[1:]:  # which may have more columns, in another order
        chosen(table.source, list(table.frame), replace(section, params={**section.params, "columns": names}))
    found, classes = targets(tables, wanted, section)
    made = [
        Examples(target, InMemory(table.inputs(names)), told=told) for table, target in zip(tables, found, strict=True)
    ]
    return made[0], made[1] if len(made) > 1 else None, classes


def wanted_of(section: DataSection) -> list[str]:
    """Return the columns that are predicted."""
    target = section.params.get("target", [])
    return [target] if isinstance(target, str) else list(target)


def chosen(source: str, there: Sequence[str], section: DataSection) -> list[str]:
    """Return the columns that are inputs. Raises DataError for a chosen one that is not there."""
    wanted, given = wanted_of(section), section.params.get("columns")
    inputs = [given] if isinstance(given, str) else given
    if inputs is None:
        inputs = [name for name in there if name not in wanted]
        if "" in inputs:
            raise DataError(
                f"{source}: column {list(there).index('') + 1} of {len(there)} has no name, as pandas writes its index: name it, "
                "or choose with data.params.columns"
            )
    for name in (*inputs, *wanted):
        if there.count(name) > 1:
            raise DataError(f"{source}: there are {there.count(name)} columns {name!r}; give each a name of its own")
        if name not in there:
            raise DataError(
                f"{source}: there is no column {name!r}{did_you_mean(name, there)} (columns: {', '.join(there)})"
            )
    if not inputs:
        raise DataError(f"{source}: no column is left for the inputs; name them with data.params.columns")
    both = next((name for name in inputs if name in wanted), None)
    if both is not None:
        raise ConfigError(f"data.params: {both!r} is an input and the target; a model would only have to copy it")
    return list(inputs)


def targets(
    tables: Sequence[ReadTable], wanted: Sequence[str], section: DataSection
) -> tuple[list[NDArray[Any] | None], tuple[str, ...]]:
    """Return the targets of the training and the test table, and the names of classes."""
    if not wanted:
        return [None] * len(tables), ()
    if len(wanted) > 1 or section.target in ("values", "labels"):
        if len(wanted) == 1 and tables[0].column(wanted[0]).ndim > 1:
            return [table.column(wanted[0]) for table in tables], ()
        made = [table.values(wanted) for table in tables]
        if section.target == "labels":
            for table, values in zip(tables, made, strict=True):
                for k, j in np.argwhere((values != 0) & (values != 1))[:1]:
                    where = table.at(wanted[j], k)
                    raise DataError(f"{where} holds {values[k, j]:g}, and with data.target = labels all are 0 or 1")
            return [values.astype(bool) for values in made], ()
        return [values[:, 0] if len(wanted) == 1 else values for values in made], ()
    name = wanted[0]
    columns = [table.column(name) for table in tables]
    texts = any(column.dtype == object for column in columns)
    if not texts and (columns[0].ndim > 1 or not _go_by_text(section)):
        return list(columns), ()
    listed: list[list[str]] = [[str(value) for value in column.tolist()] for column in columns]
    classes = schema.class_names(section) or _names(tables, name, listed, section)
    places = {text: k for k, text in enumerate(classes)}
    for table, texts_of in zip(tables, listed, strict=True):
        for k, text in enumerate(texts_of):
            if text not in places:
                raise schema.undeclared(
                    f"{table.at(name, k)} holds {text!r:.80}, which is", did_you_mean(text, classes)
                )
    return [np.array([places[text] for text in of], np.int64) for of in listed], classes


def _go_by_text(section: DataSection) -> bool:
    """Whether classes have names that are numbers elsewhere: they are what is written."""
    return any(_QUANTITY.match(name) or name in ("True", "False") for name in section.labels)


def _names(
    tables: Sequence[ReadTable], column: str, listed: Sequence[Sequence[str]], section: DataSection
) -> tuple[str, ...]:
    """The names of classes that nobody declared, in alphabetical order. Raises DataError for what
    is hardly a name."""
    train, values = tables[0], listed[0]
    names = tuple(sorted(set(values)))

    def first(name: str) -> str:
        return f"{train.at(column, values.index(name))} holds {name!r:.80}"

    for name in names:
        if name.casefold() in _MISSING:
            raise DataError(f"{first(name)}, as where a value is missing; if it is a class, declare data.labels")
    if pair := schema.twins(names):
        raise DataError(f"{first(pair[1])}, and {first(pair[0])}: write them alike, or declare data.labels")
    odd = [name for name in names if _QUANTITY.match(name)]
    if odd and section.target == "auto" and not all(map(_DIGITS.fullmatch, names)):
        raise DataError(
            f"{first(odd[0])}, and is the target: a number or the name of a class? Write numbers only (data.params.decimal = "
            '"," reads a decimal comma), or declare data.labels, or set data.target = "class"'
        )
    where = f"{train.source}: column {column}"
    if section.classes and section.classes != len(names):
        raise DataError(
            f"{where} has {len(names)} names ({', '.join(names[:4])}), and data.classes = {section.classes}: declare "
            "data.labels, so that it is known which number each has"
        )
    if not section.classes:
        places = {name: k for k, name in enumerate(names)}
        numbers = np.array([places[name] for name in values], np.int64)
        labels.check_classes(where, [numbers], named=section.target == "class")
    return names


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
    there = f"there are {', '.join(p.name for p in found[:4])}" if found else "there is none"
    raise DataError(f"{root}: expected train.{kind} (and test.{kind}), or one .{kind} file; {there}")


def _tables(root: Path, kind: str) -> list[Path]:
    """The tables that a user sees in a folder."""
    found = (path for path in root.iterdir() if path.suffix.casefold() == f".{kind}" and path.is_file())
    return sorted(path for path in found if not path.name.startswith("."))


def _read(path: Path, section: DataSection) -> ReadTable:
    import pandas

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = _read_csv(path, section) if section.name == "csv" else pandas.read_parquet(path)
    except (OSError, ValueError, pandas.errors.ParserWarning) as error:  # pyarrow's own are kinds of these
        raise DataError(f"{path} cannot be read as {section.name}: {str(error).strip()}") from None
    if not len(frame):
        raise DataError(f"{path}: there are no examples; at least one is needed")
    return ReadTable(str(path), frame)


def _read_csv(path: Path, section: DataSection) -> pandas.DataFrame:
    """All columns; those to predict as they are written, unless all of them are numbers."""
    import pandas

    marks = {"sep": section.params.get("delimiter", ","), "decimal": section.params.get("decimal", ".")}
    text, wanted = read_text(path), wanted_of(section)
    first = pandas.read_csv(io.StringIO(text), **marks, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [name.strip() for name in first.iloc[0]]
    inputs = [name for name in names if name not in wanted]
    numbered = inputs == [str(k) for k in range(len(inputs))]
    if "columns" not in section.params and not numbered and _as_numbers(pandas.Series(inputs), ".") is not None:
        raise DataError(
            f"{path}: its first line holds numbers ({inputs[0]}) and no names of columns: put a first line with names (if these "
            "are names, list them in data.params.columns)"
        )
    frame = pandas.read_csv(io.StringIO(text), **marks, index_col=False, low_memory=False)
    places = [k for k, name in enumerate(names) if name in wanted]
    as_text = {"sep": marks["sep"], "usecols": places, "dtype": str, "keep_default_na": False}
    targets = pandas.read_csv(io.StringIO(text), **as_text) if places else frame
    for j, k in enumerate(places):
        written = targets.iloc[:, j].str.strip()
        numbers = None if _go_by_text(section) else _as_numbers(written, marks["decimal"])
        frame.isetitem(k, written if numbers is None else numbers)
    frame.columns = names
    return frame


def _as_numbers(texts: pandas.Series[str], decimal: str) -> pandas.Series[float] | None:
    """Texts as the numbers that all of them are, none with the zeros in front that a code has."""
    import pandas

    pointed = texts
    if decimal == ",":  # a point then stands in no number
        pointed = texts.str.replace(".", "?", regex=False).str.replace(",", ".", regex=False)
    numbers = pandas.to_numeric(pointed, errors="coerce")
    coded = texts.str.fullmatch(r"0\d+", na=False).any()
    return None if coded or not len(texts) or numbers.isna().any() else numbers
