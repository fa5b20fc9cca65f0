"""Which identity a coordinator serves with, which boards it takes, and what is wrong when it
cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.coordinator import CoordinatorOptions, _with_names, run_coordinator
from edgegossip.fleet.launch.identities import credentials, find_fleet
from edgegossip.fleet.store import Fleet
from edgegossip.security.identity import Identity
from edgegossip.types import ConfigError, PeerError, UsageError


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = Fleet.create(Path("fleet"), "home", 20)
    for name in ("pi-01", "pi-02", "pi-03"):
        made = made.add(name, "board", 20)
    return tmp_path / "fleet"


def _options(*boards: str) -> CoordinatorOptions:
    return CoordinatorOptions("0.0.0.0", 0, boards, False, Path("runs"), False, False)


def _names(nodes: int, *boards: str) -> tuple[str, ...]:
    recipe = recipes.from_dict({"run": {"mode": "server", "nodes": nodes}})
    return _with_names(recipe, _options(*boards)).boards


def test_a_fleet_folder_is_found_and_gets_one_coordinator(fleet: Path) -> None:
    found = find_fleet(None, None, insecure=False)
    assert found == Path("fleet/coordinators/the-coordinator")
    assert find_fleet(Path("fleet"), None, insecure=False) == found  # the same again
    assert Identity.load(found).role == "coordinator"
    assert [m.role for m in Fleet.open(fleet).members].count("coordinator") == 1
    assert credentials(found).admission.revoked(1) is False
    Fleet.open(fleet).revoke("the-coordinator")
    Fleet.open(fleet).add("pi-09", "board", 20)
    (found / "crl.pem").write_bytes((fleet / "crl.pem").read_bytes())
    with pytest.raises(ConfigError, match="the certificate of the-coordinator was revoked"):
        credentials(found)


def test_who_starts_one_reads_what_messages_give_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = recipes.load("quickstart-server", ["training.batch_size=1", "training.local_steps=1"])
    with pytest.raises(ConfigError, match="lets everybody on that network join"):
        run_coordinator(recipe, _options())
    assert capsys.readouterr().err.count("!! each message is made of 1 example, and whoever gets it") == 1


def test_without_a_fleet_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_fleet(None, None, insecure=False) is None
    with pytest.raises(UsageError, match="is no fleet: make one with `edgegossip fleet init"):
        find_fleet(Path("elsewhere"), None, insecure=False)


def test_what_does_not_go_together(fleet: Path) -> None:
    assert find_fleet(None, None, insecure=True) is None
    assert find_fleet(None, Path("identity"), insecure=False) == Path("identity")
    with pytest.raises(ConfigError, match="--insecure goes without TLS"):
        find_fleet(fleet, None, insecure=True)
    with pytest.raises(ConfigError, match="leave --identity out"):
        find_fleet(fleet, Path("identity"), insecure=False)


def test_boards_of_the_run_are_boards_of_the_fleet(fleet: Path) -> None:
    assert _names(3) == ("pi-01", "pi-02", "pi-03")
    assert _names(2, "pi-03", "pi-01") == ("pi-03", "pi-01")
    with pytest.raises(
        ConfigError, match=r"fleet has 3 boards .*, but run.nodes = 2: name those of this run with --boards"
    ):
        _names(2)
    with pytest.raises(
        ConfigError, match=r"--boards: pi-3 is not a board of fleet.*pi-03.*: add it with `edgegossip fleet add"
    ):
        _names(2, "pi-01", "pi-3")
    Fleet.open(fleet).revoke("pi-02")
    assert _names(2) == ("pi-01", "pi-03")


def test_why_a_proof_is_not_taken(fleet: Path, tmp_path: Path) -> None:
    found = find_fleet(None, None, insecure=False)
    assert found is not None
    rules = credentials(found).admission
    board = Identity.load(fleet / "boards" / "pi-01")
    caller = rules.by_signature("board", ["pi-01"], b"key", board.sign(b"key"))
    assert (caller.subject.name, caller.serial) == ("pi-01", board.certificate.serial)
    with pytest.raises(PeerError, match="pi-01 is not a board of this run; the boards are pi-02, pi-03"):
        rules.by_signature("board", ["pi-02", "pi-03"], b"key", board.sign(b"key"))
    with pytest.raises(PeerError, match="where that of board is due"):
        rules.by_signature("board", ["pi-01"], b"key", Identity.load(fleet / "operator").sign(b"key"))
    other = Fleet.create(tmp_path / "other", "home", 20).add("pi-01", "board", 20)
    with pytest.raises(PeerError, match="its certificate is of another fleet"):
        rules.by_signature("board", ["pi-01"], b"key", Identity.load(other.folder / "boards" / "pi-01").sign(b"key"))
    Fleet.open(fleet).revoke("pi-01")
    assert rules.look() and rules.revoked(caller.serial) and not rules.look()
    (found / "crl.pem").write_text("garbage")
    assert not rules.look() and rules.revoked(caller.serial)
