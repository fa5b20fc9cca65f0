"""`edgegossip coordinator`: the server of a run on boards elsewhere, in one command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgegossip.cli.options import INSECURE, JSON, PLOTS, RUNS, SCRIPT_ARGS, SETTINGS, chosen, command, with_script_args
from edgegossip.fleet.launch.outputs import Outputs
from edgegossip.options import REQUIRED, option


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCommand:
    """Options of `edgegossip coordinator`."""

    recipe: str = option(REQUIRED, argument=True, metavar="RECIPE|SCRIPT")
    script_args: tuple[str, ...] = SCRIPT_ARGS()
    settings: tuple[str, ...] = SETTINGS()
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for every interface.")
    port: int = option(8000, "Port to listen on.", low=0, high=65_535)
    boards: str = option(
        "",
        "How many boards, or their names; default: the fleet's, or board-0, board-1, ... as many as run.nodes.",
        metavar="N|A,B,...",
    )
    fleet: Path | None = option(
        None,
        "The fleet's folder, for TLS and boards' keys; default ./fleet where it is there.",
        path="folder",
        metavar="DIR",
    )
    identity: Path | None = option(
        None,
        "In place of --fleet: the folder of `edgegossip fleet add NAME --role coordinator`.",
        path="folder",
        metavar="DIR",
    )
    insecure: bool = INSECURE()
    fresh: bool = option(False, "Begin anew even if this run was begun before and not finished.")
    runs_dir: Path = RUNS()
    outputs: Outputs = Outputs()
    plots: bool = PLOTS()
    as_json: bool = JSON()


@command(CoordinatorCommand)
def coordinator(options: CoordinatorCommand) -> int:
    """Start Flower's server and the run of RECIPE, wait for the boards by name, train, save the
    model.

    A SCRIPT runs here up to its edgegossip.join, which tells the model; the boards train with it.
    With --set evaluation.where=coordinator it also evaluates here, on data of its
    own. With a fleet (`edgegossip fleet init`, `fleet add`) over TLS, and for that fleet's boards
    only, by their names in it. After kill -9 the same command goes on from the last round; boards
    come back by themselves.

    \b
    Examples:
      edgegossip coordinator quickstart-server --boards 4
      edgegossip coordinator quickstart-server --host 0.0.0.0 \\
          --fleet fleet --boards pi-01,pi-02,pi-03,pi-04
      edgegossip coordinator train.py --boards 4
    and on every board, which is told the recipe:
      edgegossip node --coordinator HOST:8000 --identity identity
      edgegossip node train.py --coordinator HOST:8000 --identity identity
    """
    from edgegossip.fleet.launch.coordinator import CoordinatorOptions, run_coordinator
    from edgegossip.recipe import is_script, load

    recipe, settings, boards = options.recipe, options.settings, options.boards
    if is_script(recipe):
        named = () if boards.isdecimal() or not boards else (f"run.nodes={len(boards.split(','))}",)
        settings = ("run.mode=server", *named, *with_script_args(settings, options.script_args))
    if boards.isdecimal():
        settings, boards = (*settings, f"run.nodes={boards}"), ""
    names = tuple(filter(None, boards.split(",")))
    return run_coordinator(
        load(recipe, settings),
        chosen(options, CoordinatorOptions, boards=names, as_json=options.as_json or options.outputs.as_json),
    )
