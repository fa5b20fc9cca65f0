"""`edgegossip recipe`: what recipes there are, and what may stand in one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from edgegossip import recipe as recipes
from edgegossip.cli.options import JSON, SETTINGS, Listing, command
from edgegossip.options import REQUIRED, option


@click.group()
def recipe() -> None:
    """List the packaged recipes, show one resolved, list every key."""


@command(Listing, recipe, name="list")
def list_(options: Listing) -> None:
    """List the recipes that come with the package."""
    loaded = {name: recipes.load(name) for name in recipes.names()}
    if options.as_json:
        click.echo(json.dumps(list(loaded)))
        return
    width = max(map(len, loaded))
    for name, made in loaded.items():
        click.echo(
            f"{name:{width}}  {made.run.mode}: {made.model.name} on {made.data.name}, {made.run.nodes} boards, "
            f"{made.run.rounds} rounds of {made.training.local_steps} x {made.training.batch_size}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Options of `edgegossip recipe show`."""

    name: str = option(REQUIRED, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    as_json: bool = JSON()


@command(Show, recipe)
def show(options: Show) -> None:
    """Print NAME with every default filled in, as TOML; a start for your own."""
    made = recipes.load(options.name, options.settings)
    click.echo(json.dumps(asdict(made)) if options.as_json else recipes.to_toml(made), nl=options.as_json)


@command(Listing, recipe)
def keys(options: Listing) -> None:
    """List every recipe key with its default and what is allowed."""
    rows = recipes.describe_keys()
    if options.as_json:
        click.echo(json.dumps([dict(zip(("key", "default", "help"), row, strict=True)) for row in rows]))
        return
    from edgegossip.report.table import in_columns

    click.echo("\n".join(in_columns(rows)))
