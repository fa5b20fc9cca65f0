"""`node --kit`: a board that is what its folder says, waits after failures, and tells systemd that
it lives."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from pathlib import Path

import pytest

from edgegossip.fleet.launch import provisioned
from edgegossip.fleet.store import Fleet
from edgegossip.node.notify import EVERY_S, Service, ServiceSink
from edgegossip.security.identity import Identity
from edgegossip.types import ConfigError, DataError, PeerError, RunError
from tests.sentence import is_sentence


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    Fleet.create(tmp_path / "fleet", "home", 20).add("pi-01", "board", 20)
    folder = tmp_path / "fleet/boards/pi-01"
    (folder / "board.json").write_text(json.dumps({"name": "pi-01"}))
    (folder / "node.args").write_text("# a comment\nquickstart-server\n\n--coordinator\n10.0.0.9:8000\n")
    return folder


def test_name_identity_and_arguments_come_from_the_folder(bundle, tmp_path):
    assert provisioned.command_line(bundle, None, tmp_path / "runs") == [
        *("quickstart-server", "--coordinator", "10.0.0.9:8000", "--name", "pi-01"),
        *("--identity", str(bundle), "--runs", str(tmp_path / "runs")),
    ]


@pytest.mark.parametrize(("file", "error"), [("board.json", DataError), ("node.args", ConfigError)])
def test_a_folder_that_first_boot_did_not_make_is_one_sentence(bundle, tmp_path, file, error):
    (bundle / file).write_text("")
    with pytest.raises(error, match=re.escape(str(bundle))) as refused:
        provisioned.command_line(bundle, None, tmp_path)
    assert is_sentence(refused.value)


def test_the_newest_revocation_list_outlives_the_process(bundle, tmp_path):
    old = (bundle / "crl.pem").read_bytes()
    own = provisioned.lasting_identity(bundle, tmp_path / "identity")
    assert Identity.load(own).name == "pi-01" and os.readlink(own / "identity.key") == str(bundle / "identity.key")
    fleet = Fleet.open(tmp_path / "fleet").add("pi-02", "board", 20).revoke("pi-02")
    Identity.load(own).revocations.offer(Identity.load(bundle).revocations.present.der)  # as a peer brings it
    (bundle / "crl.pem").write_bytes(old)  # the bundle knows nothing of it
    assert (
        Identity.load(provisioned.lasting_identity(bundle, tmp_path / "identity")).revocations.number
        == fleet.crl_number
    )


def test_a_bundle_of_another_fleet_takes_over(bundle, tmp_path):
    provisioned.lasting_identity(bundle, tmp_path / "identity")
    other = Fleet.create(tmp_path / "other", "other", 20).add("pi-01", "board", 20)
    own = provisioned.lasting_identity(other.folder / "boards/pi-01", tmp_path / "identity")
    assert Identity.load(own).fleet == other.fleet_id


def test_failures_in_a_row_make_it_wait_longer(tmp_path):
    slept, now, said = [], [0.0], []

    def process(lasted_s: float = 1.0, failed: bool = True) -> None:
        backoff = provisioned.RestartBackoff(tmp_path, slept.append, lambda: now[0])
        backoff.wait(said.append)
        now[0] += lasted_s
        backoff.ended(failed=failed)

    for _ in range(9):
        process()
    assert slept == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0] and "8 times in a row" in said[-1]
    process(lasted_s=700.0)
    process(failed=False)
    process()
    process()
    assert len(slept) == 8, "a process that went well, or long, begins a new row"


def test_a_founder_does_not_begin_again_by_itself(tmp_path):
    over = provisioned.FinishedRun(tmp_path / "over", ["a", "--members", "a,b"])
    assert not over.is_before("boot 1")
    over.keep("boot 1")
    assert not over.is_before("boot 1"), "restarted by hand"
    assert over.is_before("boot 2"), "only the power was gone"
    assert not provisioned.FinishedRun(tmp_path / "over", ["b", "--members", "a,b"]).is_before("boot 2"), (
        "told to run something else"
    )


def test_a_failure_counts_and_the_command_line_is_passed_on(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)

    def node(arguments: list[str]) -> int:
        assert arguments[0] == "quickstart-server"
        raise PeerError("out of reach")

    with pytest.raises(PeerError):
        provisioned.run(bundle, tmp_path / "runs", node, lambda text: None)
    assert (tmp_path / "failures").read_text() == "1"


def test_a_stolen_bundle_does_not_pass_for_another_board(bundle, tmp_path, monkeypatch):
    """Of pi-01, with the name of pi-02 written into it: this program refuses; on the network its
    certificate says pi-01 (tests of the TLS front end and of the admission middleware)."""
    from edgegossip.cli.node import node

    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    (bundle / "board.json").write_text(json.dumps({"name": "pi-02"}))
    for arguments in (
        ("--join", "127.0.0.1:9"),
        ("quickstart-server", "--boards", "pi-01,pi-02,a,b", "--coordinator", "127.0.0.1:9"),
    ):
        (bundle / "node.args").write_text("\n".join(arguments))
        with pytest.raises(ConfigError, match=r"this is pi-01 \(board\), not the board pi-02"):
            node.main(["--kit", str(bundle), "--runs", str(tmp_path / "runs")], standalone_mode=False)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_over_is_not_gone_on_with(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setattr(provisioned, "FIRST_S", 0.0)
    seen = []

    def node(arguments: list[str]) -> int:
        seen.append("--fresh" in arguments)
        raise RunError("all its neighbours had left: the run is over")

    for _ in range(2):
        with pytest.raises(RunError):
            provisioned.run(bundle, tmp_path / "runs", node, lambda text: None)
    assert seen == [False, True]


def test_only_so_many_runs_are_kept(tmp_path):
    for number in range(5):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}/run.json").write_text("{}")
        os.utime(tmp_path / f"run-{number}/run.json", (number, number))
    provisioned.make_room(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-3", "run-4"]


def test_systemd_hears_that_the_loop_turns(tmp_path):
    now = [0.0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(5)
        service = Service({"NOTIFY_SOCKET": str(tmp_path / "notify")}, lambda: now[0])
        service.ready()
        assert s.recv(100) == b"READY=1\nWATCHDOG=1"
        sink = ServiceSink(service)
        sink.event("pi-01", "waiting", "waits for\npi-02")
        assert (s.recv(100), s.recv(100)) == (b"WATCHDOG=1", b"STATUS=waits for pi-02")
        service.alive()
        now[0] += EVERY_S
        service.alive()
        assert s.recv(100) == b"WATCHDOG=1"
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.recv(100)


def test_a_run_that_goes_on_is_marked_for_the_boards_updates(tmp_path):
    now, mark = [0.0], tmp_path / "training"
    service = Service({"RUNTIME_DIRECTORY": str(tmp_path)}, lambda: now[0])
    assert not mark.exists(), "it waits for its run"
    sink = ServiceSink(service)
    assert mark.exists()
    os.utime(mark, (1, 1))
    now[0] += EVERY_S
    sink.event("pi-01", "waiting", "waits for pi-02")
    assert mark.stat().st_mtime > 1, "kept fresh"
    sink.close()
    assert not mark.exists()


def test_without_systemd_nothing_is_sent(monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("it opens a socket"))
    service = Service({})
    service.ready(), service.alive(), service.status("x"), service.training(), service.rests()
    assert not service.listens


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
        self.own = provisioned.lasting_identity(self.given, self.state / "identity")
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
    look = provisioned.CheckInRevocations(board.held, board.own, board.said.append)
    assert not look.look() and node.revocations.number == 1
    board.fleet.revoke("pi-01")
    board.check_in()
    assert look.look() and node.revocations.file_changed and node.revocations.look_at_file()
    assert node.revocations.number == 2 and not look.look() and not board.said
    again = provisioned.lasting_identity(board.given, board.state / "identity")
    assert Identity.load(again).revocations.number == 2, "and the next process knows it, too"


def test_only_the_fleets_own_list_counts(board, tmp_path):
    look = provisioned.CheckInRevocations(board.held, board.own, board.said.append)
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
    monkeypatch.setattr(provisioned, "LOOK_S", 0.05)

    def node(arguments: list[str]) -> int:
        running = Identity.load(arguments[arguments.index("--identity") + 1])
        board.fleet.revoke("pi-01")
        board.check_in()
        until = time.monotonic() + 10
        while not running.revocations.look_at_file() and time.monotonic() < until:
            time.sleep(0.02)
        return 0 if running.revocations.number == 2 else 1

    assert provisioned.run(board.given, tmp_path / "runs", node, board.said.append, held=board.held) == 0
