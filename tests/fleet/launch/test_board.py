"""A board started by hand goes on where an earlier process of the same command did not finish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from edgegossip import recipe as recipes
from edgegossip.cli.main import cli
from edgegossip.fleet.launch import board as boards
from edgegossip.fleet.launch.run_folders import instance_of
from edgegossip.mesh.membership.client import JoinAnswer
from edgegossip.node import bootstrap
from edgegossip.node.main import NodeOptions, _place
from edgegossip.telemetry.records import EventRecord, to_line
from edgegossip.telemetry.run_folder import read_run

Found = list[tuple[Path, bool]]  # run folder, and whether the board knows that it was in the run
PEERS = ("--peer", "pi-02=127.0.0.1:1", "--peer", "pi-03=127.0.0.1:2")
COMMANDS = {
    "peers": ("quickstart-gossip", "--set", "run.nodes=3", *PEERS),
    "founder": ("quickstart-gossip", "--members", "pi-01,pi-02,pi-03"),
    "joiner": ("--join", "127.0.0.1:1"),
    "server": ("quickstart-server", "--set", "run.nodes=2", "--boards", "pi-01,pi-02", "--coordinator", "127.0.0.1:1"),
}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    """Boards that begin, and are over before they do anything."""
    seen: Found = []

    def run_node(recipe: recipes.Recipe, options: NodeOptions, open_output: Any) -> None:
        spec, _ = _place(recipe, options)
        sink, save_to = open_output(spec)
        sink.event("pi-01", "notice", "here")
        sink.close()
        seen.append((save_to.parent.parent, spec.restarted))

    def ask(*_: object, **__: object) -> JoinAnswer:
        recipe = recipes.with_settings(recipes.load("quickstart-gossip"), {"run.nodes": 3})
        return JoinAnswer(
            bootstrap.found(recipe, "pi-02", ("pi-01", "pi-02", "pi-03"), None).manifest, (), "pi-02", "10.0.0.9"
        )

    monkeypatch.setattr(boards, "run_node", run_node)
    monkeypatch.setattr(boards, "conclude", lambda *_, **__: 0)
    monkeypatch.setattr("edgegossip.mesh.membership.client.request_join", ask)
    return seen


def start(runs: Path, *command: str) -> str:
    done = CliRunner().invoke(cli, ["node", *command, "--name", "pi-01", "--runs", str(runs)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def keep(folder: Path, board: str = "pi-01") -> None:
    """As if it had kept a checkpoint."""
    (folder / "checkpoint" / board).mkdir(exist_ok=True)
    (folder / "checkpoint" / board / "0000000001.ckpt").touch()


@pytest.mark.parametrize("how", COMMANDS)
def test_the_same_command_goes_on_and_says_so(how: str, found: Found, tmp_path: Path) -> None:
    assert "going on" not in start(tmp_path, *COMMANDS[how])
    keep(found[0][0])
    said = start(tmp_path, *COMMANDS[how])
    assert f"going on with {found[0][0]}; --fresh begins anew" in said
    start(tmp_path, *COMMANDS[how], "--fresh")
    first, second, fresh = found
    assert second == (first[0], how != "server") and not first[1]
    assert fresh[0] != first[0] and not fresh[1]


@pytest.mark.parametrize("how", [*COMMANDS, "follower"])
def test_what_to_know_of_a_run_is_said_once(
    how: str, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "data.npz", train_inputs=np.eye(8, dtype=np.float32), train_targets=np.arange(8) % 2)
    sets = ["training.batch_size=1", "training.local_steps=1", "data.name=npz", f"data.dir={tmp_path}", "run.nodes=3"]
    members = ("pi-01", "pi-02", "pi-03")
    gossip, server = (recipes.load(f"quickstart-{mode}", sets) for mode in ("gossip", "server"))
    monkeypatch.setattr(bootstrap, "join", lambda *_: bootstrap.found(gossip, "pi-02", members, None))
    monkeypatch.setattr(bootstrap, "follow", lambda *_: (server, members))
    command = COMMANDS.get(how, ("--coordinator", "127.0.0.1:1"))
    own = [word for setting in sets for word in ("--set", setting)] if command[0].startswith("quickstart") else []
    if how == "server":
        own += ["--boards", ",".join(members)]
    said = start(tmp_path / "runs", *command, *own)
    assert said.count("!! each message is made of 1 example, and whoever gets it can read examples out of it") == 1
    assert said.count("!! data.partition = iid: every board must find the same data in data.dir") == 1


def test_a_run_that_is_over_or_another_is_not_taken(found: Found, tmp_path: Path) -> None:
    command = COMMANDS["founder"]
    start(tmp_path, *command)
    keep(first := found[0][0])
    start(tmp_path, *command[:2], "pi-02,pi-01,pi-03")
    start(tmp_path, *command, "--set", "training.lr=0.5")
    start(tmp_path, *COMMANDS["peers"])
    assert first not in [folder for folder, _ in found[1:]] and not any(known for _, known in found)
    keep(first, "pi-02")  # the folder of `run`, whose boards share it
    start(tmp_path, *command)
    assert found[-1][0] != first
    keep(last := found[-1][0])
    (last / "checkpoint" / "pi-01.npz").touch()  # it has finished, and what came before it is no more to go on with
    start(tmp_path, *command)
    assert found[-1][0] != last and not found[-1][1]


def test_who_joins_another_run_of_the_same_recipe_leaves_the_earlier_one_alone(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.with_settings(recipes.load("quickstart-gossip"), {"run.nodes": 3})
    members = ("pi-01", "pi-02", "pi-03")
    now = {"instance": "aa"}

    def ask(*_: object, **__: object) -> JoinAnswer:
        manifest = bootstrap.found(recipe, "pi-02", members, None, lambda _: now["instance"]).manifest
        return JoinAnswer(manifest, (), "pi-02", "10.0.0.9")

    monkeypatch.setattr("edgegossip.mesh.membership.client.request_join", ask)
    start(tmp_path, *COMMANDS["joiner"])
    keep(first := found[0][0])
    assert f"going on with {first}" in start(tmp_path, *COMMANDS["joiner"])
    now["instance"] = "bb"
    assert "going on" not in start(tmp_path, *COMMANDS["joiner"])
    assert found[-1][0] != first and not found[-1][1]
    now["instance"] = "aa"
    start(tmp_path, *COMMANDS["joiner"])
    assert found[-1] == (first, True)
    now["instance"] = ""  # of an earlier version
    keep(found[2][0])
    start(tmp_path, *COMMANDS["joiner"])
    assert found[-1] == (first, True)  # the one that it was last at work in


def test_a_founder_draws_a_number_for_each_run_that_it_begins(found: Found, tmp_path: Path) -> None:
    numbers = []
    for more in ((), (), ("--fresh",)):
        start(tmp_path, *COMMANDS["founder"], *more)
        folder = found[-1][0]
        numbers.append(instance_of(folder))
        if not numbers[1:]:
            keep(folder.rename(tmp_path / "first"))
    first, second, fresh = numbers
    assert first and first == second != fresh
    for damaged in ("[]", "{}", '{"instance": 3}', '{"instance": "another"}'):
        (tmp_path / "first" / "run.json").write_text(damaged)
        assert instance_of(tmp_path / "first") == ""


def test_a_board_that_keeps_nothing_begins_anew(found: Found, tmp_path: Path) -> None:
    start(tmp_path, *COMMANDS["peers"])
    keep(found[0][0])
    start(tmp_path, *COMMANDS["peers"], "--set", "checkpoint.every=0")
    assert found[1][0] != found[0][0]


def test_times_go_on(found: Found, tmp_path: Path) -> None:
    start(tmp_path, *COMMANDS["founder"])
    keep(folder := found[0][0])
    with (folder / "events.jsonl").open("ab") as file:
        file.write(to_line(EventRecord("pi-01", 500.0, "notice", "then", {})))
    start(tmp_path, *COMMANDS["founder"])
    assert [e.t_s >= 500.0 for e in read_run(folder).events()] == [False, True, True]


def test_a_board_that_joins_may_keep_its_own_checkpoints(found: Found, tmp_path: Path) -> None:
    start(tmp_path, *COMMANDS["joiner"], "--set", "checkpoint.every=5", "--set", "checkpoint.slack_s=3.0")
    text = (found[0][0] / "recipe.toml").read_text()
    assert "every = 5" in text and "slack_s = 3.0" in text
    done = CliRunner().invoke(cli, ["node", *COMMANDS["joiner"], "--name", "pi-01", "--set", "training.lr=1"])
    assert "checkpoint.*" in done.output + str(done.exception)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((*COMMANDS["founder"], *PEERS), "--peer names every board by hand"),
        ((*COMMANDS["joiner"], *PEERS), "--peer names every board by hand"),
        (("quickstart-gossip", *COMMANDS["joiner"]), "leave RECIPE and --members out"),
        ((*COMMANDS["joiner"], "--members", "pi-01,pi-02"), "leave RECIPE and --members out"),
        (("--members", "pi-01,pi-02"), "say which RECIPE"),
        ((*COMMANDS["founder"], "--advertise", "a:b:c"), "--advertise"),
        ((*COMMANDS["founder"], "--listen", "0.0.0.0:0"), "refusing to listen on 0.0.0.0:0 without TLS"),
        (("--join", "10.0.0.9:7700"), "only this machine reaches a board there"),
    ],
)
def test_how_a_board_comes_into_its_run_is_said_in_one_way(
    command: tuple[str, ...], said: str, found: Found, tmp_path: Path
) -> None:
    done = CliRunner().invoke(cli, ["node", *command, "--name", "pi-01", "--runs", str(tmp_path)])
    assert said in done.output + str(done.exception) and not found
