"""A column of a table: what its texts and numbers are taken for, and what is refused.

A number is written in ASCII digits, with a sign, a point and an exponent if need be. Python's
`float` reads more ("1_1", "nan", digits of every script), which in a table are names, codes or
mistakes. What could be two things is asked: an error names the file, the line and the key to set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.recipe import DataSection
from edgegossip.training.data import labels, schema
from edgegossip.training.data.schema import class_names, composed
from edgegossip.types import DataError

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CODE = re.compile(r"0[0-9]+")  # whole, with a leading zero: a name rather than a number
_PLAIN = re.compile(r"[+-]?[0-9]+")
_MISSING = {"na", "n/a", "n.a.", "#na", "#n/a", "#n/a n/a", "<na>", "nan", "-nan", "nat", "inf", "-inf", "-", "--", "?"}
_MISSING |= {"null", "(null)", "<null>", r"\n", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "1.#inf", "-1.#inf"}
_MISSING |= {"#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"}  # what a spreadsheet could not compute
TRUTH = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}  # where all are
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")

# What a text may be that is no number to us; the first that fits.
_MARKS = "[.,'\u2019 \u00a0\u202f]"
_QUANTITY = r"[+-]?(?:[0-9]+(?:[.,'\u2019 \u00a0\u202f][0-9]+)*|[.,][0-9]+)"
_LOOKS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"[+-]?[1-9][0-9]{0,2},[0-9]{3}",
            'marks of thousands or a decimal comma (which data.params.decimal = "," reads)',
        ),
        (rf"[+-]?[1-9][0-9]{{0,2}}(?:{_MARKS}[0-9]{{2,3}})*{_MARKS}[0-9]{{3}}(?:[.,][0-9]+)?", "marks of thousands"),
        (r"[+-]?[0-9]*,[0-9]+", 'a decimal comma (data.params.decimal = "," reads it)'),
        (rf"{_QUANTITY}\s*[%\u2030]", "a percent sign"),
        (rf"[\u20ac$\u00a3\u00a5\u20b9]\s*{_QUANTITY}|{_QUANTITY}\s*[\u20ac$\u00a3\u00a5\u20b9]", "a currency"),
        (r"[0-9]{4}([-/.])[0-9]{1,2}\1[0-9]{1,2}(?:[T ].*)?", "a date"),
        (r"[0-9]{1,2}([-/.])[0-9]{1,2}\1[0-9]{2,4}(?: .*)?", "a date"),
        (r"[0-9]{4}-(?:0[1-9]|1[0-2])|[0-9]{4}[- ]?(?:Q[1-4]|W[0-9]{2})", "a month, a week or a quarter"),
        (r"[0-9]{1,2}\.? [^\W\d_]{3,9}\.? [0-9]{4}|[^\W\d_]{3,9}\.? [0-9]{1,2},? [0-9]{4}", "a date"),
        (r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?", "a time of day"),
        (rf"{_QUANTITY}\s*([^\W\d_][^\d\s]{{0,7}}[0-9\u00b2\u00b3]?|\u00b0[^\W\d_]?)", "the unit"),
    )
]


@dataclass(frozen=True, slots=True)
class Column:
    """Holds one column: numbers [n, ...], or texts. `loose`: texts of a csv file, of which those
    that are written as numbers are numbers. `lines`: where each stands in its file."""

    file: Path
    name: str
    values: NDArray[Any] | list[str]
    lines: Sequence[int] = ()
    loose: bool = False
    decimal: str = "."

    def at(self, k: int) -> str:
        """Say where value k stands."""
        row = f"line {self.lines[k]}" if self.lines else f"row {k + 1}"
        return f"{self.file}, {row}: column {self.name}"

    def listed(self) -> list[Any]:
        """Return the values as Python's own."""
        return self.values if isinstance(self.values, list) else self.values.tolist()

    def number(self, value: Any) -> float:
        """Return a value as a number, NaN where it is none."""
        if not isinstance(value, str):
            return float(value)
        return number(value, self.decimal) if self.loose else np.nan

    def float32(self, what: str = "inputs are") -> NDArray[np.float32]:
        """Return all values as numbers that a model takes, [n, ...]. Raises DataError, with the
        line, for one that is none, and for values that float32 cannot tell apart. `what`: begins
        the sentence about what is allowed."""
        texts = isinstance(self.values, list)
        exact = np.array([self.number(v) for v in self.values]) if texts else np.asarray(self.values)
        with np.errstate(over="ignore"):
            made = exact.astype(np.float32)
        if not np.isfinite(made).all():
            k = int(np.argwhere(~np.isfinite(made))[0][0])
            why = f"{what} numbers" if np.isnan(exact[k]).any() else "float32 has no such number"
            raise unfit(self.at(k), self.values[k] if texts else exact[k].tolist(), why)
        if schema.blurred(exact).any():
            raise DataError(
                f"{self.file}: column {self.name} has numbers from {exact.min()} to {exact.max()}, too close together for "
                "float32 to tell them apart: subtract a constant from them, or choose other columns"
            )
        return made


