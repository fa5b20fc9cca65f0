"""Options that several commands share."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from edgegossip.types import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

SETTINGS: Decorator = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a recipe key, such as training.lr=0.05; may be repeated. `edgegossip recipe keys` lists them.",
)
RUNS: Decorator = click.option(
    "--runs",
    "runs_dir",
    default="runs",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder that the run folder is made in.",
)
FLEET: Decorator = click.option(
    "--fleet",
    "folder",
    default="fleet",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The fleet's folder.",
)
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
TOGETHER: Decorator = click.option(
    "--together", is_flag=True, help="The folders are of boards of one run, such as those of `node`: show them as one."
)
PLOTS: Decorator = click.option(
    "--plots/--no-plots", default=True, help="Draw PNG plots at the end (needs matplotlib)."
)


class Seconds(click.FloatRange):
    """A finite range: no comparison refuses nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return number


SCRIPT_ARGS: Decorator = click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")


def with_script_args(settings: Sequence[str], script_args: Sequence[str]) -> tuple[str, ...]:
    """The settings with those of a training script's arguments."""
    return (*settings, f"run.script_args={json.dumps(list(script_args))}") if script_args else tuple(settings)


def parse_params(settings: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE with a TOML value; a bare word is a string. Raises ConfigError."""
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not (equals and key.strip().isidentifier()):
            raise ConfigError(f"--params {setting}: write it as key=value, such as --params bits=4")
        try:
            params[key.strip()] = tomllib.loads(f"v = {text.strip()}")["v"]
        except tomllib.TOMLDecodeError:
            params[key.strip()] = text.strip()
    return params
