"""`python -m lab.sim`: gossip algorithms and server runs under faults, in virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from edgegossip.cli.main import main
from edgegossip.cli.options import JSON, SETTINGS, chosen, command
from edgegossip.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Sim:
    """Options of `python -m lab.sim`."""

    recipe: str | None = option(None, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    seed: int = option(1, "Of the schedule, or of the first one.", low=0)
    faults: str = option(
        "all",
        "all, none, or entries such as loss=0.2,crash=2,split or crash@3-5:2 (see lab/sim/README.md).",
        metavar="SPEC",
    )
    mode: str = option(
        "both",
        "both: one seed in four is a server run, unless something is said that only one of them has; "
        "shell: the whole program of a gossip board.",
        choices=("gossip", "server", "both", "shell"),
    )
    campaign: int | None = option(None, "Run N schedules instead of one with its trace.", low=1, metavar="N")
    jobs: int | None = option(None, "Processes of a campaign. Default: one a core.", low=1, high=256)
    algorithms: tuple[str, ...] = option(
        (),
        "Such as choco-sgd:eta=0.5, sgp+nesterov or dpsgd+outer-nesterov; may be repeated. Default: drawn from all.",
        flag="--algorithm",
        metavar="NAME[+MOMENTUM][:KEY=VALUE,...]",
    )
    topology: str = option("", "Default: drawn from those that fit.", metavar="NAME[:KEY=VALUE,...]")
    codec: str = option("", "Default: drawn.", metavar="NAME[:KEY=VALUE,...]")
    nodes: int | None = option(
        None, "Default: drawn, 2 to 8, of a server run 2 to 18.", flag="--boards", low=2, high=64
    )
    rounds: int | None = option(
        None, "About so many with faults. Default: 3 to 6, of a server run 3 to 10.", low=1, high=100_000
    )
    workload: str = option("", "quadratic, quadratic-alike or consensus. Default: drawn.")
    deadline_s: float | None = option(
        None, "Of a round, in virtual seconds. Default: 2 or 4.", flag="--deadline", low=0.1
    )
    server: tuple[str, ...] = option(
        (),
        "Of a server run, such as quorum=2,downlink=fp16; plain,...: the rest is not drawn.",
        metavar="KEY=VALUE,...",
    )
    values: int = option(16, "In the model.", low=1, high=2**20)
    as_json: bool = JSON()


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
    from lab.sim import command as simulation

    asked = chosen(options, simulation.SimOptions)
    if options.campaign is None:
        document, code = simulation.replay(asked, click.echo, quiet=options.as_json)
    else:
        document, code = simulation.many(asked, options.campaign, click.echo, quiet=options.as_json)
    if options.as_json:
        click.echo(json.dumps(document))
    return code


if __name__ == "__main__":
    main(command=sim, name="python -m lab.sim")
