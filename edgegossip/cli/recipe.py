"""`edgegossip recipe`: what recipes there are, and what may stand in one."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edgegossip.cli.options import JSON, SETTINGS


@click.group()
def recipe() -> None:
    """List the packaged recipes, show one resolved, list every key."""


@recipe.command("list")
@JSON
def list_(as_json: bool) -> None:
    """Recipes that come with the package."""
    from edgegossip import recipe as recipes

    loaded = {name: recipes.load(name) for name in recipes.names()}
    if as_json:
        click.echo(json.dumps(list(loaded)))
        return
    width = max(map(len, loaded))
    for name, made in loaded.items():
        click.echo(
            f"{name:{width}}  {made.run.mode}: {made.model.name} on {made.data.name}, {made.run.nodes} boards, "
            f"{made.run.rounds} rounds of {made.training.local_steps} x {made.training.batch_size}"
        )


@recipe.command()
@click.argument("name")
@SETTINGS
@JSON
def show(name: str, settings: tuple[str, ...], as_json: bool) -> None:
    """NAME with every default filled in, as TOML; a start for your own."""
    from edgegossip import recipe as recipes

    made = recipes.load(name, settings)
    click.echo(json.dumps(asdict(made)) if as_json else recipes.to_toml(made), nl=as_json)


@recipe.command()
@JSON
def keys(as_json: bool) -> None:
    """Every recipe key with its default and what is allowed."""
    from edgegossip import recipe as recipes

    rows = recipes.describe_keys()
    if as_json:
        click.echo(json.dumps([dict(zip(("key", "default", "help"), row, strict=True)) for row in rows]))
        return
    widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
    for key, default, text in rows:
        click.echo(f"{key:{widths[0]}}  {default:{widths[1]}}  {text}")
