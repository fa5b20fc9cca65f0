"""What a user may set, declared once: recipe keys, options of commands, and the parameters of
codecs, algorithms, topologies and strategies.

A set of options is a frozen dataclass whose fields are made by `option`. `options_of` reads it, and
reads the parameters of a codec (`codecs.registry.Param`) and of a function that makes an algorithm
as well. Checks and their error messages (`Option.check`), flags (`cli/options.py`), `edgegossip
recipe keys` and docs/reference.md all come from what it returns.

Example:
    @dataclass(frozen=True, slots=True)
    class Training:
        lr: float = option(0.1, "learning rate", low=0.0, high=1000.0)

    [lr] = options_of(Training)
    lr.check("training.lr", 2000)  # ConfigError: training.lr = 2000.0: out of range ...
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tomli_w

from edgegossip.choices import did_you_mean, hints_of
from edgegossip.types import ConfigError

T = TypeVar("T")
REQUIRED: Any = inspect.Parameter.empty  # the default of what has none


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that a user may set.

    `type` is bool, int, float, str, Path, Mapping, or a list or tuple of one of these. `low` and
    `high` bound numbers, inclusively, each one of a list or of a table. `choices` are the only
    valid values.
    `more` has what only some readers know, such as the flag of a command's option.
    """

    name: str
    type: Any
    default: Any
    help: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def check(self, key: str, value: Any) -> Any:
        """Return the value in the option's type.

        Raises ConfigError that names the key, the value, what is allowed and what is nearest."""
        origin, inner = get_origin(self.type), get_args(self.type)
        if origin in (list, tuple):
            if not isinstance(value, (list, origin)):
                raise ConfigError(f"{key} = {as_toml(value)}: must be a list of {_WORDS[inner[0]][1]}")
            each = replace(self, type=inner[0])
            return origin(each.check(f"{key}[{k}]", v) for k, v in enumerate(value))
        if origin is Mapping and inner[1] in _WORDS and isinstance(value, Mapping):
            each = replace(self, type=inner[1])
            return {name: each.check(f"{key}.{name}", v) for name, v in value.items()}
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        word = _WORDS[self.type][0] if self.type in _WORDS else "a table"
        wanted = self.type if self.type in _WORDS else dict
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise ConfigError(f"{key} = {as_toml(value)}: must be {word}{self.limits}")
        if self.choices and value not in self.choices:
            words = [str(choice) for choice in self.choices]
            raise ConfigError(
                f"{key} = {as_toml(value)}: not one of {', '.join(words)}{did_you_mean(str(value), words)}"
            )
        if isinstance(value, (int, float)):
            low = -math.inf if self.low is None else self.low
            high = math.inf if self.high is None else self.high
            if not low <= value <= high:  # so that nan is refused too
                bound = high if value > high else low
                raise ConfigError(f"{key} = {as_toml(value)}: out of range{self.limits}; the nearest is {bound}")
        return value

    @property
    def limits(self) -> str:
        """What is allowed, in brackets after a space; empty where everything is."""
        if self.choices:
            return f" ({', '.join(map(str, self.choices))})"
        if self.low is not None and self.high is not None:
            return f" (from {self.low} to {self.high})"
        return f" (at least {self.low})" if self.low is not None else ""


_WORDS = {  # type -> one of it, several of it
    bool: ("true or false", "truths"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
}


def option(
    default: Any,
    help: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[Any] = (),
    **more: Any,
) -> Any:
    """Return a dataclass field that declares an `Option`; REQUIRED: it has no default."""
    metadata = {"help": help, "low": low, "high": high, "choices": tuple(choices), "more": more}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(source: Any) -> tuple[Option, ...]:
    """Return the options that `source` declares, in their order.

    Args:
        source: a dataclass of `option` fields, in which a field of such a class stands for all of
            its options; an iterable of objects with the attributes of a codec's `Param`; or a
            function, whose keyword parameters with plain types are the options, and whose ranges
            (`choices.Range`) stand in the help: `choices.check_keywords` checks them.
    """
    if isinstance(source, type) and is_dataclass(source):
        hints = hints_of(source)
        found: list[Option] = []
        for f in fields(source):
            if is_dataclass(inner := hints[f.name]):
                found += options_of(inner)
            else:
                default = f.default if f.default_factory is MISSING else f.default_factory()
                default = REQUIRED if default is MISSING else default
                found.append(_typed(Option(f.name, hints[f.name], default, **f.metadata)))
        return tuple(found)
    if callable(source):
        return tuple(_of_keywords(source))
    return tuple(Option(p.name, type(p.default), p.default, p.help, p.low, p.high, p.choices) for p in source)


def filled(kind: type[T], content: Mapping[str, Any], prefix: str = "", where: str = "") -> T:
    """Return a dataclass of options with what a document says, each value checked, the others at
    their defaults. Errors begin with `where`, and name keys with `prefix` before them.

    Raises ConfigError for a key that is unknown, with the nearest, or missing, and for a value."""
    known = {o.name: o for o in options_of(kind)}
    for key in content:
        if key not in known:
            raise ConfigError(f"{where}unknown key {prefix}{key}{did_you_mean(key, known, prefix)}")
    for o in known.values():
        if o.default is REQUIRED and o.name not in content:
            raise ConfigError(f"{where}{prefix}{o.name} is missing")
    return kind(**{key: known[key].check(f"{where}{prefix}{key}", value) for key, value in content.items()})


def build(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the dataclass of options with these values by name; those of a field that is itself
    one are among them."""
    inner: dict[str, Any] = {name: hint for name, hint in hints_of(kind).items() if is_dataclass(hint)}
    return kind(**{f.name: build(inner[f.name], values) if f.name in inner else values[f.name] for f in fields(kind)})


def as_toml(value: Any) -> str:
    """Return a value as TOML would write it."""
    try:
        text = tomli_w.dumps({"v": value}).strip().removeprefix("v = ").removeprefix("[v]").strip()
        return " ".join(text.split()).replace("[ ", "[").replace(", ]", "]") or "{}"
    except TypeError:
        return repr(value)


def _of_keywords(function: Callable[..., Any]) -> Iterable[Option]:
    source = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints = hints_of(source)
    for name, parameter in inspect.signature(function).parameters.items():
        o = _typed(Option(name, hints.get(name, Any), parameter.default))
        if o.type in _WORDS:
            yield o


def _typed(o: Option) -> Option:
    """Make its type the first of several, which is not None; take in the words of a `Range` and the
    choices of a Literal."""
    kind = o.type
    if get_origin(kind) is Annotated:
        kind, limits = get_args(kind)
        o = replace(o, help=f"{limits.help} ({limits})".lstrip())
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        return replace(o, type=str, choices=get_args(kind))
    return replace(o, type=kind)
