"""`edgegossip scale`: does adding boards make training faster, and if not, what eats it?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, PLOTS, SETTINGS


@click.command()
@click.argument("recipe")
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
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.01, 1000.0),
    help="netns: boards are so much slower than a core of this machine; processor time counts so many times.",
)
@click.option(
    "--device",
    default="",
    metavar="PROFILE",
    help="model: what every board is; default: this machine, measured.",
)
@click.option(
    "--fleet", default="", metavar="PROFILE", help="model: boards and link of this fleet, such as paper-7-xaviers."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder of the results; one that has some already is gone on with. Default: runs/NAME-scale-ON.",
)
@PLOTS
@JSON
def scale(
    recipe: str,
    settings: tuple[str, ...],
    devices: str,
    schemes: str,
    on: str,
    rate: str,
    link: str,
    rounds: int,
    slower: float,
    device: str,
    fleet: str,
    out: str | None,
    plots: bool,
    as_json: bool,
) -> int:
    """Train RECIPE with several schemes on several numbers of boards: where an epoch's seconds go, and what is gained.

    The table is that of the ElastiQuant paper: computation, encoding, transmission, their sum T, and the speed-up, with
    decoding and waiting beside them. A run that was stopped, however hard, goes on where it was with the same command.

    \b
    Examples:
      sudo edgegossip scale table3 --set data.dir=DIR --slower 12
      sudo edgegossip scale table3 --devices 2,4 --schemes sgd,e-elastiquant --rate 20mbit --rounds 3
      edgegossip scale table3 --on model --rate 20mbit
    """
    from edgegossip.scale.campaign import Asked, run

    asked = Asked(
        recipe,
        settings,
        devices,
        schemes,
        on,
        rate,
        link,
        rounds,
        Path(out) if out else None,
        plots,
        slower,
        device,
        fleet,
    )

    def warn(text: str) -> None:
        click.echo(text, err=True)

    document, code = run(asked, warn if as_json else click.echo, warn)
    if as_json:
        click.echo(json.dumps(document))
    return code
