"""`edgegossip doctor`: what is wrong with this board, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.options import JSON, RUNS
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError


@click.command()
@click.option("--peer", "peers", multiple=True, metavar="HOST[:PORT]", help="Measure the link to it; may be repeated.")
@click.option(
    "--matrix", is_flag=True, help="Also have each peer measure to each other one (calibrate --serve --relay)."
)
@click.option("--identity", type=click.Path(file_okay=False), help="This board's folder: look at its certificates.")
@click.option("--recipe", metavar="RECIPE", help="What it is to train: whether torch sees its training.device.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of that recipe; may be repeated."
)
@click.option("--listen", "ports", multiple=True, type=click.IntRange(1, 65_535), help="A port that must be free.")
@RUNS
@JSON
def doctor(
    peers: tuple[str, ...],
    matrix: bool,
    identity: str | None,
    recipe: str | None,
    settings: tuple[str, ...],
    ports: tuple[int, ...],
    runs_dir: str,
    as_json: bool,
) -> int:
    """Look at this machine before it trains: clock, certificates, ports, MTU, links, versions, wear
    of its card, throttling, and with --recipe whether torch can compute where the recipe asks it
    to.

    \b
    Examples:
      edgegossip doctor
      edgegossip doctor --identity /etc/edgegossip/identity --listen 7700
      edgegossip doctor --recipe quickstart-gossip --set training.device=cuda
      edgegossip calibrate --serve 7733                  on the other boards, and here:
      edgegossip doctor --peer pi-2:7733 --peer pi-3:7733 --matrix

    Every finding is one sentence with its cure. Ends with 6 when something must be put right.
    """
    from edgegossip import recipe as recipes
    from edgegossip.fleet.doctor.checks import text_of, visit
    from edgegossip.fleet.link_test import parse_address

    runs = Path(runs_dir)
    folder = next(path for path in (runs, *runs.absolute().parents) if path.is_dir())
    own = Path(identity) if identity else None
    if settings and recipe is None:
        raise ConfigError("--set is for a recipe's keys: name it with --recipe")
    training = None if recipe is None else recipes.load(recipe, settings).training

    def device() -> str:
        """Compute a little where the recipe asks for; raises ImportError without torch."""
        from edgegossip.training.check import check_device

        assert training is not None
        check_device(training)
        from edgegossip.training.device import probe

        return probe(training)

    tried = None if training is None else device
    document = visit(folder, own, ports, [parse_address(peer) for peer in peers], matrix, device=tried)
    click.echo(json.dumps(document) if as_json else text_of(document))
    return EXIT_RUN if document["bad"] else EXIT_OK
