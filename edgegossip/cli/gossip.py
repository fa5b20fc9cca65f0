"""`edgegossip algorithm` and `topology`: what boards do with each other's models, and over which
graphs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import click

from edgegossip.cli.options import JSON, Listing, command, first_sentence, listed, parse_params
from edgegossip.files import text_of
from edgegossip.options import REQUIRED, Option, option, options_of
from edgegossip.types import ConfigError


@click.group()
def algorithm() -> None:
    """List the gossip algorithms."""


@command(Listing, algorithm, name="list")
def list_(options: Listing) -> None:
    """Show every algorithm with its own parameters, for gossip.algorithm and gossip.params.

    docs/gossip.md says which topologies and codecs each works with, and docs/choosing.md which to
    take.
    """
    from edgegossip import gossip

    found = [
        (name, first_sentence(make).removeprefix("Return "), [o for o in options_of(make) if o.name != "keeps"])
        for name, make in ((name, gossip.maker(name)) for name in gossip.names())
    ]
    if options.as_json:
        rows = [{"name": name, "help": about, "params": [_param(o) for o in own]} for name, about, own in found]
        click.echo(json.dumps(rows))
    else:
        click.echo(listed(found))


def _param(o: Option) -> dict[str, Any]:
    return {"name": o.name, "default": None if o.default is REQUIRED else o.default, "help": f"{o.help}{o.limits}"}


SIZES = range(2, 19)  # the fleets that the package is made for


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyCommand:
    """Options of `edgegossip topology`."""

    name: str | None = option(None, argument=True)
    sizes: tuple[int, ...] = option(
        (),
        "Number of boards; may be repeated. Default: every number from 2 to 18.",
        flag="--boards",
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


@command(TopologyCommand)
def topology(options: TopologyCommand) -> None:
    """Show how fast boards on a topology agree, and how many messages that takes.

    With NAME, a row for each number of boards; without, the spectral gaps of all topologies side by
    side.
    """
    from edgegossip.gossip import topologies
    from edgegossip.gossip.topologies import gap_table, summarise, table
    from edgegossip.node.spec import default_members

    name, params = options.name, dict(parse_params(options.settings))
    if name is None and params:
        raise ConfigError("--params belong to one topology; name it")
    if name == "file":
        if "path" not in params:
            raise ConfigError("topology 'file' needs the parameter 'path'")
        params["text"], params["source"] = text_of(str(params.pop("path")), "topology file")
    names = [name] if name is not None else [known for known in topologies.names() if known != "file"]
    found = [
        summarise(topologies.get(one, n, **params, **({"members": default_members(n)} if one == "file" else {})))
        for one in names
        for n in options.sizes or SIZES
    ]
    if options.as_json:
        click.echo(json.dumps({"topologies": [asdict(one) for one in found]}))
    else:
        click.echo("\n".join(gap_table(found) if name is None else table(found)))
