"""`edgegossip sim`: gossip algorithms and server runs under faults, in virtual time."""

from __future__ import annotations

import json

import click

from edgegossip.cli.options import JSON, SETTINGS


@click.command()
@click.argument("recipe", required=False)
@SETTINGS
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the schedule, or of the first one."
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    metavar="SPEC",
    help="all, none, or entries such as loss=0.2,crash=2,split or crash@3-5:2 (see docs/simulator.md).",
)
@click.option(
    "--mode",
    default="both",
    show_default=True,
    type=click.Choice(["gossip", "server", "both"]),
    help="both: one seed in four is a server run, unless something is said that only one of them has.",
)
@click.option("--campaign", type=click.IntRange(1), metavar="N", help="Run N schedules instead of one with its trace.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes of a campaign. Default: one a core.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="NAME[+MOMENTUM][:KEY=VALUE,...]",
    help="Such as choco-sgd:eta=0.5 or sgp+nesterov; may be repeated. Default: drawn from all.",
)
@click.option("--topology", default="", metavar="NAME[:KEY=VALUE,...]", help="Default: drawn from those that fit.")
@click.option("--codec", default="", metavar="NAME[:KEY=VALUE,...]", help="Default: drawn.")
@click.option("--nodes", type=click.IntRange(2, 64), help="Boards. Default: drawn, 2 to 8, of a server run 2 to 18.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 100_000),
    help="About so many with faults. Default: 3 to 6, of a server run 3 to 10.",
)
@click.option("--workload", default="", help="quadratic, quadratic-alike or consensus. Default: drawn.")
@click.option(
    "--deadline", "deadline_s", type=click.FloatRange(0.1), help="Of a round, in virtual seconds. Default: 2 or 4."
)
@click.option(
    "--server",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Of a server run, such as quorum=2,downlink=fp16; plain,...: the rest is not drawn.",
)
@click.option("--values", default=16, show_default=True, type=click.IntRange(1, 2**20), help="In the model.")
@JSON
def sim(
    recipe: str | None,
    settings: tuple[str, ...],
    seed: int,
    faults: str,
    campaign: int | None,
    jobs: int | None,
    algorithms: tuple[str, ...],
    topology: str,
    codec: str,
    nodes: int | None,
    rounds: int | None,
    workload: str,
    deadline_s: float | None,
    values: int,
    mode: str,
    server: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run gossip and server runs in virtual time while messages, links, disks and boards fail, and
    check that they heal.

    \b
    Examples:
      edgegossip sim --seed 7                              one schedule, with its trace
      edgegossip sim quickstart-gossip --faults loss=0.2,crash=2,split
      edgegossip sim --campaign 2000                       all algorithms, topologies, codecs and faults
      edgegossip sim --campaign 500 --algorithm choco-sgd --faults loss,reorder
      edgegossip sim --campaign 500 --mode server --server quorum=2 --faults all,coordinator-kill

    RECIPE fixes algorithm, topology, codec, boards and deadline, or a server run; what is said
    nowhere is drawn from the seed. The model is a small vector, and training pulls it towards a
    point of each board's own. The same seed gives the same run, bit for bit. Exits with 6 when a
    promise is broken; a campaign ends with a command line that replays its first failure, made
    small.
    """
    from edgegossip.lab.sim import command

    asked = command.SimOptions(
        recipe,
        settings,
        seed,
        faults,
        algorithms,
        topology,
        codec,
        nodes,
        rounds,
        workload,
        deadline_s,
        values,
        jobs,
        mode,
        server,
    )
    if campaign is None:
        document, code = command.replay(asked, click.echo, quiet=as_json)
    else:
        document, code = command.many(asked, campaign, click.echo, quiet=as_json)
    if as_json:
        click.echo(json.dumps(document))
    return code
