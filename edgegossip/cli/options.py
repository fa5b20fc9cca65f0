"""Commands whose options are one typed value, and options that several commands share.

A command's options are a dataclass of `option` fields (`edgegossip/options.py`); `command` makes
click's parameters of it. What `option` takes here beyond what a recipe key has:

    flag      one flag or several; default: -- and the field's name
    argument  it is an argument, not an option
    metavar, hidden   as in click
    path      "file" or "folder", of a Path; `exists` and `dash` (standard input) as in click
    raw       whatever follows, as it is
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click

from edgegossip import recipe as recipes
from edgegossip.options import REQUIRED, Option, build, option, options_of
from edgegossip.types import ConfigError

T = TypeVar("T")
_Command = Callable[[Any], Any]


def command(
    options: type[Any], group: click.Group | None = None, **attributes: Any
) -> Callable[[_Command], click.Command]:
    """Make a function of these options a command of `group`; `attributes` are those of
    `click.command`.

    Example:
        @dataclass(frozen=True, slots=True, kw_only=True)
        class Plan:
            recipe: str = option(REQUIRED, argument=True)
            fleet: str = option(REQUIRED, "A fleet of the package.", metavar="NAME")
            as_json: bool = JSON()

        @command(Plan)
        def plan(options: Plan) -> int: ...
    """

    def decorate(function: _Command) -> click.Command:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            return function(build(options, values))

        params = [_parameter(o) for o in options_of(options)]
        return (click if group is None else group).command(params=params, **attributes)(call)

    return decorate


def chosen(options: Any, kind: type[T], **others: Any) -> T:
    """Return a `kind`, a dataclass whose fields have the names of these options.

    `others` are fields that have not; of the rest each keeps its default."""
    same = {f.name: getattr(options, f.name) for f in fields(kind) if hasattr(options, f.name)}  # type: ignore[arg-type]
    return kind(**{**same, **others})


class _Finite(click.FloatRange):
    """A range that refuses nan, too, which no comparison does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be used here", param, ctx)
        return number


def _parameter(o: Option) -> click.Parameter:
    several = get_origin(o.type) is tuple
    kind = _type(o, get_args(o.type)[0] if several else o.type)
    shared: dict[str, Any] = {"type": kind, "metavar": o.more.get("metavar")}
    if o.default is not REQUIRED:
        shared["default"] = o.default
    if o.more.get("argument"):
        required = o.default is REQUIRED
        return click.Argument([o.name], nargs=-1 if several else 1, required=required, **shared)
    flags = _several(o.more.get("flag", f"--{o.name.replace('_', '-')}"))
    if o.type is bool:
        del shared["type"]
        shared["is_flag"] = True
        flags = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in flags] if o.default else flags
    return click.Option(
        [*flags, o.name],
        multiple=several,
        required=o.default is REQUIRED,
        show_default=o.type is not bool and bool(o.default),
        help=o.help,
        hidden=o.more.get("hidden", False),
        **shared,
    )


def _several(flags: str | Iterable[str]) -> list[str]:
    return [flags] if isinstance(flags, str) else list(flags)


def _type(o: Option, kind: Any) -> Any:
    if o.more.get("raw"):
        return click.UNPROCESSED
    if o.choices:
        return click.Choice(o.choices)
    if kind is Path:
        path, exists = o.more.get("path"), o.more.get("exists", False)
        return click.Path(
            exists=exists,
            file_okay=path != "folder",
            dir_okay=path != "file",
            allow_dash=o.more.get("dash", False),
            path_type=Path,
        )
    if o.low is None and o.high is None:
        return kind
    ranged: Any = click.IntRange if kind is int else _Finite
    return ranged(o.low, o.high)


SETTINGS = functools.partial(
    option,
    (),
    "Change a recipe key, such as training.lr=0.05; may be repeated. `edgegossip recipe keys` lists them.",
    flag="--set",
    metavar="KEY=VALUE",
)
RUNS = functools.partial(option, Path("runs"), "Folder that the run folder is made in.", flag="--runs", path="folder")
FLEET = functools.partial(option, Path("fleet"), "The fleet's folder.", flag="--fleet", path="folder")
INSECURE = functools.partial(option, False, "Allow plain, unauthenticated traffic outside the loopback interface.")
JSON = functools.partial(option, False, "Print one JSON document and nothing else.", flag="--json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Options of a command that lists something."""

    as_json: bool = JSON()


TOGETHER = functools.partial(
    option, False, "The folders are of boards of one run, such as those of `node`: show them as one."
)
PLOTS = functools.partial(option, True, "Draw PNG plots at the end (needs matplotlib).")
OUTPUT = functools.partial(option, flag=("-o", "--output"))
SCRIPT_ARGS = functools.partial(option, (), argument=True, raw=True, metavar="[-- ARGUMENTS]")


def with_script_args(settings: Sequence[str], script_args: Sequence[str]) -> tuple[str, ...]:
    """Return the settings with those of a training script's arguments."""
    return (*settings, f"run.script_args={json.dumps(list(script_args))}") if script_args else tuple(settings)


def listed(entries: Iterable[tuple[str, str, Iterable[Option]]]) -> str:
    """Return a list of what may be chosen: of each its name, what it is, and below it what may be
    set, with default and range."""
    lines = []
    for name, about, options in entries:
        lines.append(f"{name}: {about}" if about else name)
        for o in options:
            default = "" if o.default in (REQUIRED, None) else f" = {json.dumps(o.default)}"
            lines.append(f"    {o.name}{default}  {o.help}{o.limits}".rstrip())
    return "\n".join(lines)


def first_sentence(thing: object) -> str:
    """Return the first sentence of a docstring, on one line and without its full stop."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def parse_params(settings: Iterable[str]) -> dict[str, Any]:
    """Return the parameters that --params KEY=VALUE gives: TOML values, a bare word is a string.
    Raises ConfigError."""
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not (equals and key.strip().isidentifier()):
            raise ConfigError(f"--params {setting}: write it as key=value, such as --params bits=4")
        params[key.strip()] = recipes.parse_value(text.strip())
    return params
