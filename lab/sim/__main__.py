"""`python -m lab.sim`: gossip algorithms and server runs under faults, in virtual time."""

from __future__ import annotations

import json

import click

from edgegossip.cli.main import main
from edgegossip.cli.options import command
from lab.sim.command import Sim, many, replay


@command(Sim)
def sim(options: Sim) -> int:
    """Run gossip and server runs in virtual time while messages, links, disks and boards fail, and
    check that they heal.

    \b
    Examples:
      python -m lab.sim --seed 7                         one schedule, with its trace
      python -m lab.sim quickstart-gossip --faults loss=0.2,crash=2,split
      python -m lab.sim --campaign 2000                  all algorithms, codecs, faults
      python -m lab.sim --campaign 500 --algorithm choco-sgd --faults loss,reorder
      python -m lab.sim --mode shell --faults deaf@3-15:1
      python -m lab.sim --campaign 500 --mode server --server quorum=2

    RECIPE fixes algorithm, topology, codec, boards and deadline, or a server run; what is said
    nowhere is drawn from the seed. The model is a small vector, and training pulls it towards a
    point of each board's own. The same seed gives the same run, bit for bit. Exits with 6 when a
    promise is broken; a campaign ends with a command line that replays its first failure, made
    small.
    """
    if options.campaign is None:
        document, code = replay(options, click.echo, quiet=options.as_json)
    else:
        document, code = many(options, options.campaign, click.echo, quiet=options.as_json)
    if options.as_json:
        click.echo(json.dumps(document))
    return code


if __name__ == "__main__":
    main(command=sim, name="python -m lab.sim")
