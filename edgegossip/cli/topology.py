"""`edgegossip topology`: what the topologies are good for, in figures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from edgegossip.cli.options import JSON, command, parse_params
from edgegossip.files import text_of
from edgegossip.options import option
from edgegossip.types import ConfigError

SIZES = range(2, 19)  # the fleets that the package is made for


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Options of `edgegossip topology`."""

    name: str | None = option(None, argument=True)
    sizes: tuple[int, ...] = option(
        (),
        "Number of boards; may be repeated. Default: every number from 2 to 18.",
        flag="--nodes",
        low=2,
        high=1024,
        metavar="N",
    )
    settings: tuple[str, ...] = option(
        (),
        "A parameter of NAME, such as degree=4, weights=column or path=my.topology; may be repeated.",
        flag="--params",
        metavar="KEY=VALUE",
    )
    as_json: bool = JSON()


@command(Topology)
def topology(options: Topology) -> None:
    """Show how fast boards on a topology agree, and how many messages that takes.

    With NAME, a row for each number of boards; without, the spectral gaps of all topologies side by
    side.
    """
    from edgegossip.gossip import topologies
    from edgegossip.gossip.topologies import gap_table, summarise, table

    name, params = options.name, dict(parse_params(options.settings))
    if name is None and params:
        raise ConfigError("--params belong to one topology; name it")
    if name == "file":
        if "path" not in params:
            raise ConfigError("topology 'file' needs the parameter 'path'")
        params["text"], params["source"] = text_of(str(params.pop("path")), "topology file")
    names = [name] if name is not None else [known for known in topologies.names() if known != "file"]
    found = [summarise(topologies.get(one, n, **params)) for one in names for n in options.sizes or SIZES]
    if options.as_json:
        click.echo(json.dumps({"topologies": [asdict(one) for one in found]}))
    else:
        click.echo("\n".join(gap_table(found) if name is None else table(found)))
