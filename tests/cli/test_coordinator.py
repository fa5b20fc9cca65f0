"""`edgegossip coordinator`: what is wrong with its options, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip.fleet.store import Fleet
from edgegossip.flower import superlink
from edgegossip.mesh.address import Address
from edgegossip.scale.job_server import BoardsBackend
from edgegossip.types import ConfigError
from tests.cli.conftest import Command


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """./fleet with four boards."""
    monkeypatch.chdir(tmp_path)
    made = Fleet.create(Path("fleet"), "home", 20)
    for name in ("a", "b", "c", "d"):
        made = made.add(name, "board", 20)
    return tmp_path / "fleet"


@pytest.mark.parametrize(
    ("wanted", "cure"), [("2", "name those of this run with --boards"), ("6", "add boards with `fleet add`")]
)
def test_a_number_that_is_not_the_fleets_is_told_how_to_name_boards(
    wanted: str, cure: str, fleet: Path, command: Command
) -> None:
    code, _, said = command("coordinator", "quickstart-server", "--boards", wanted, "--port", "0")
    assert code == 2
    assert f"fleet has 4 boards (a, b, c, d), but run.nodes = {wanted}: {cure}" in " ".join(said.split())


@pytest.mark.parametrize("options", [("--boards", "4"), ("--boards", "2", "--insecure"), ("--boards", "a,b")])
def test_what_goes_together_gets_as_far_as_the_recipe(options: tuple[str, ...], fleet: Path, command: Command) -> None:
    code, _, said = command("coordinator", "no-such-recipe", *options)
    assert code != 0 and "no-such-recipe" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_who_listens_for_others_needs_a_fleet_or_has_to_be_told(
    host: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = command("coordinator", "quickstart-server", "--boards", "2", "--host", host, "--port", "0")
    assert code == 2 and f"--host {host} lets everybody on that network join without a key" in said
    with pytest.raises(ConfigError, match="lets everybody on that network join without a key"):
        BoardsBackend("a,b", str(Address(host, 0)), None, False, print)
    with pytest.raises(ConfigError, match="lets everybody on that network join without a key"):
        superlink.launch(host, 0, tmp_path / "log")