class Thousands:
    """Looks whether the points of a column may be marks of thousands: each stands before three
    digits, and a number below 1,000 has none."""

    def __init__(self) -> None:
        self._marked: tuple[str, int] | None = None
        self._plain: tuple[str, int] | None = None
        self._open = True

    def see(self, text: str, line: int) -> None:
        """Look at the next number, in its line."""
        if not self._open:
            return
        if _THOUSANDS.fullmatch(text):
            self._marked = self._marked or (text, line)
        elif not _PLAIN.fullmatch(text) or len(text.lstrip("+-0")) > 3:
            self._open = False
        elif text.strip("+-0"):
            self._plain = self._plain or (text, line)

    def check(self, file: Path, name: str) -> None:
        """Raise DataError where that may be so."""
        if self._open and self._marked and self._plain:
            raise DataError(
                f"{file}, line {self._marked[1]}: column {name} holds {self._marked[0]!r}, and line {self._plain[1]} "
                f'{self._plain[0]!r}: marks of thousands, or fractions? Set data.params.decimal = "." if these are fractions; '
                "else write the numbers without marks"
            )


def number(text: str, decimal: str = ".") -> float:
    """Return the number that a text is, NaN where it is none. `decimal`: the mark before
    fractions; with a comma, a point stands in no number."""
    if decimal != ".":
        text = text.replace(".", "?").replace(decimal, ".")
    return float(text) if _NUMBER.fullmatch(text) else np.nan


def unfit(where: str, value: Any, why: str) -> DataError:
    """Return the error for a value that is no number to a model; `where` has file, line and
    column."""
    return DataError(f"{where} holds {value!r:.80}{_seems(value)}, and {why}: mend it, or choose other columns")


Place = tuple[Column, int]  # where a value stands first


def targets(columns: Sequence[Column], section: DataSection) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
    """Return what the target columns of the training and the test table hold: classes int64[n], or
    values float32[n, ...]; and the names of the classes where they have names.

    Raises DataError for what is not as declared, and for what could be classes or something
    else."""
    wide = any(isinstance(c.values, np.ndarray) and c.values.ndim > 1 for c in columns)
    if wide or section.target not in ("auto", "class"):
        return [np.asarray(c.values) if wide else c.float32("values are") for c in columns], ()
    listed = [[composed(v) if isinstance(v, str) else v for v in column.listed()] for column in columns]
    found: dict[Any, Place] = {}
    for column, values in zip(columns, listed, strict=True):
        for k, value in enumerate(values):
            found.setdefault(value, (column, k))
    numbers = {value: place[0].number(value) for value, place in found.items()}
    names = class_names(section)
    if names:
        classes = _declared(found, numbers, names)
    elif _are_numbers(found, numbers, section):
        if not _are_classes(found, numbers, section):
            return [c.float32("values are") for c in columns], ()
        classes = {value: int(number) for value, number in numbers.items()}
    else:
        names = _names(found, section)
        if (only := next((name for name, place in found.items() if place[0] is not columns[0]), None)) is not None:
            column, k = found[only]
            raise DataError(
                f"{column.at(k)} holds {only!r:.80}, a class without examples to train on: if that is meant, declare data.labels"
            )
        classes = {name: k for k, name in enumerate(names)}
    made = [np.array([classes[v] for v in values], np.int64) for values in listed]
    if not section.classes and not section.labels:
        labels.check_classes(f"{columns[0].file}: column {columns[0].name}", made, named=section.target == "class")
    return made, names


def _declared(found: dict[Any, Place], numbers: dict[Any, float], names: tuple[str, ...]) -> dict[Any, int]:
    """The class of each value: by its name in data.labels, 2.0 as "2"; where all names are words
    and all values whole numbers, by its place. A code is its own name only: 007 is not 7."""
    places = {name: k for k, name in enumerate(names)}
    numbers = {value: number for value, number in numbers.items() if not _is_code(value)}
    if not any(map(_NUMBER.fullmatch, names)) and all(n == np.rint(n) for n in numbers.values()):
        known = {value: int(number) for value, number in numbers.items() if 0 <= number < len(names)}
        allowed = f"; by place they are 0 to {len(names) - 1}"
    else:
        whole = [v for v, n in numbers.items() if v not in places and n == np.rint(n) and abs(n) < labels.WHOLE]
        words = {v: v for v in found} | {v: str(int(numbers[v])) for v in whole}
        known = {value: places[word] for value, word in words.items() if word in places}
        allowed = ""
    for value, (column, k) in found.items():
        if value not in known:
            near = allowed or did_you_mean(value, names)
            raise schema.undeclared(f"{column.at(k)} holds {value!r:.80}, which is", near)
    return known


