"""`edgegossip doctor`: what is wrong with this board, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgegossip.cli.options import JSON, RUNS, command
from edgegossip.options import option
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError, EdgegossipError

if TYPE_CHECKING:
    from edgegossip.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Options of `edgegossip doctor`."""

    peers: tuple[str, ...] = option(
        (), "Measure the link to it; may be repeated.", flag="--peer", metavar="HOST[:PORT]"
    )
    identity: Path | None = option(None, "This board's folder: look at its certificates.", path="folder")
    recipe: str | None = option(None, "What it is to train: its training.device, its messages.", metavar="RECIPE")
    settings: tuple[str, ...] = option(
        (), "Set a key of that recipe; may be repeated.", flag="--set", metavar="KEY=VALUE"
    )
    ports: tuple[int, ...] = option((), "A port that must be free.", flag="--listen", low=1, high=65_535)
    runs: Path = RUNS()
    as_json: bool = JSON()


@command(Doctor)
def doctor(options: Doctor) -> int:
    """Look at this machine before it trains: clock, certificates, ports, MTU, links, versions, wear
    of its card, throttling, and with --recipe whether torch can compute where the recipe asks it
    to, and how much memory its messages take at most.

    \b
    Examples:
      edgegossip doctor
      edgegossip doctor --identity /etc/edgegossip/identity --listen 7700
      edgegossip doctor --recipe quickstart-gossip --set training.device=cuda
      edgegossip calibrate --serve 7733                  on the other boards, and here:
      edgegossip doctor --peer pi-2:7733 --peer pi-3:7733

    Every finding is one sentence with its cure. Ends with 6 when something must be put right.
    """
    from edgegossip import recipe as recipes
    from edgegossip.fleet.doctor.checks import text_of, visit
    from edgegossip.fleet.link_test import parse_address

    folder = next(path for path in (options.runs, *options.runs.absolute().parents) if path.is_dir())
    if options.settings and options.recipe is None:
        raise ConfigError("--set is for a recipe's keys: name it with --recipe")
    recipe = None if options.recipe is None else recipes.load(options.recipe, options.settings)

    def device() -> str:
        """Compute a little where the recipe asks for; raises ImportError without torch."""
        from edgegossip.training.check import check_device

        assert recipe is not None
        check_device(recipe.training)
        from edgegossip.training.device import probe

        return probe(recipe.training)

    peers = [parse_address(peer) for peer in options.peers]
    tried, most = (None, None) if recipe is None else (device, _message_bytes(recipe))
    document = visit(folder, options.identity, options.ports, peers, device=tried, message_bytes=most)
    click.echo(json.dumps(document) if options.as_json else text_of(document))
    return EXIT_RUN if document["bad"] else EXIT_OK


def _message_bytes(recipe: Recipe) -> int | None:
    """Return what messages of the recipe take in a board's memory at most; None where that cannot
    be told: with a coordinator, for a script, and without torch or data."""
    from edgegossip import training
    from edgegossip.node.spec import message_memory

    if recipe.run.mode != "gossip" or recipe.run.script:
        return None
    try:
        return message_memory(recipe, training.layout_of(recipe))
    except (EdgegossipError, ImportError):
        return None
