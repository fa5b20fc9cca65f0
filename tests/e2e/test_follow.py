"""Boards that were told their coordinator's address and nothing else, and a coordinator that is
killed meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip import recipe as recipes
from edgegossip.fleet.store import Fleet
from edgegossip.modelfile import ModelFile
from edgegossip.node.bootstrap import follow
from edgegossip.node.storage import vector_of
from edgegossip.telemetry.run_folder import read_run
from edgegossip.types import ConfigError, PeerError, UsageError
from tests.e2e.command import edgegossip, in_this_process
from tests.e2e.test_server_resume import undisturbed
from tests.e2e.test_tls import free_port

BOARDS = ("pi-1", "pi-2")


@pytest.mark.timeout(300)
def test_the_coordinator_tells_its_boards_the_recipe_and_nobody_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 the same command goes on with the same curve; the boards come back by
    themselves."""
    fleet = Fleet.create(tmp_path / "fleet", "test", 20)
    for name in (*BOARDS, "pi-9"):
        fleet = fleet.add(name, "board", 20)
    where = f"127.0.0.1:{free_port()}"
    pairs = ("run.nodes=2", "run.rounds=12", "training.lr=0.07", "training.local_steps=2", "evaluation.every=12")
    pairs = (*pairs, "codec.name=co3", "server.downlink=8-bit-elastiquant")
    settings = tuple(word for pair in pairs for word in ("--set", pair))
    serve = ("coordinator", "quickstart-server", *settings, "--boards", ",".join(BOARDS), "--no-plots")
    how = ("--port", where.rpartition(":")[2], "--fleet", str(fleet.folder))
    with edgegossip(*serve, *how, runs=tmp_path / "c") as coordinator:
        (tmp_path / "at").mkdir()
        shutil.copytree(fleet.folder / "boards" / "pi-9", tmp_path / "at" / "identity")
        for arguments, code, words in (
            (("--identity", str(tmp_path / "at" / "identity")), 5, "pi-9 is not a board of this run"),
            (("--name", "pi-1", "--insecure"), 5, "speaks TLS: start this board with --identity"),
            (("--identity", str(fleet.folder / "boards" / "pi-1"), "--boards", "pi-1,pi-2"), 2, "leave it out"),
        ):
            stranger = ("node", "--coordinator", where, *arguments, "--runs", str(tmp_path / "no"))
            ended, _, err = in_this_process(capfd, *stranger)
            assert ended == code and words in err, (ended, err)
        boards = []
        for name in BOARDS:
            identity = ("--identity", str(fleet.folder / "boards" / name))
            boards.append(edgegossip("node", "--coordinator", where, *identity, runs=tmp_path / name))
        with boards[0] as first, boards[1] as second:
            coordinator.wait_until(lambda: coordinator.rounds_done(5, boards=1))
            coordinator.process.kill()
            coordinator.process.wait()
            with edgegossip(*serve, *how, runs=tmp_path / "c") as again:
                for running in (again, first, second):
                    code, out, err = running.finish(180)
                    assert code == 0, (out, err)
        data = read_run(coordinator.folder())  # one, however often it was started
        used = {r.step: r.values["server/used"] for r in data.metrics() if "server/used" in r.values}
        assert used == dict.fromkeys(range(12), 2)
        assert sum("training goes on in round" in e.text for e in data.events()) == 1
        assert not list(data.path.glob("checkpoint/coordinator/*.ckpt"))
        for running in (first, second):
            own = recipes.load(str(running.folder() / "recipe.toml"))
            assert (own.training.lr, own.codec.name, own.run.rounds) == (0.07, "co3", 12)
    layout, expected = undisturbed(recipes.load("quickstart-server", pairs), BOARDS)
    np.testing.assert_array_equal(vector_of(ModelFile(data.path / "checkpoint" / "model.npz"), layout), expected)


def test_what_is_told_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.flower import connection

    recipe = recipes.load("quickstart-server", ("run.nodes=2",))
    told = recipes.to_toml(recipe)

    def heard(text: str, *settings: str, boards: tuple[str, ...] = ("a", "b")) -> recipes.Recipe:
        monkeypatch.setattr(connection, "fetch_run", lambda address, credentials: connection.RunningRun(text, boards))
        return follow("127.0.0.1:1", "a", None, settings, print, 1.0)[0]

    assert recipes.run_id(heard(told)) == recipes.run_id(recipe)
    assert heard(told, "run.threads=2", "data.dir=here").data.dir == "here"
    stolen = recipes.to_toml(recipes.with_settings(recipe, {"data.dir": "/etc"}))
    assert heard(stolen).data.dir == ""
    foreign = recipes.to_toml(recipes.with_settings(recipe, {"model.name": "os:system"}))
    with pytest.raises(ConfigError, match="a function that would be called on this board"):
        heard(foreign)
    with pytest.raises(ConfigError, match="the run decides that"):
        heard(told, "training.lr=1")
    with pytest.raises(ConfigError, match="not one of the run's boards b, c"):
        heard(told, boards=("b", "c"))
    for text in ("", "[run", "a = 1", told.replace('mode = "server"', 'mode = "gossip"'), "[" * 10_000):
        with pytest.raises((PeerError, ConfigError)):
            heard(text)
    with pytest.raises(PeerError, match="do not fit each other"):
        heard(told, boards=("a", "b", "c"))


def test_a_coordinator_that_is_not_there_is_waited_for_but_not_for_ever() -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="no coordinator at"):
        follow(f"127.0.0.1:{free_port()}", "a", None, (), said.append, 0.2)
