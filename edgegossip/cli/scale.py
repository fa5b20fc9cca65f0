"""`edgegossip scale`: does adding boards make training faster, and if not, what eats it?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, SETTINGS


@click.command()
@click.argument("recipe", required=False)
@SETTINGS
@click.option("--devices", default="2,4,7,18", show_default=True, metavar="A,B,...", help="How many boards.")
@click.option(
    "--schemes",
    default="",
    metavar="A,B,...",
    help="sgd, a codec (parallel SGD with it), or an algorithm and a codec such as choco-co3 or server-co3. "
    "Default: sgd, 8-bit-elastiquant, 4-bit-elastiquant, e-elastiquant, co3, choco-4-bit-elastiquant.",
)
@click.option(
    "--on",
    default="netns",
    show_default=True,
    type=click.Choice(["netns", "model", "boards"]),
    help="netns: real boards in network namespaces of this machine (root); model: a virtual clock; boards: a live fleet.",
)
@click.option(
    "--rate",
    default="",
    metavar="RATE",
    help="netns, model: of the link, such as 20mbit. Default: the fleet's, or 100mbit.",
)
@click.option(
    "--link",
    default="shared",
    show_default=True,
    type=click.Choice(["shared", "each"]),
    help="One access point whose rate all boards share, or a link of that rate for each board.",
)
@click.option(
    "--rounds", default=0, type=click.IntRange(0), help="Count so many rounds of an epoch at most; 0: all of them."
)
@click.option(
    "--slower",
    type=click.FloatRange(0.01, 1000.0),
    help="netns, model: boards are cores of this machine, so many times slower; 1: as they are.",
)
@click.option(
    "--device",
    default="",
    metavar="PROFILE",
    help="netns, model: what every board is, of devices/ or a file of `calibrate`; default: raspberry-pi-4. On netns this "
    "machine plays it: processor time counts as many times as the board is slower.",
)
@click.option(
    "--fleet", default="", metavar="PROFILE", help="model: boards and link of this fleet, such as paper-7-xaviers."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder of the results; one that has some already is gone on with. Default: runs/NAME-scale-ON.",
)
@click.option(
    "--boards", default="", metavar="A,B,...", help="boards: their names; default: all of the fleet in ./fleet."
)
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="boards: where they ask what to run, default 127.0.0.1:7800; with --follow: where a board's peers reach it, "
    "default 0.0.0.0:7700.",
)
@click.option(
    "--fleet-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="boards: folder of `edgegossip fleet init`; default: ./fleet.",
)
@click.option("--insecure", is_flag=True, help="boards: without TLS, on a network that you trust.")
@click.option(
    "--follow", default="", metavar="HOST:PORT", help="Be a board: run what the `scale --on boards` there says."
)
@click.option("--name", default="", help="With --follow: this board's name.")
@click.option(
    "--identity",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --follow: this board's folder of `edgegossip fleet add`.",
)
@PLOTS
@JSON
def scale(
    recipe: str | None,
    settings: tuple[str, ...],
    devices: str,
    schemes: str,
    on: str,
    rate: str,
    link: str,
    rounds: int,
    slower: float | None,
    device: str,
    fleet: str,
    out: str | None,
    boards: str,
    listen: str,
    fleet_folder: Path | None,
    insecure: bool,
    follow: str,
    name: str,
    identity: Path | None,
    plots: bool,
    as_json: bool,
) -> int:
    """Train RECIPE with several schemes on several numbers of boards: where an epoch's seconds go,
    and what is gained.

    The table is that of the ElastiQuant paper: computation, encoding, transmission, their sum T,
    and the speed-up, with decoding and waiting beside them. A run that was stopped, however hard,
    goes on where it was with the same command.

    \b
    Examples:
      sudo $(which edgegossip) scale table3 --set data.dir=DIR
      sudo $(which edgegossip) scale table3 --set data.dir=DIR --device raspberry-pi-5 --rate 50mbit
      sudo $(which edgegossip) scale table3 --devices 2,4 --schemes sgd,e-elastiquant --rate 20mbit --rounds 3
      edgegossip scale table3 --on model --rate 20mbit
      edgegossip scale table3 --on boards --devices 2,4 --listen 10.0.0.9:7800
      edgegossip scale --follow 10.0.0.9:7800 --name pi-01 --identity identity      (on each board)
    """
    if slower is not None and math.isnan(slower):
        raise click.BadParameter("nan is no number", param_hint="--slower")
    if follow:
        _only_a_boards(click.get_current_context())
        from edgegossip.lab.scale import follow as following

        where, runs = listen or "0.0.0.0:7700", Path(out or "runs")
        board = following.FollowOptions(follow, name, where, identity, insecure, settings, runs)
        return following.follow(board, lambda text: click.echo(text, err=True))
    if name or identity:
        raise click.UsageError(
            "--name and --identity are a board's: say --follow HOST:PORT of the machine that asks it"
        )
    if recipe is None:
        raise click.UsageError(
            "say which RECIPE to run, or --follow HOST:PORT of a machine that runs one on its boards"
        )
    from edgegossip.lab.scale.campaign import ScaleOptions, run

    asked = ScaleOptions(
        recipe=recipe,
        settings=settings,
        devices=devices,
        schemes=schemes,
        on=on,
        rate=rate,
        link=link,
        rounds=rounds,
        out=Path(out) if out else None,
        plots=plots,
        slower=slower,
        device=device,
        fleet=fleet,
        boards=boards,
        listen=listen,
        security=(fleet_folder, insecure),
    )

    def warn(text: str) -> None:
        click.echo(text, err=True)

    document, code = run(asked, warn if as_json else click.echo, warn)
    if as_json:
        click.echo(json.dumps(document))
    return code


def _only_a_boards(context: click.Context) -> None:
    """Raises UsageError for an option that says nothing to a board, which runs what it is told."""
    asked = (
        "devices",
        "schemes",
        "on",
        "rate",
        "link",
        "rounds",
        "slower",
        "device",
        "fleet",
        "boards",
        "fleet_folder",
    )
    for name in asked:
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} says nothing with --follow: a board runs what the machine there asks for")
