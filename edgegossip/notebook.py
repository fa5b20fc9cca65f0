"""Whole fleets from Python: `edgegossip.run` for recipes and scripts, `edgegossip.local` for a
function, such as one in a cell of a notebook, `edgegossip.resume` for a run that was stopped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.run import resumed, trained
from edgegossip.fleet.launch.run_folders import exit_code
from edgegossip.result import Result
from edgegossip.telemetry.run_folder import RunFolder, read_run
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
    runs: str | Path = "runs",
    quiet: bool = False,
    alone: bool = False,
    **keys: Any,
) -> Result:
    """Train on processes of this machine, as `edgegossip run` does, and return what came of it.

    Args:
        source: a packaged recipe's name, the path of a recipe (.toml), or of a training script
            (.py).
        settings: recipe keys and their values, such as {"training.lr": 0.05}.
        runs: the folder in which the run's own folder is made.
        quiet: print nothing while it trains. Otherwise a line comes every two seconds, on standard
            error; in a notebook a few lines change in place.
        alone: first train each board by itself, with the same rounds, seed and data;
            `Result.beside` has what each board reached alone, together, and with the average of the
            models.
        keys: recipe keys as keywords. Those of [run] by their names (nodes=4, rounds=50, seed=2,
            mode="server", script_args=["--data", "data/{board}"]), others as section__key
            (codec__name="topk"), or a section as a mapping (codec={"name": "topk"}).
            `edgegossip recipe keys` lists them all.

    Raises ConfigError for a setting, with key, range and nearest choice, before anything starts;
    another EdgegossipError when nothing was trained. Boards that were lost on the way are named in
    `Result.summary["failed_nodes"]`. An interrupt (Ctrl-C, or the notebook's stop button) ends all
    boards; `resume` goes on.

    Example:
        result = edgegossip.run("quickstart-gossip", nodes=4, rounds=50, codec__name="minmax8")
        result.score  # 0.94
    """
    recipe = recipes.with_settings(recipes.load(str(source)), recipes.keys_of(settings, keys))
    return _result(trained(recipe, Path(runs), quiet=quiet, alone=alone))


def resume(folder: str | Path, *, quiet: bool = False) -> Result:
    """Go on with a run of this machine that ended early, each board from its newest checkpoint.

    Args:
        folder: of the run.
        quiet: as for `run`.

    Raises DataError for what is no run folder, ConfigError for a run that is over or kept no
    checkpoints, and as `run` does.

    Example:
        result = edgegossip.resume("runs/20260102-030405-quickstart-gossip")
    """
    return _result(resumed(Path(folder), quiet=quiet))


def local(
    train: Callable[..., object],
    settings: Mapping[str, Any] | None = None,
    *,
    runs: str | Path = "runs",
    quiet: bool = False,
    alone: bool = False,
    **keys: Any,
) -> Result:
    """Call `train` on each of some boards (4, or as nodes=... says), processes of this machine, and
    return what came of it.

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

        result = edgegossip.local(train, nodes=4, rounds=20)
    """
    try:
        import cloudpickle
    except ImportError:
        raise HostError("edgegossip.local needs the package cloudpickle: pip install cloudpickle") from None

    with tempfile.TemporaryDirectory(prefix="edgegossip-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT)
        script.with_suffix(".function").write_bytes(cloudpickle.dumps(train))
        name = getattr(train, "__name__", "train").strip("<>")
        document = {"run": {"name": name, "script": str(script), "script_args": ["{index}"]}}
        recipe = recipes.with_settings(recipes.from_dict(document), recipes.keys_of(settings, keys))
        return _result(trained(recipe, Path(runs), quiet=quiet, lasting=False, alone=alone))


def _result(run: AbstractContextManager[RunFolder]) -> Result:
    with run as folder:
        data = read_run(folder.path)
        summary = summarise(data)
        folder.write_summary(summary)
        if exit_code(summary) == EXIT_RUN:
            reasons = [event.text for event in data.events() if event.name in ("error", "lost")]
            raise RunError(f"no board finished: {'; '.join(reasons[:1]) or 'see its logs'} (run folder {folder.path})")
        return Result(folder.path)
