"""`edgegossip node`: the program a board runs, the same in both modes."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from edgegossip.cli.options import INSECURE, RUNS, SCRIPT_ARGS, SETTINGS, chosen, command, with_script_args
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.options import option

IDENTITY = Path("identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Options of `edgegossip node`."""

    recipe: str | None = option(None, argument=True, metavar="[RECIPE|SCRIPT]")
    script_args: tuple[str, ...] = SCRIPT_ARGS()
    settings: tuple[str, ...] = SETTINGS()
    name: str | None = option(
        None, "This board's name, such as pi-01; unique in the run. Default: that of its --identity."
    )
    listen: str = option("127.0.0.1:0", "Gossip: where peers reach us.", metavar="HOST:PORT")
    peers: tuple[str, ...] = option(
        (), "Gossip: another board; repeat for each.", flag="--peer", metavar="NAME=HOST:PORT"
    )
    founding: str | None = option(
        None, "Gossip: found a run of these boards (or of those in a file).", flag="--members", metavar="A,B,..."
    )
    seeds: tuple[str, ...] = option(
        (), "Gossip: join the run of the board that listens there.", flag="--join", metavar="HOST:PORT"
    )
    advertise: str | None = option(
        None, "With --members or --join: where others reach this board.", metavar="HOST[:PORT]"
    )
    coordinator: str | None = option(None, "Server mode: the coordinator's address.", metavar="HOST:PORT")
    boards: str = option(
        "", "Server mode, with RECIPE: every board's name; default board-0, board-1, ...", metavar="A,B,..."
    )
    identity: Path | None = option(
        None,
        "This board's folder of `edgegossip fleet add`; peers and coordinator must be of the same fleet. Default with "
        "--coordinator alone: ./identity where it is there.",
        path="folder",
        metavar="DIR",
    )
    kit: Path | None = option(
        None,
        "Alone: name, identity and what to run are in this folder, which first boot makes of `edgegossip fleet kit`.",
        path="folder",
        metavar="DIR",
    )
    insecure: bool = INSECURE()
    runs_dir: Path = RUNS()
    outputs: Outputs = Outputs()
    fresh: bool = option(False, "Begin anew even if this board began this run before and did not finish it.")
    managed: bool = option(False, hidden=True)
    probe: str = option("", hidden=True)
    restarted_s: float | None = option(None, flag="--restarted", metavar="SECONDS", hidden=True)
    run_id: str = option("", hidden=True)
    runtime: str = option("", hidden=True)
    save_to: Path | None = option(None, flag="--save", path="file", hidden=True)
    test_average: bool = option(False, hidden=True)


@command(Node)
def node(options: Node) -> int:
    """Be one board of a run of RECIPE, or of your own SCRIPT: a gossip peer, or a client of a
    coordinator.

    One board founds a run of RECIPE with --members; the others --join it through any board that is
    in it, and need no recipe. Or every board is given the same recipe and the address of every
    --peer. A --coordinator tells its boards the recipe, too. A SCRIPT, a Python file that calls
    edgegossip.join, is named on every board; what follows -- are its arguments there.

    \b
    Examples:
      edgegossip node quickstart-gossip --name pi-01 \\
          --members pi-01,pi-02,pi-03,pi-04 --listen 10.0.0.1:7700 --identity identity
      edgegossip node --join 10.0.0.1:7700 --name pi-02 --listen 0.0.0.0:7700 --identity identity
      edgegossip node quickstart-gossip --name pi-01 --listen 0.0.0.0:7700 --identity identity \\
          --peer pi-02=10.0.0.2:7700 --peer pi-03=10.0.0.3:7700 --peer pi-04=10.0.0.4:7700
      edgegossip node --coordinator 10.0.0.9:8000 --identity identity
      edgegossip node train.py --join 10.0.0.1:7700 --name pi-02 --listen 0.0.0.0:7700 \\
          --identity identity -- --data photos
    """
    if options.kit is not None:
        return _of_kit(options.kit, options.runs_dir)
    recipe, settings = options.recipe, with_script_args(options.settings, options.script_args)
    coordinator, seeds, identity = options.coordinator, options.seeds, options.identity
    if coordinator is not None and recipe is None and identity is None and not options.insecure and IDENTITY.is_dir():
        identity = IDENTITY
    from edgegossip.node.main import NodeOptions, run_managed
    from edgegossip.recipe import is_script, load

    board = chosen(
        options,
        NodeOptions,
        name=_name_of(identity) if options.name is None else options.name,
        identity=identity,
        members=tuple(filter(None, options.boards.split(","))),
        run_id=bytes.fromhex(options.run_id),
    )
    if options.runtime:  # module:class,path
        what, _, path = options.runtime.partition(",")
        module, _, name = what.partition(":")
        make = getattr(importlib.import_module(module), name)
        board = replace(board, make_runtime=partial(make, Path(path), board.name))
    if options.probe and recipe is not None:
        from edgegossip.node.probe import run_probe

        run_probe(load(recipe, settings), board, options.probe)
        return 0
    if options.managed and recipe is not None:
        run_managed(load(recipe, settings), board)
        return 0
    from edgegossip.fleet.launch.board import run_board, run_follower, run_member

    if recipe is not None and is_script(recipe) and (seeds or coordinator is not None):
        script = load(recipe).run.script  # the rest of the recipe is the run's
        recipe, settings = None, (*settings, f"run.script={json.dumps(script)}")
    if seeds or options.founding is not None:
        return run_member(
            recipe, settings, options.founding, seeds, board, fresh=options.fresh, outputs=options.outputs
        )
    if recipe is None and coordinator is not None:
        return run_follower(coordinator, settings, board, fresh=options.fresh, outputs=options.outputs)
    if recipe is None:
        raise click.UsageError(
            "say which RECIPE to run, or --join HOST:PORT of a board that runs one already, or --coordinator HOST:PORT"
        )
    return run_board(load(recipe, settings), board, fresh=options.fresh, outputs=options.outputs)


def _name_of(identity: Path | None) -> str:
    if identity is None:
        raise click.UsageError("say this board's --name, such as pi-01, or its --identity")
    from edgegossip.security.identity import Identity

    return Identity.load(identity).name


def _of_kit(bundle: Path, runs: Path) -> int:
    from edgegossip.fleet.launch import provisioned

    def run(arguments: list[str]) -> int:
        if "--kit" in arguments:
            raise click.UsageError(f"--kit in {bundle / provisioned.ARGUMENTS} leads nowhere: leave it out")
        with node.make_context("node", arguments) as context:
            return int(node.invoke(context))

    return provisioned.run(bundle, runs, run, lambda text: click.echo(text, err=True))
