"""What `run --resume` finds out before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgegossip import recipe as recipes
from edgegossip.cli.main import cli
from edgegossip.fleet.launch import run as launch
from edgegossip.fleet.launch.run import resume_fleet, run_fleet
from edgegossip.fleet.launch.run_folders import unfinished
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import ConfigError, DataError

MEMBERS = ("board-0", "board-1", "board-2", "board-3")


def resume(path: Path) -> None:
    resume_fleet(path, plots=False, as_json=True)


def folder_of(parent: Path) -> RunFolder:
    recipe = recipes.load("quickstart-gossip")
    return RunFolder.create(parent, "x", recipes.to_toml(recipe), {})


def test_what_cannot_be_resumed_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run folder"):
        resume(tmp_path)
    folder = folder_of(tmp_path)
    with pytest.raises(DataError, match=r"its run\.json is missing or incomplete"):
        resume(folder.path)
    folder.write_run(b"12", MEMBERS)
    with pytest.raises(DataError, match=r"its run\.json does not fit its recipe\.toml"):
        resume(folder.path)
    folder.write_run(b"x" * 16, MEMBERS)
    folder.write_partition(MEMBERS, ["0"], [[1], [1], [1], [1]])
    for name in MEMBERS:
        folder.event(name, "finished", "done")
    with pytest.raises(ConfigError, match="all of its boards have finished"):
        resume(folder.path)
    recipe = recipes.load("quickstart-gossip", ["checkpoint.every=0"])
    with pytest.raises(ConfigError, match=r"its checkpoint\.every = 0"):
        resume(RunFolder.create(tmp_path, "y", recipes.to_toml(recipe), {}).path)
    (folder.path / "recipe.toml").unlink()
    with pytest.raises(DataError, match=r"its recipe\.toml is missing"):
        resume(folder.path)


@pytest.mark.parametrize(("plots", "as_json"), [(True, False), (False, True)])
def test_a_resumed_run_is_looked_at_and_shown_as_a_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plots: bool, as_json: bool
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(launch, "preflight", lambda recipe, members: seen.append(members))
    monkeypatch.setattr(launch, "_train", lambda *_, quiet, **__: seen.append(quiet))
    monkeypatch.setattr(launch, "conclude", lambda folder, **how: seen.append(how) or 8)
    folder = folder_of(tmp_path)
    folder.write_run(b"x" * 16, MEMBERS)
    folder.write_partition(MEMBERS, ["0"], [[1], [1], [1], [1]])
    for name in MEMBERS if plots else ():  # one was lost, or all of them have not finished
        folder.event(name, "lost" if name == MEMBERS[0] else "finished", "")
    assert resume_fleet(folder.path, plots=plots, as_json=as_json) == 8
    assert run_fleet(recipes.load("quickstart-gossip"), tmp_path, plots=plots, as_json=as_json) == 8
    assert seen == [MEMBERS, as_json, {"plots": plots, "as_json": as_json}] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "name a RECIPE"),
        (["run", "quickstart-gossip", "--resume", "x"], "name a RECIPE"),
        (["run", "--resume", "x", "--boards", "3"], "leave --set, --boards, --alone and --dry-run out"),
    ],
)
def test_a_recipe_or_a_folder(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2 and said in done.output


def test_the_newest_unfinished_folder_of_the_same_run_is_found(tmp_path: Path) -> None:
    run_id, members = b"x" * 16, MEMBERS
    assert unfinished(tmp_path, run_id, members, "coordinator") is None
    folders = []
    for _ in range(3):
        folder = folder_of(tmp_path)
        folder.write_run(run_id, members)
        folders.append(folder)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert unfinished(tmp_path, run_id, members, "coordinator") is None  # none has checkpoints
    for folder in folders[:2]:
        (folder.checkpoint_dir / "coordinator").mkdir()
        (folder.checkpoint_dir / "coordinator" / "0000000001.ckpt").touch()
    assert unfinished(tmp_path, run_id, members, "coordinator") == folders[1].path
    assert unfinished(tmp_path, b"y" * 16, members, "coordinator") is None
    assert unfinished(tmp_path, run_id, members[:3], "coordinator") is None
    assert unfinished(tmp_path, run_id, members, "board-0") is None
