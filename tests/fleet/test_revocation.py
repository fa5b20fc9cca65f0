"""`fleet revoke --tell` ends well only when who was told goes by this folder's list."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgegossip.cli.fleet import fleet as command
from edgegossip.fleet.revocation import tell, until
from edgegossip.fleet.store import Fleet
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.tls_security import TlsSecurity
from edgegossip.security import front_end, tls
from edgegossip.types import PeerError, UsageError
from tests.mesh.security.support import LIMITS, Clock
from tests.mesh.support import RUN

Board = Callable[[str], tuple[GrpcTransport, TlsSecurity]]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet.create(tmp_path / "fleet", "home", 20).add_all(["pi-01", "pi-02", "pi-03", "pi-04"], "board", 20)


@pytest.fixture
def board(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """A running board whose identity folder is its own, as on a machine of its own. To it nobody is
    late: its clock stands still."""
    monkeypatch.setattr(front_end, "time", Clock())
    running: list[GrpcTransport] = []

    def start(name: str) -> tuple[GrpcTransport, TlsSecurity]:
        guard = TlsSecurity.load(shutil.copytree(fleet.folder / "boards" / name, tmp_path / name))
        running.append(GrpcTransport(name, RUN, limits=LIMITS, security=guard))
        return running[-1], guard

    yield start
    for transport in running:
        transport.close()


def call(*words: object) -> Result:
    return CliRunner().invoke(command, [*map(str, words)], standalone_mode=False)


def revoked_at(security: TlsSecurity) -> set[int]:
    return set(security.identity.revocations.present.serials)


def serials(fleet: Fleet, *names: str) -> set[int]:
    return {int(m.serial, 16) for m in fleet.members if m.name in names}


def test_an_old_copy_of_the_folder_says_so_and_its_cure_works(fleet, board, tmp_path):
    old = shutil.copytree(fleet.folder, tmp_path / "old")
    transport, guard = board("pi-01")
    assert tell(fleet.revoke("pi-02").revoke("pi-03"), transport.address) == ("pi-01", 3)
    done = call("revoke", "--fleet", old, "pi-04", "--tell", transport.address)
    assert done.return_value == 2 and "goes by list" not in done.stdout
    assert f"pi-01 at {transport.address} goes by list 3" in done.stderr and "old copy" in done.stderr
    assert revoked_at(guard) == serials(fleet, "pi-02", "pi-03")
    shutil.copy(tmp_path / "pi-01/crl.pem", old / "crl.pem")  # what it says to do
    done = call("revoke", "--fleet", old, "--tell", transport.address)
    assert (done.return_value, done.stdout) == (0, f"pi-01 at {transport.address} goes by list 4\n")
    assert revoked_at(guard) == serials(fleet, "pi-02", "pi-03", "pi-04")
    assert {m.name for m in Fleet.open(old).members if m.state == "revoked"} == {"pi-02", "pi-03", "pi-04"}


def test_status_asks_a_board_of_the_mesh_that_does_not_check_in(fleet, board):
    transport, _ = board("pi-01")
    done = call("status", "--fleet", fleet.folder, "--ask", transport.address)
    assert (
        done.return_value == 0 and f"pi-01 answers at {transport.address}, and goes by revocation list 1" in done.stdout
    )
    done = call("status", "--fleet", fleet.folder, "--ask", "127.0.0.1:9", "--json")
    found = json.loads(done.stdout)
    assert done.return_value == 5 and "refused" in found["asked"]["127.0.0.1:9"]["error"]
    assert [(b["name"], b["seen"]) for b in found["boards"]] == [(f"pi-0{k}", "never") for k in range(1, 5)]


def test_two_lists_of_the_same_number_are_not_the_same(fleet, board, tmp_path):
    old = shutil.copytree(fleet.folder, tmp_path / "old")
    transport, guard = board("pi-01")
    tell(fleet.revoke("pi-02"), transport.address)
    with pytest.raises(UsageError, match="goes by another list 2, which .* did not make: this folder is an old copy"):
        tell(Fleet.open(old).revoke("pi-03"), transport.address)
    shutil.copy(tmp_path / "pi-01/crl.pem", old / "crl.pem")
    assert tell(Fleet.open(old).revoke(), transport.address) == ("pi-01", 3)
    assert revoked_at(guard) == serials(fleet, "pi-02", "pi-03")


def test_an_operator_with_a_new_certificate_tells_the_present_list(fleet, board):
    transport, guard = board("pi-01")
    fleet = fleet.revoke("the-operator").add("the-operator", "operator", 20)
    assert [m.folder for m in fleet.members if m.role == "operator"] == ["operator", "operator"]
    assert tell(Fleet.open(fleet.folder).revoke("pi-02"), transport.address) == ("pi-01", 3)
    assert serials(fleet, "pi-02") < revoked_at(guard)


def test_an_old_copy_with_the_operator_of_then(fleet, board, tmp_path):
    old = shutil.copytree(fleet.folder, tmp_path / "old")
    transport, guard = board("pi-01")
    tell(fleet.add("the-operator", "operator", 20, again=True), transport.address)
    with pytest.raises(UsageError, match="our certificate was revoked: .* is an old copy.*Copy crl.pem"):
        tell(Fleet.open(old).revoke("pi-02"), transport.address)
    shutil.copy(tmp_path / "pi-01/crl.pem", old / "crl.pem")
    with pytest.raises(UsageError, match="no valid operator"):
        tell(Fleet.open(old).revoke(), transport.address)
    assert tell(Fleet.open(old).add("the-operator", "operator", 20), transport.address) == ("pi-01", 3)
    assert serials(fleet, "pi-02") < revoked_at(guard)


def test_what_is_told_is_the_list_of_the_folder(fleet, board):
    transport, guard = board("pi-01")
    own = fleet.folder / "operator/crl.pem"
    before = own.read_bytes()
    fleet = fleet.revoke("pi-02")
    own.write_bytes(before)  # such as an operator's folder that was elsewhere meanwhile
    assert tell(fleet, transport.address) == ("pi-01", 2)
    assert revoked_at(guard) == serials(fleet, "pi-02")


def test_again_keeps_the_role_and_the_folder(fleet):
    done = call("add", "--fleet", fleet.folder, "--again", "the-operator")
    assert "the-operator has the role operator: say --role operator" in str(done.exception)
    assert fleet.add("the-operator", "operator", 20, again=True).members[-1].folder == "operator"


def test_without_an_operator_it_says_how_to_make_one(fleet, board):
    transport, _ = board("pi-01")
    with pytest.raises(UsageError, match="no valid operator.*fleet add --fleet .* --role operator"):
        tell(fleet.revoke("the-operator"), transport.address)


def test_a_board_that_takes_no_list_over_is_a_failure(fleet, board, monkeypatch):
    transport, guard = board("pi-01")
    monkeypatch.setattr(guard.identity.revocations.__class__, "offer", lambda self, data, told=-1: False)
    with pytest.raises(PeerError, match="pi-01 did not take over revocation list 2, it goes by list 1; its log"):
        tell(fleet.revoke("pi-02"), transport.address)


def test_a_coordinator_with_another_number_is_a_failure(fleet, board, monkeypatch):
    laptop = fleet.add("laptop", "coordinator", 20).folder / "coordinators/laptop"

    monkeypatch.setattr(tls, "peer_of", lambda *_: (TlsSecurity.load(laptop).identity.subject, 1))
    transport, _ = board("pi-01")
    assert tell(fleet, transport.address, lambda s, crl: 1) == ("laptop", 1)
    with pytest.raises(UsageError, match="laptop at .* goes by list 7.*old copy"):
        tell(fleet, transport.address, lambda s, crl: 7)
    with pytest.raises(PeerError, match="laptop did not take over revocation list 1, it goes by list 0"):
        tell(fleet, transport.address, lambda s, crl: 0)


@pytest.mark.parametrize("as_json", [False, True])
def test_all_are_told_even_if_the_first_is_gone(fleet, board, as_json):
    transport, guard = board("pi-01")
    places = ("--tell", "127.0.0.1:9", "--tell", "nonsense", "--tell", transport.address)
    done = call("revoke", "--fleet", fleet.folder, "pi-03", *places, *(["--json"] if as_json else []))
    assert done.return_value == 5 and revoked_at(guard) == serials(fleet, "pi-03")
    assert "127.0.0.1:9: connection refused" in done.stderr
    assert "2 of 3 were not told: 127.0.0.1:9, nonsense" in done.stderr
    if as_json:
        told = json.loads(done.stdout)["told"]
        assert told[transport.address] == {"name": "pi-01", "crl_number": 2}
        assert "connection refused" in told["127.0.0.1:9"]["error"]
    else:
        assert f"pi-01 at {transport.address} goes by list 2" in done.stdout


def test_names_are_checked_before_anything_is_done(fleet):
    for names, words in [
        (("pi-05", "pi-01"), "pi-01 (serial"),
        (("pi-05", "pi-06", "pi-06"), "pi-06 is there twice"),
        (("pi-05", "Pi"), "cannot be a name"),
    ]:
        done = call("add", "--fleet", fleet.folder, *names)
        assert words in str(done.exception)
    assert "so none was added" in str(call("add", "--fleet", fleet.folder, "pi-05", "pi-01").exception)
    assert "not in the fleet" in str(call("revoke", "--fleet", fleet.folder, "pi-01", "pi-77").exception)
    assert Fleet.open(fleet.folder) == fleet
    assert sorted(p.name for p in (fleet.folder / "boards").iterdir()) == ["pi-01", "pi-02", "pi-03", "pi-04"]


def test_several_boards_are_revoked_on_one_list(fleet):
    assert call("revoke", "--fleet", fleet.folder, "pi-01", "pi-02").stdout.startswith("revoked pi-01, pi-02")
    listed = json.loads(call("list", "--fleet", fleet.folder, "--json").stdout)
    assert listed["crl_number"] == Fleet.open(fleet.folder).crl_number == 2
    assert [(m["name"], m["role"], m["state"]) for m in listed["members"]] == [
        ("the-operator", "operator", "valid"),
        *((f"pi-0{k}", "board", "revoked" if k < 3 else "valid") for k in range(1, 5)),
    ]
    assert "pi-02" in call("list", "--fleet", fleet.folder).stdout


def test_a_name_that_is_as_near_to_several_gets_them_all(fleet):
    def hint(name: str) -> str:
        return str(call("revoke", "--fleet", fleet.folder, name).exception)

    assert hint("pi-9") == "pi-9 is not in the fleet; did you mean pi-01, pi-02, pi-03 or pi-04?"
    assert hint("pi-1").endswith("did you mean pi-01?")
    assert hint("xyz").endswith("; there are the-operator, pi-01, pi-02, pi-03, pi-04")


def test_who_sends_a_byte_now_and_then_does_not_hold_us_up():
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not ended.wait(0.02):
                theirs.send(b"x")

    dripping = threading.Thread(target=drip)
    with ours, theirs:
        ours.settimeout(5.0)
        dripping.start()

        def read_all() -> None:
            with until(ours, 0.2):
                while ours.recv(1):
                    pass
                raise PeerError("it ended the connection without a word")

        with pytest.raises(TimeoutError):
            read_all()
        ended.set()
        dripping.join()
