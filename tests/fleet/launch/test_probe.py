"""What a script would train, before a run: `run --dry-run` and `plan` ask its boards' processes."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from click.testing import CliRunner

from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement
from edgegossip.cli.main import cli
from edgegossip.fleet.launch import probe as probing
from edgegossip.fleet.launch import run
from edgegossip.fleet.launch.fork_server import MODULES, ForkServer
from edgegossip.fleet.launch.probe import Joined, misfit, probe
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node.spec import default_members
from edgegossip.recipe import Recipe
from edgegossip.scale.devices import load_fleet
from edgegossip.scale.plan import plan, plan_text
from edgegossip.types import EXIT_RUN, ConfigError, RunError

# Each board does something else, by its number; whoever trains a round leaves a file.
SCRIPT = """
    import os
    import sys
    import time
    from pathlib import Path

    import torch

    import edgegossip

    what, width = sys.argv[1], 5 if sys.argv[1] == "1" else 4
    if what == "2":
        open("none")
    if what == "3":
        sys.exit(0)
    if what == "4":
        print("out of luck")
        os._exit(3)
    if what == "5":
        import no_such_package
    data = torch.zeros(1_000_000 * int(sys.argv[2]))
    run = edgegossip.join(torch.nn.Linear(width, 3))
    if what == "1":
        torch.nn.functional.mse_loss(torch.zeros(3), torch.zeros(3, 1))
    if what == "6":
        open("none")
    for round in () if what == "7" else run.rounds():
        Path(__file__).with_name("past").touch()
