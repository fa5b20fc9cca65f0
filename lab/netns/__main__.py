"""`python -m lab.netns`: what `edgegossip scale` models, with real processes on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgegossip import recipe as recipes
from edgegossip.cli.main import main
from edgegossip.cli.options import JSON, OUTPUT, SETTINGS, command
from edgegossip.options import REQUIRED, option
from edgegossip.report.style import Figures
from edgegossip.scale.campaign import RATE, examples_of, link_of
from edgegossip.scale.cells import DEFAULT_SCHEMES, make_cells, parse_devices, parse_schemes
from edgegossip.scale.devices import BOARD, load_device
from lab.netns import emulated
from lab.netns.run_cell import NetnsCampaign


@dataclass(frozen=True, slots=True, kw_only=True)
class Netns:
    """Options of `python -m lab.netns`."""

    recipe: str = option(REQUIRED, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    devices: str = option("2,4,7,18", "How many boards.", flag="--boards", metavar="A,B,...")
    schemes: str = option(",".join(DEFAULT_SCHEMES), "As of `edgegossip scale`.", metavar="A,B,...")
    rate: str = option(RATE, "Of the link, such as 20mbit.", metavar="RATE")
    link: str = option(
        "shared", "One link that all boards share, or one of that rate for each.", choices=("shared", "each")
    )
    rounds: int = option(0, "Count so many rounds of an epoch at most; 0: all of them.", low=0)
    device: str = option(BOARD, "What every board is, of devices/ or a file of `calibrate`.", metavar="PROFILE")
    slower: float | None = option(
        None, "In place of --device: boards are cores of this machine, so many times slower.", low=0.01, high=1000.0
    )
    out: Path | None = OUTPUT(None, "Folder of the results; default: runs/NAME-scale-netns.", path="folder")
    figures: Figures
    as_json: bool = JSON()


@command(Netns)
def netns(options: Netns) -> int:
    """Train RECIPE with several schemes on several numbers of boards, each a real process in a
    network namespace of this machine; all share one access point. Needs root and iproute2.

    \b
    Examples:
      sudo .venv/bin/python -m lab.netns table3 --set data.dir=DIR
      sudo .venv/bin/python -m lab.netns table3 --boards 2,4 --schemes sgd,e-elastiquant --rounds 3
    """

    def warn(text: str) -> None:
        click.echo(text, err=True)

    base = recipes.load(options.recipe, options.settings)
    named, counts = parse_schemes(options.schemes), parse_devices(options.devices)
    cells = make_cells(base, named, counts, "netns", how(options, base), examples_of(base), options.rounds)
    folder = options.out or Path("runs") / f"{base.run.name}-scale-netns"
    say = warn if options.as_json else click.echo
    document, code = NetnsCampaign.at(folder, cells, options.figures, say, warn, base).run()
    if options.as_json:
        click.echo(json.dumps(document))
    return code


def how(options: Netns, base: recipes.Recipe) -> dict[str, Any]:
    """Return what decides a cell's result besides its recipe. Raises ConfigError."""
    if options.slower is not None:
        return link_of(options.rate, options.link, []) | {"slower": options.slower}
    of_link = link_of(options.rate, options.link, [load_device(options.device)])
    return of_link | {"device": options.device, "workload": emulated.workload_of(base)}


if __name__ == "__main__":
    main(command=netns, name="python -m lab.netns")
