"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

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
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
PLOTS: Decorator = click.option(
    "--plots/--no-plots", default=True, help="Draw PNG plots at the end (needs matplotlib)."
)
