"""`edgegossip calibrate`: a profile of the machine that it runs on."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from edgegossip.cli.options import JSON, SETTINGS, Seconds
from edgegossip.types import HostError


@click.command()
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write the profile here (TOML); else it is printed."
)
@click.option("--name", default="", help="Of the profile; default: the file's, or this-machine.")
@click.option("--peer", metavar="HOST[:PORT]", help="Also measure the link to a machine on which --serve runs.")
@click.option("--serve", type=click.IntRange(0, 65_535), metavar="PORT", help="Only answer a --peer, at this port.")
@click.option(
    "--relay", is_flag=True, help="With --serve: also measure to third machines when asked (doctor --matrix)."
)
@click.option(
    "--for",
    "seconds",
    default=600.0,
    show_default=True,
    type=Seconds(0.1, 31 * 86_400.0),
    help="With --serve: seconds until it ends.",
)
@click.option("--recipe", default="cifar10-gossip", show_default=True, help="Whose model is trained.")
@SETTINGS
@JSON
def calibrate(
    output: str | None,
    name: str,
    peer: str | None,
    serve: int | None,
    relay: bool,
    seconds: float,
    recipe: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure this machine in about a minute: training rates in fp32 and int8, codecs, memory, the
    link to a peer.

    \b
    Examples:
      edgegossip calibrate -o pi.toml
      edgegossip calibrate -o pi.toml --recipe elastiquant      as exact as it gets for that recipe's model
      edgegossip calibrate --serve 7733                         on another board, and on this one:
      edgegossip calibrate -o pi.toml --peer 192.168.1.20:7733

    Name the file in a fleet (devices/fleets/*.toml are examples) for `edgegossip plan` and
    `edgegossip scale --on model`.
    """
    from edgegossip.fleet import link_test

    if serve is not None:
        with link_test.listen(serve) as listener:
            click.echo(f"answering on port {listener.getsockname()[1]} for {seconds:.0f} s", err=as_json)
            callers = link_test.serve(listener, time.monotonic() + seconds, relay)
        click.echo(json.dumps({"callers": callers}) if as_json else f"{callers} callers")
        return 0
    if output and not Path(output).absolute().parent.is_dir():
        raise HostError(f"cannot write {output}: there is no folder {Path(output).absolute().parent}")
    link = link_test.measure(*link_test.parse_address(peer)) if peer else None
    from edgegossip import recipe as recipes
    from edgegossip.lab.scale.calibrate import calibrate as measure
    from edgegossip.lab.scale.devices import to_toml

    loaded = recipes.load(recipe, settings)
    name = name or (Path(output).stem if output else "this-machine")
    profile = measure(name, loaded, link, lambda text: click.echo(f"measuring: {text}", err=True))
    if output:
        try:
            Path(output).write_text(to_toml(profile), encoding="utf-8")
        except OSError as error:
            raise HostError(f"cannot write {output}: {(error.strerror or str(error)).lower()}") from None
    if as_json:
        click.echo(json.dumps(asdict(profile)))
    elif output:
        click.echo(f"wrote {output}; name it in a fleet for `edgegossip plan`")
    else:
        click.echo(to_toml(profile), nl=False)
    return 0