def _are_numbers(found: dict[Any, Place], numbers: dict[Any, float], section: DataSection) -> bool:
    """Whether the values are numbers, rather than names of classes. Raises DataError for some of
    both."""
    texts = [value for value, number in numbers.items() if np.isnan(number)]
    if (none := next((value for value in texts if not isinstance(value, str)), None)) is not None:
        column, k = found[none]
        raise unfit(column.at(k), none, "that is no target")
    others = [value for value in numbers if value not in set(texts)]
    if not texts:
        return not any(map(_is_code, others)) or any(n != np.rint(n) for n in numbers.values())
    if others and section.target != "class":
        odd, among = (others[0], "texts") if len(others) <= len(texts) else (texts[0], "numbers")
        column, k = found[odd]
        raise DataError(
            f"{column.at(k)} holds {odd!r:.80}{_seems(odd)} among {among}: mend it; if all of them are names of classes, "
            'declare data.labels, or set data.target = "class"'
        )
    return False


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None


def _are_classes(found: dict[Any, Place], numbers: dict[Any, float], section: DataSection) -> bool:
    """Whether numbers are classes, rather than values. Raises DataError for what is no class where
    classes are declared, and for what may be either."""
    told = section.target == "class" or section.classes > 0
    low, high = min(numbers.values(), default=0.0), max(numbers.values(), default=0.0)
    for value, number in numbers.items():
        unfit = number != np.rint(number)
        if unfit and not told:
            return False
        if unfit or number >= labels.WHOLE or (section.classes and not 0 <= number < section.classes):
            column, k = found[value]
            most = f" of 0 to {section.classes - 1}" if section.classes else ""
            raise DataError(
                f"{column.at(k)} holds {value!r:.80}, which is no class{most}: set data.classes = N, one more than the largest, "
                'on every board, declare data.labels, or set data.target = "values"'
            )
    plain = all(isinstance(v, int) or (isinstance(v, str) and _PLAIN.fullmatch(v)) for v in numbers)
    if told or plain or low < 0 or len(set(numbers.values())) > labels.FEW:
        return told or plain
    value, (column, k) = next(iter(found.items()))
    raise DataError(
        f"{column.at(k)} holds {value!r:.80}; all of its numbers, {low:g} to {high:g}, are whole and not written so: classes or "
        'values? set data.target = "class" or "values"'
    )


def _names(found: dict[Any, Place], section: DataSection) -> tuple[str, ...]:
    """The names of classes that nobody declared, in alphabetical order. Raises DataError for what
    is hardly a name."""
    names = tuple(sorted(map(str, found)))
    cure = 'if they are names of classes, declare data.labels, or set data.target = "class"'
    for name, (column, k) in found.items():
        if str(name).casefold() in _MISSING:
            raise DataError(
                f"{column.at(k)} holds {name!r:.80}, as where a value is missing; if it is a class, declare data.labels"
            )
    if pair := schema.twins(list(map(str, found))):
        (first, m), (second, k) = (found[name] for name in pair)
        raise DataError(
            f"{second.at(k)} holds {pair[1]!r:.80}, and {first.at(m)} {pair[0]!r:.80}: write them alike, or declare data.labels"
        )
    column = next(iter(found.values()))[0]
    if section.classes and section.classes != len(names):
        raise DataError(
            f"{column.file}: column {column.name} has {len(names)} names ({', '.join(names[:4])}), and data.classes = "
            f"{section.classes}: declare data.labels, so that it is known which number each has"
        )
    seems = [_seems(name) for name in names]
    if section.target == "auto" and _are_measured(names, seems):
        shown = {seem: name for name, seem in zip(reversed(names), reversed(seems), strict=True) if seem}
        said = [f"{found[name][0].at(found[name][1])} holds {name!r:.80}{seem}" for seem, name in shown.items()]
        raise DataError(f"{'; '.join(said[-2:][::-1])}, and is the target: make it numbers; {cure}")
    return names


def _are_measured(names: Sequence[str], seems: Sequence[str]) -> bool:
    """Whether names are rather quantities that nobody made numbers: all of them, or most of many;
    those of several units where one unit stands behind several numbers, and not all from the first
    to the last, as they would number classes (1a, 1b, 2a)."""
    odd, few = sum(map(bool, seems)), len(names) <= labels.MANY
    if len(names) < 2 or (odd < len(names) and (few or 2 * odd < len(names))):
        return False
    units = {seem for seem in seems if "unit" in seem}
    if len(units) < 2:
        return True
    numbers = {int(match[0]) for name in names if (match := re.match("[0-9]+(?![0-9.,])", name))}
    return len(units) < odd and not (few and len(numbers) == max(numbers, default=0) - min(numbers, default=1) + 1)


def _seems(value: Any) -> str:
    """What a text may be that is no number to us, as the end of a sentence; "" for a word."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return ""
    for pattern, words in _LOOKS:
        if match := pattern.fullmatch(value):
            return f", {words}" + (f" {match[1]}" if words == "the unit" else "")
    try:
        float(value)
    except ValueError:
        return ""
    return ", which is written as no number is"
