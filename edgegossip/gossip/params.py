"""Names and keyword parameters of the registries: one wording for every mistake, always with the
nearest valid choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

T = TypeVar("T")


def unknown(what: str, word: str, choices: Iterable[str]) -> ConfigError:
    """The error for a word that is none of `choices`."""
    valid = sorted(choices)
    return ConfigError(f"unknown {what} {word!r}{did_you_mean(word, valid)}; valid: {', '.join(valid) or 'none'}")


def choose(what: str, word: str, table: Mapping[str, T]) -> T:
    """The entry of `table` called `word`. Raises ConfigError that names the nearest one."""
    if not isinstance(word, str) or word not in table:
        raise unknown(what, word, table)
    return table[word]


def check_keywords(what: str, target: Callable[..., Any], params: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Raises ConfigError unless every key of `params` is a keyword of `target` (less those in
    `own`) and none is missing."""
    keywords = {k: p for k, p in inspect.signature(target).parameters.items() if k not in own}
    for key in params:
        if key not in keywords:
            raise unknown(f"parameter of {what}", key, keywords)
    for key, parameter in keywords.items():
        if parameter.default is inspect.Parameter.empty and key not in params:
            raise ConfigError(f"{what} needs the parameter {key!r}")


def check_integer(what: str, value: Any, low: int, high: int) -> int:
    """Raises ConfigError unless value is an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        nearest = f"; the nearest valid value is {min(max(value, low), high)}" if type(value) is int else ""
        raise ConfigError(f"{what} = {value!r} must be an integer from {low} to {high}{nearest}")
    return value


def check_number(what: str, value: Any, above: float, at_most: float) -> float:
    """Raises ConfigError unless value is a number with above < value <= at_most."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= at_most:
        raise ConfigError(f"{what} = {value!r} must be a number above {above:g} and at most {at_most:g}")
    return float(value)


def check_eta(algorithm: str, value: Any) -> float:
    """Raises ConfigError unless value is an averaging rate: 0 (by default) or above, at most 1."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    return check_number(f"eta of {algorithm}", value, 0.0, 1.0)


def check_flag(what: str, value: Any) -> bool:
    """Raises ConfigError unless value is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} = {value!r} must be true or false")
    return value