"""


@pytest.fixture(scope="module", autouse=True)
def one_fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Probes fork their boards from a process that has loaded torch, which all may share."""
    with (
        ForkServer(MODULES["gossip"], 1, tmp_path_factory.mktemp("forks") / "log") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(probing, "ForkServer", lambda *_: nullcontext(server))
        yield


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def chosen(script: Path, boards: int, *arguments: str, **settings: object) -> Recipe:
    own: Mapping[str, object] = {"run.nodes": boards, "run.script_args": list(arguments), **settings}
    return recipes.with_settings(recipes.load(str(script)), own)


def test_every_board_says_what_joined_or_why_nothing_did(script: Path) -> None:
    members = default_members(8)
    joined = probe(chosen(script, 8, "{index}", "1"), members, members, "first round")
    assert list(joined) == list(members)
    assert [one.layout.size if one.layout else None for one in joined.values()] == [15, 18, *[None] * 6]
    assert [one.problem for one in joined.values()][:2] == ["", ""]
    assert (
        "torch warned train.py: Using a target size" in joined["board-1"].notices[0] and not joined["board-0"].notices
    )
    causes = [one.problem for one in joined.values()][2:]
    for problem, words in zip(
        causes,
        (
            "train.py, line 13: FileNotFoundError: ",
            "train.py ended without edgegossip.join(model)",
            "its process ended with exit code 3: out of luck",
            "train.py, line 20: ModuleNotFoundError: No module named 'no_such_package'",
            "train.py, line 26: FileNotFoundError: ",
            "train.py ended before the run was over",
        ),
        strict=True,
    ):
        assert problem.startswith(words)
    assert misfit(joined).startswith("the number of values that travel is 15 on board-0 and 18 on board-1: ")
    assert not script.with_name("past").exists()


def test_a_script_that_never_comes_to_its_join_is_not_waited_for(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "JOIN_S", 0.0)
    script.write_text("import time; time.sleep(600)")
    members = default_members(2)
    (joined,) = probe(chosen(script, 2), members[:1], members).values()
    assert joined.problem == "it did not come to its join within 0 s"


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have commands hear what these boards joined, which the tests above have from processes."""

    def patch(*found: Joined) -> None:
        def probed(
            recipe: Recipe, names: Sequence[str], members: Sequence[str], ends_at: str = ""
        ) -> Mapping[str, Joined]:
            return dict(zip(names, found, strict=False))

        monkeypatch.setattr(probing, "probe", probed)
        monkeypatch.setattr(run, "probe", probed)

    return patch


def joined(values: int = 15, problem: str = "", *notices: str) -> Joined:
    layout = Layout.of([TensorSpec("weight", (values,))])
    return Joined(None if problem else layout, Agreement({"values": values}), 10**8, notices, problem)


def test_a_plan_is_of_the_scripts_own_model_and_memory(script: Path, joins: Callable[..., None]) -> None:
    """Of a board that holds 400 MB before its join, and of one that does not."""
    members, fleet = default_members(2), load_fleet("pi4-wifi")
    plans = []
    for found in probe(chosen(script, 2, "0", "{index}00"), members, members).values():
        joins(found)
        plans.append(plan(chosen(script, 2), fleet, 3))
    small, large = plans
    assert small["values"] == 15 and small["script"] == "train.py" and 60 <= small["message_bytes"] < 400
    more = large["kinds"][0]["memory_bytes"] - small["kinds"][0]["memory_bytes"]
    assert more == pytest.approx(4 * 100_000_000, rel=0.1)
    assert (small["kinds"][0]["compute_s"], small["step_s"]) == (None, None)  # nobody knows
    text = plan_text(small)
    assert "15 values" in text and "and what train.py computes" in text and "train.py up to its join" in text
    assert "3 of the fleet, where run.nodes = 2: " in text and "recipe" not in text


@pytest.mark.parametrize("command", [["calibrate", "--recipe"], ["scale", "--on", "model", "--boards", "2"]])
def test_no_other_command_takes_a_script_for_the_default_recipe(
    command: list[str], script: Path, tmp_path: Path
) -> None:
    out = ["-o", str(tmp_path / "out")] if command[0] == "scale" else []
    done = CliRunner().invoke(cli, [*command, str(script), *out], standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and "is a training script" in str(done.exception), done.output


def test_a_dry_run_tells_what_every_board_would_come_to(
    script: Path, tmp_path: Path, joins: Callable[..., None]
) -> None:
    runs = tmp_path / "runs"
    words = ["run", str(script), "--boards", "3", "--runs", str(runs), "--dry-run"]
    done = CliRunner().invoke(cli, [*words, "--", "{index}", "1"], standalone_mode=False)
    assert done.return_value == EXIT_RUN and not runs.exists()
    lines = done.output.splitlines()
    assert lines[1].startswith("board-0: 15 values, ") and lines[2].startswith("board-1: 18 values, ")
    assert lines[3].startswith("board-2: train.py, line 13: FileNotFoundError")
    assert lines[4].startswith("!! board-1: torch warned train.py: ")
    assert lines[5].startswith("edgegossip: 1 of 3 would end before the run: board-2: train.py, line 13: ")
    assert "the number of values that travel is 15 on board-0 and 18 on board-1" in lines[5]
    joins(*[joined(problem="train.py, line 13: FileNotFoundError: none")] * 3)
    done = CliRunner().invoke(cli, [*words, "--", "2", "1"], standalone_mode=False)
    assert "3 of 3 would end before the run: board-0, board-1 and board-2: train.py, line 13: " in done.output
    joins(*[joined()] * 3)
    done = CliRunner().invoke(cli, [*words, "--json", "--", "0", "1"], standalone_mode=False)
    document = json.loads(done.stdout)
    assert done.return_value == 0 and (document["values"], document["model"], document["problem"]) == (
        15,
        "train.py",
        "",
    )
    assert [(one["board"], one["values"]) for one in document["each"]] == [(f"board-{k}", 15) for k in range(3)]


def test_a_dry_run_and_a_plan_say_what_the_run_would(script: Path, joins: Callable[..., None]) -> None:
    script.write_text("import edgegossip, torch; edgegossip.join(torch.nn.Linear(4, 3), rounds=20)")
    members = default_members(2)
    found = probe(chosen(script, 2, **{"run.rounds": 30}), members, members)
    said = "train.py asked join for 20 rounds, and the run has run.rounds = 30: say --set run.rounds=20"
    first, second = (one.notices for one in found.values())
    assert first[0].startswith(said) and len(first) == 1 and not second
    words = [str(script), "--boards", "2"]
    for command in (["run", "--dry-run"], ["plan", "--profile", "pi4-wifi"]):
        joins(*found.values())
        done = CliRunner().invoke(cli, [*command, *words, "--set", "run.rounds=30"], standalone_mode=False)
        assert done.output.count(f"!! {said}") == 1, done.output
        joins(joined(), joined())
        done = CliRunner().invoke(cli, [*command, *words, "--set", "run.rounds=20"], standalone_mode=False)
        assert "!!" not in done.output and "15" in done.output


def test_a_plan_without_a_join_is_refused(script: Path, joins: Callable[..., None]) -> None:
    joins(joined(problem="train.py, line 13: FileNotFoundError: none"))
    with pytest.raises(RunError, match=r"nothing to plan: on board-0 train\.py, line 13: FileNotFoundError"):
        plan(chosen(script, 2, "2", "1"), load_fleet("pi4-wifi"), 2)
