"""Whole fleets from Python: `edgegossip.run` for recipes and scripts, `edgegossip.local` for a
function, such as one in a cell of a notebook.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.run import trained
from edgegossip.fleet.launch.run_folders import exit_code
from edgegossip.recipe import Recipe
from edgegossip.result import Result
from edgegossip.telemetry.run_folder import read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import EXIT_RUN, HostError, RunError

# The script of each board. The function comes by value, as it may have no file: it is the user's
# own, on its way from the user's process to its children through a folder that only the user reads.
_SCRIPT = """
import inspect
import sys
from pathlib import Path

import cloudpickle

train = cloudpickle.loads(Path(__file__).with_suffix(".function").read_bytes())
train(max(0, int(sys.argv[1]))) if inspect.signature(train).parameters else train()
"""


def run(
    source: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    nodes: int | None = None,
    runs: str | Path = "runs",
    quiet: bool = True,
) -> Result:
    """Train on processes of this machine, as `edgegossip run` does, and return what came of it.

    Args:
        source: a packaged recipe's name, the path of a recipe, or of a training script.
        settings: recipe keys and their values, such as {"run.rounds": 50}.
        nodes: how many boards; the same as "run.nodes" in `settings`.
        runs: the folder in which the run's own folder is made.
        quiet: print nothing while it trains.

    Raises an EdgegossipError when nothing was trained. Boards that were lost on the way are named
    in `Result.summary["failed_nodes"]`.

    Example:
        result = edgegossip.run("quickstart-gossip", {"codec.name": "minmax8"}, nodes=4)
        result.summary["accuracy"]["mean"]
    """
    return _train(recipes.load(str(source)), settings, nodes, runs, quiet)


def local(
    train: Callable[..., object],
    settings: Mapping[str, Any] | None = None,
    *,
    nodes: int = 4,
    runs: str | Path = "runs",
    quiet: bool = True,
) -> Result:
    """Call `train` on each of `nodes` boards, processes of this machine, and return what came of
    it.

    `train` calls `edgegossip.join`, as a training script does. If it takes an argument, it is given
    the board's number, from 0; a coordinator calls it up to the join, as board 0. It may be defined
    anywhere, also in a cell of a notebook; what it refers to there is copied to the boards. The
    other arguments are those of `run`.

    Raises as `run` does, and HostError where cloudpickle is not installed.

    Example:
        def train(board):
            model, data = Net(), load(f"data/{board}")
            optimizer = torch.optim.AdamW(model.parameters())
            with edgegossip.join(model, state=[optimizer]) as run:
                for round in run.rounds():
                    run.exchange(loss=epoch(model, optimizer, data))

        result = edgegossip.local(train, {"run.rounds": 20}, nodes=4)
    """
    try:
        import cloudpickle
    except ImportError:
        raise HostError(
            "edgegossip.local needs the package cloudpickle: pip install 'edgegossip[notebook]' from a checkout or a release file"
        ) from None

    with tempfile.TemporaryDirectory(prefix="edgegossip-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT)
        script.with_suffix(".function").write_bytes(cloudpickle.dumps(train))
        name = getattr(train, "__name__", "train").strip("<>")
        document = {"run": {"name": name, "script": str(script), "script_args": ["{index}"]}}
        return _train(recipes.from_dict(document), settings, nodes, runs, quiet)


def _train(
    recipe: Recipe, settings: Mapping[str, Any] | None, nodes: int | None, runs: str | Path, quiet: bool
) -> Result:
    recipe = recipes.with_settings(recipe, {**(settings or {}), **({} if nodes is None else {"run.nodes": nodes})})
    with trained(recipe, Path(runs), quiet=quiet) as folder:
        data = read_run(folder.path)
        summary = summarise(data)
        folder.write_summary(summary)
        if exit_code(summary) == EXIT_RUN:
            reasons = [event.text for event in data.events() if event.name in ("error", "lost")]
            raise RunError(f"no board finished: {'; '.join(reasons[:1]) or 'see its logs'} (run folder {folder.path})")
        return Result(folder.path)
