"""Check the names and numbers that a user chose: one wording for every mistake, always with the
nearest valid choice. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

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
    return f"; did you mean {either(nearest)}?"


def either(names: Sequence[str]) -> str:
    """Return the names as a sentence lists them: "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)}{' or ' if first else ''}{last}"


def unknown(what: str, word: str, choices: Iterable[str]) -> ConfigError:
    """Return the error for a word that is none of `choices`."""
    valid = sorted(choices)
    return ConfigError(f"unknown {what} {word!r}{did_you_mean(word, valid)}; valid: {', '.join(valid) or 'none'}")


def choose(what: str, word: str, table: Mapping[str, T]) -> T:
    """Return the entry of `table` called `word`. Raises ConfigError that names the nearest one."""
    if not isinstance(word, str) or word not in table:
        raise unknown(what, word, table)
    return table[word]


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds a number, in the annotation of a parameter, where `check_keywords` and the reference
    page find it. `above`: `low` itself is not allowed.

    Example:
        def mix(eta: Annotated[float, Range(0, 1, "averaging rate")] = 1.0) -> Mixer: ...
    """

    low: float
    high: float
    help: str = ""
    above: bool = False

    def __str__(self) -> str:
        return f"above {self.low} and at most {self.high}" if self.above else f"from {self.low} to {self.high}"

    def check(self, what: str, value: Any, kind: type) -> None:
        """Raise ConfigError unless the value is of this kind, int or float, and in the range."""
        whole = kind is int
        fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if fits and (value > self.low if self.above else value >= self.low) and value <= self.high:
            return
        nearest = f"; the nearest valid value is {min(max(value, self.low), self.high)}" if whole and fits else ""
        raise ConfigError(f"{what} = {value!r} must be {'an integer' if whole else 'a number'} {self}{nearest}")


def check_keywords(
    what: str, name: str, target: Callable[..., Any], params: Mapping[str, Any], own: Iterable[str] = ()
) -> None:
    """Raise ConfigError unless every key of `params` is a keyword of `target` (less those in
    `own`), none is missing, and each value is what its annotation says."""
    keywords = {k: p for k, p in keywords_of(target).items() if k not in own}
    for key in params:
        if key not in keywords:
            raise unknown(f"parameter of {what} {name!r}", key, keywords)
    for key, parameter in keywords.items():
        if parameter.default is inspect.Parameter.empty and key not in params:
            raise ConfigError(f"{what} {name!r} needs the parameter {key!r}")
    check_values(name, target, params)


@lru_cache(maxsize=1024)
def keywords_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function, which Python makes anew at each call."""
    return inspect.signature(target).parameters


@lru_cache(maxsize=1024)
def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types that a class or function declares, which Python compiles anew from their
    text whenever it is asked."""
    return get_type_hints(target, include_extras=True)


def check_values(name: str, target: Callable[..., Any], params: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that is not what the annotation of this keyword of `target`
    says: true or false, or in a `Range`."""
    hints = hints_of(target)
    for key, value in params.items():
        hint = hints.get(key)
        if hint is bool and not isinstance(value, bool):
            raise ConfigError(f"{key} of {name} = {value!r} must be true or false")
        if get_origin(hint) is Annotated:
            kind, limits = get_args(hint)
            limits.check(f"{key} of {name}", value, kind)
