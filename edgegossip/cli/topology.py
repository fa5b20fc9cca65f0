"""`edgegossip topology`: what the topologies are good for, in figures."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edgegossip.cli.options import JSON, parse_params
from edgegossip.types import ConfigError

SIZES = range(2, 19)  # the fleets that the package is made for


@click.command()
@click.argument("name", required=False)
@click.option(
    "--nodes",
    "sizes",
    multiple=True,
    type=click.IntRange(2, 1024),
    metavar="N",
    help="Number of boards; may be repeated. Default: every number from 2 to 18.",
)
@click.option(
    "--params",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of NAME, such as degree=4, weights=column or path=my.topology; may be repeated.",
)
@JSON
def topology(name: str | None, sizes: tuple[int, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """How fast boards on a topology agree, and how many messages that takes.

    With NAME, a row for each number of boards; without, the spectral gaps of all topologies side by
    side.
    """
    from edgegossip.files import text_of
    from edgegossip.gossip import topologies
    from edgegossip.gossip.topologies import gap_table, summarise, table

    if name is None and settings:
        raise ConfigError("--params belong to one topology; name it")
    names = [name] if name is not None else [known for known in topologies.names() if known != "file"]
    params = dict(parse_params(settings))
    if name == "file":
        if "path" not in params:
            raise ConfigError("topology 'file' needs the parameter 'path'")
        params["text"], params["source"] = text_of(str(params.pop("path")), "topology file")
    found = [summarise(topologies.get(one, n, **params)) for one in names for n in sizes or SIZES]
    if as_json:
        click.echo(json.dumps({"topologies": [asdict(one) for one in found]}))
    else:
        click.echo("\n".join(gap_table(found) if name is None else table(found)))
