"""`edgegossip node`: the program a board runs, the same in both modes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from edgegossip.cli.options import RUNS, SCRIPT_ARGS, SETTINGS, with_script_args

IDENTITY = Path("identity")


@click.command()
@click.argument("recipe", required=False, metavar="[RECIPE|SCRIPT]")
@SCRIPT_ARGS
@SETTINGS
@click.option("--name", help="This board's name, such as pi-01; unique in the run. Default: that of its --identity.")
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Gossip: where peers reach us."
)
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME=HOST:PORT", help="Gossip: another board; repeat for each."
)
@click.option("--members", metavar="A,B,...", help="Gossip: found a run of these boards (or of those in a file).")
@click.option(
    "--join", "seeds", multiple=True, metavar="HOST:PORT", help="Gossip: join the run of the board that listens there."
)
@click.option("--advertise", metavar="HOST[:PORT]", help="With --members or --join: where others reach this board.")
@click.option("--coordinator", metavar="HOST:PORT", help="Server mode: the coordinator's address.")
@click.option(
    "--boards",
    default="",
    metavar="A,B,...",
    help="Server mode, with RECIPE: every board's name; default board-0, board-1, ...",
)
@click.option(
    "--identity",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="This board's folder of `edgegossip fleet add`; peers and coordinator must be of the same fleet. Default with "
    "--coordinator alone: ./identity where it is there.",
)
@click.option(
    "--kit",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Alone: name, identity and what to run are in this folder, which first boot makes of `edgegossip fleet kit`.",
)
@click.option("--insecure", is_flag=True, help="Allow plain, unauthenticated traffic outside the loopback interface.")
@RUNS
@click.option(
    "--resume",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Gossip: go on from the checkpoint in this run folder; default: that of the same run, if it is not over.",
)
@click.option(
    "--fresh", is_flag=True, help="Begin anew even if this board began this run before and did not finish it."
)
@click.option("--managed", is_flag=True, hidden=True)
@click.option("--restarted", type=float, metavar="SECONDS", hidden=True)
@click.option("--run-id", default="", hidden=True)
@click.option("--pace", type=click.Path(path_type=Path), hidden=True)
@click.option("--save", type=click.Path(dir_okay=False), hidden=True)
def node(
    recipe: str | None,
    script_args: tuple[str, ...],
    settings: tuple[str, ...],
    name: str | None,
    listen: str,
    peers: tuple[str, ...],
    members: str | None,
    seeds: tuple[str, ...],
    advertise: str | None,
    coordinator: str | None,
    boards: str,
    identity: Path | None,
    kit: Path | None,
    insecure: bool,
    runs_dir: str,
    resume: str | None,
    fresh: bool,
    managed: bool,
    restarted: float | None,
    run_id: str,
    pace: Path | None,
    save: str | None,
) -> int:
    """Be one board of a run of RECIPE, or of your own SCRIPT: a gossip peer, or a client of a
    coordinator.

    One board founds a run of RECIPE with --members; the others --join it through any board that is
    in it, and need no recipe. Or every board is given the same recipe and the address of every
    --peer. A --coordinator tells its boards the recipe, too. A SCRIPT, a Python file that calls
    edgegossip.join, is named on every board; what follows -- are its arguments there.

    \b
    Examples:
      edgegossip node quickstart-gossip --name pi-01 --members pi-01,pi-02,pi-03,pi-04 --listen 10.0.0.1:7700 --identity identity
      edgegossip node --join 10.0.0.1:7700 --name pi-02 --listen 0.0.0.0:7700 --identity identity
      edgegossip node quickstart-gossip --name pi-01 --listen 0.0.0.0:7700 --identity identity \\
          --peer pi-02=10.0.0.2:7700 --peer pi-03=10.0.0.3:7700 --peer pi-04=10.0.0.4:7700
      edgegossip node --coordinator 10.0.0.9:8000 --identity identity
      edgegossip node train.py --join 10.0.0.1:7700 --name pi-02 --listen 0.0.0.0:7700 --identity identity -- --data photos
    """
    settings = with_script_args(settings, script_args)
    if kit is not None:
        return _of_kit(kit, Path(runs_dir))
    if coordinator is not None and recipe is None and identity is None and not insecure and IDENTITY.is_dir():
        identity = IDENTITY
    if name is None:
        name = _name_of(identity)
    from edgegossip.node.main import NodeOptions, run_managed
    from edgegossip.recipe import is_script, load

    options = NodeOptions(
        name=name,
        listen=listen,
        peers=peers,
        coordinator=coordinator,
        insecure=insecure,
        identity=identity,
        runs_dir=Path(runs_dir),
        managed=managed,
        restarted_s=restarted,
        members=tuple(filter(None, boards.split(","))),
        run_id=bytes.fromhex(run_id),
        save_to=Path(save) if save else None,
        resume=Path(resume) if resume else None,
        advertise=advertise,
    )
    if pace is not None:
        from edgegossip.lab.scale.netns.dilation import DilatedRuntime

        options = replace(options, make_runtime=partial(DilatedRuntime, pace, name))
    if managed and recipe is not None:
        run_managed(load(recipe, settings), options)
        return 0
    from edgegossip.fleet.launch.board import run_board, run_follower, run_member

    if recipe is not None and is_script(recipe) and (seeds or coordinator is not None):
        script = load(recipe).run.script  # the rest of the recipe is the run's
        recipe, settings = None, (*settings, f"run.script={json.dumps(script)}")
    if seeds or members is not None:
        return run_member(recipe, settings, members, seeds, options, fresh=fresh)
    if recipe is None and coordinator is not None:
        return run_follower(coordinator, settings, options, fresh=fresh)
    if recipe is None:
        raise click.UsageError(
            "say which RECIPE to run, or --join HOST:PORT of a board that runs one already, or --coordinator HOST:PORT"
        )
    return run_board(load(recipe, settings), options, fresh=fresh)


def _name_of(identity: Path | None) -> str:
    if identity is None:
        raise click.UsageError("say this board's --name, such as pi-01, or its --identity")
    from edgegossip.security.identity import Identity

    return Identity.load(identity).name


def _of_kit(kit: Path, runs: Path) -> int:
    from edgegossip.fleet.launch import provisioned

    def run(arguments: list[str]) -> int:
        if "--kit" in arguments:
            raise click.UsageError(f"--kit in {kit / provisioned.ARGUMENTS} leads nowhere: leave it out")
        with node.make_context("node", arguments) as context:
            return int(node.invoke(context))

    return provisioned.run(kit, runs, run, lambda text: click.echo(text, err=True))
