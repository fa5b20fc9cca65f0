"""Check the names and numbers that a user chose: one wording for every mistake, always with the
nearest valid choice. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from edgegossip.types import ConfigError

T = TypeVar("T")

_MOST = 6  # choices that are equally near; more are no help


def did_you_mean(word: object, choices: Iterable[str], prefix: str = "") -> str:
    """Return the end of an error message that names the choice nearest in spelling, or those that
    are equally near, each with `prefix` before it; "" when none is near, or too many are.

    Example:
        >>> did_you_mean("rinng", ["ring", "torus"])
        '; did you mean ring?'
    """
    import difflib  # here: nobody who makes no mistake needs it

    known = list(dict.fromkeys(choices))
    near = difflib.get_close_matches(str(word), known, n=max(1, len(known)), cutoff=0.5)
    matcher = difflib.SequenceMatcher(b=str(word))

    def nearness(choice: str) -> float:
        matcher.set_seq1(choice)
        return matcher.ratio()

    nearest = [prefix + choice for choice in known if near and choice in near and nearness(choice) == nearness(near[0])]
    if not 0 < len(nearest) <= _MOST:
        return ""
    *first, last = nearest
    return f"; did you mean {', '.join(first)}{' or ' if first else ''}{last}?"


def unknown(what: str, word: str, choices: Iterable[str]) -> ConfigError:
    """Return the error for a word that is none of `choices`."""
    valid = sorted(choices)
    return ConfigError(f"unknown {what} {word!r}{did_you_mean(word, valid)}; valid: {', '.join(valid) or 'none'}")


def choose(what: str, word: str, table: Mapping[str, T]) -> T:
    """Return the entry of `table` called `word`. Raises ConfigError that names the nearest one."""
    if not isinstance(word, str) or word not in table:
        raise unknown(what, word, table)
    return table[word]


def check_keywords(what: str, target: Callable[..., Any], params: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Raise ConfigError unless every key of `params` is a keyword of `target` (less those in
    `own`) and none is missing."""
    keywords = {k: p for k, p in inspect.signature(target).parameters.items() if k not in own}
    for key in params:
        if key not in keywords:
            raise unknown(f"parameter of {what}", key, keywords)
    for key, parameter in keywords.items():
        if parameter.default is inspect.Parameter.empty and key not in params:
            raise ConfigError(f"{what} needs the parameter {key!r}")


def check_integer(what: str, value: Any, low: int, high: int) -> int:
    """Return `value`. Raises ConfigError unless it is an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        nearest = f"; the nearest valid value is {min(max(value, low), high)}" if type(value) is int else ""
        raise ConfigError(f"{what} = {value!r} must be an integer from {low} to {high}{nearest}")
    return value


def check_number(what: str, value: Any, above: float, at_most: float) -> float:
    """Return `value` as a float. Raises ConfigError unless it is above `above` and at most
    `at_most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= at_most:
        raise ConfigError(f"{what} = {value!r} must be a number above {above:g} and at most {at_most:g}")
    return float(value)


def check_flag(what: str, value: Any) -> bool:
    """Return `value`. Raises ConfigError unless it is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} = {value!r} must be true or false")
    return value
