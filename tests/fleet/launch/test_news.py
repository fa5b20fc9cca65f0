"""What the check-in brings reaches a node that runs on copies of when it was started."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from edgegossip.fleet.launch import kit as kits
from edgegossip.fleet.launch import news
from edgegossip.fleet.store import Fleet
from edgegossip.security.identity import Identity


class Board:
    """A board as systemd starts it: `held` is /etc/edgegossip, `given` the copy for the service,
    `state` what it may write."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet.create(folder / "fleet", "home", 20).add_all(("pi-01", "pi-02"), "board", 20)
        self.held, self.given, self.state = folder / "etc", folder / "credentials", folder / "state"
        shutil.copytree(self.fleet.folder / "boards/pi-02", self.held)
        (self.held / "board.json").write_text('{"name": "pi-02"}')
        (self.held / "node.args").write_text("--join\n127.0.0.1:9\n")
        shutil.copytree(self.held, self.given)
        self.own = kits.lasting_identity(self.given, self.state / "identity")
        self.said: list[str] = []

    def check_in(self) -> None:
        """What update.agent does when there is a newer list."""
        newest = Identity.load(self.fleet.folder / "boards/pi-02").revocations.present.der
        Identity.load(self.held).revocations.offer(newest)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_running_node_takes_over_what_the_check_in_brings(board):
    node = Identity.load(board.own)
    look = news.News(board.held, board.own, board.said.append)
    assert not look.look() and node.revocations.number == 1
    board.fleet.revoke("pi-01")
    board.check_in()
    assert look.look() and node.revocations.file_changed and node.revocations.look_at_file()
    assert node.revocations.number == 2 and not look.look() and not board.said
    again = kits.lasting_identity(board.given, board.state / "identity")
    assert Identity.load(again).revocations.number == 2, "and the next process knows it, too"


def test_only_the_fleets_own_list_counts(board, tmp_path):
    look = news.News(board.held, board.own, board.said.append)
    other = Fleet.create(tmp_path / "other", "other", 20).add("pi-09", "board", 20).revoke("pi-09")
    good = (board.held / "crl.pem").read_bytes()
    for bad in ((other.folder / "crl.pem").read_bytes(), good[:60]):
        (board.held / "crl.pem").write_bytes(bad)
        assert not look.look()
    assert len(board.said) == 2 and Identity.load(board.own).revocations.number == 1
    (board.held / "crl.pem").unlink()
    assert not look.look() and len(board.said) == 2


def test_the_service_looks_for_as_long_as_it_runs(board, tmp_path, monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", str(board.state))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setattr(news, "LOOK_S", 0.05)

    def node(arguments: list[str]) -> int:
        running = Identity.load(arguments[arguments.index("--identity") + 1])
        board.fleet.revoke("pi-01")
        board.check_in()
        until = time.monotonic() + 10
        while not running.revocations.look_at_file() and time.monotonic() < until:
            time.sleep(0.02)
        return 0 if running.revocations.number == 2 else 1

    assert kits.run(board.given, tmp_path / "runs", node, board.said.append, held=board.held) == 0
