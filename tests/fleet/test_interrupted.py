"""Two commands at once, and commands that are interrupted and said again: nothing is issued that
could not be revoked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from edgegossip.fleet import store
from edgegossip.fleet.lock import locked
from edgegossip.fleet.store import Fleet
from edgegossip.security import Identity
from edgegossip.types import ConfigError, UsageError


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet.create(tmp_path / "f", "f", 20).add_all(["a", "b"], "board", 20)


def identities_of(fleet: Fleet) -> set[str]:
    """Serials of the certificates that somebody could copy to a board."""
    files = fleet.folder.glob("boards/*/identity.pem")
    return {
        f"{x509.load_pem_x509_certificate(file.read_bytes()).serial_number:x}"
        for file in files
        if not file.parent.name.startswith(".")
    }


def listed(fleet: Fleet) -> tuple[int, set[int]]:
    crl = x509.load_pem_x509_crl((fleet.folder / "crl.pem").read_bytes())
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number, {r.serial_number for r in crl}


def consistent(fleet: Fleet) -> None:
    """Every certificate that can be copied is in the index, whole; the list has exactly who is
    revoked there."""
    now = Fleet.open(fleet.folder)
    assert identities_of(now) <= {m.serial for m in now.members}
    assert listed(now) == (now.crl_number, {int(m.serial, 16) for m in now.members if m.state == "revoked"})
    for m in now.members:
        if m.state == "valid":
            identity = Identity.load(now.folder / m.folder)
            assert f"{identity.certificate.serial:x}" == m.serial and identity.revocations.number == now.crl_number


def test_interleaved_commands_lose_nothing(fleet):
    one, other = Fleet.open(fleet.folder), Fleet.open(fleet.folder)
    one.add("c", "board", 20)
    other.add("d", "board", 20)
    assert [m.name for m in Fleet.open(fleet.folder).members][1:] == ["a", "b", "c", "d"]
    assert one.revoke("a").crl_number == 2 and other.revoke("c").crl_number == 3
    assert {m.name for m in Fleet.open(fleet.folder).members if m.state == "revoked"} == {"a", "c"}
    consistent(fleet)


def test_commands_at_once_wait_for_one_another(fleet):
    threads = [threading.Thread(target=fleet.add, args=(f"n{k}", "board", 20)) for k in range(6)]
    with locked(fleet.folder):
        for t in threads:
            t.start()
    for t in threads:
        t.join(20)
    assert len(Fleet.open(fleet.folder).members) == 9
    consistent(fleet)


def test_who_waits_for_too_long_says_for_what(fleet):
    with (
        locked(fleet.folder),
        pytest.raises(UsageError, match="another `edgegossip` command is changing"),
        locked(fleet.folder, patience_s=0.06),
    ):
        raise AssertionError("two are in there")


def steps(monkeypatch: pytest.MonkeyPatch, stop_at: int) -> Callable[[], int]:
    """From now on the process dies at the step with this number that changes a file; the function
    tells how many there were."""
    taken = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **options: object) -> object:
            nonlocal taken
            if taken == stop_at:
                raise KeyboardInterrupt
            taken += 1
            return real(*args, **options)

        return step

    for name in ("write_file", "_move"):
        monkeypatch.setattr(store, name, counted(getattr(store, name)))
    return lambda: taken


def interrupted_everywhere(start: Callable[[], Fleet], command: Callable[[Fleet], object]) -> int:
    """`command` interrupted at each of its steps, said again, and compared; how many steps it
    has."""
    stop_at = 0
    while True:
        fleet = start()
        with pytest.MonkeyPatch.context() as patch:
            steps(patch, stop_at)
            try:
                command(fleet)
                return stop_at
            except KeyboardInterrupt:
                pass
        if (fleet.folder / "fleet.json").exists():  # so far nobody can have what could not be revoked
            assert identities_of(fleet) <= {m.serial for m in Fleet.open(fleet.folder).members}
        refusal = "already"
        try:
            command(fleet)
        except ConfigError as error:
            refusal = str(error)
        assert "already" in refusal  # it was done all but the last step
        consistent(fleet)
        stop_at += 1


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Fleet]:
    counter = iter(range(1000))

    def make() -> Fleet:
        return Fleet.create(tmp_path / str(next(counter)), "f", 20).add("old", "board", 20)

    return make


def test_add_interrupted_and_said_again(start):
    def command(fleet: Fleet) -> None:
        now = Fleet.open(fleet.folder).add_all(["a", "b"], "board", 20)
        assert [m.state for m in now.members if m.name in "ab"] == ["valid"] * 2

    assert interrupted_everywhere(start, command) >= 10


def test_add_again_interrupted_and_said_again(start):
    def command(fleet: Fleet) -> None:
        now = Fleet.open(fleet.folder).add("old", "board", 20, again=True)
        assert [m.state for m in now.members if m.name == "old"].count("valid") == 1

    assert interrupted_everywhere(start, command) >= 10


def test_revoke_interrupted_and_said_again(start):
    def command(fleet: Fleet) -> None:
        Fleet.open(fleet.folder).revoke("old")

    assert interrupted_everywhere(start, command) >= 3


def test_another_revocation_after_an_interrupted_one_keeps_it(fleet, monkeypatch):
    steps(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        fleet.revoke("a")
    monkeypatch.undo()
    assert listed(fleet)[0] == 2 and Fleet.open(fleet.folder).crl_number == 1
    assert fleet.revoke("b").crl_number == 3
    assert {m.name: m.revoked for m in Fleet.open(fleet.folder).members if m.revoked} == {"a": 3, "b": 3}
    consistent(fleet)


def test_init_interrupted_and_said_again(tmp_path):
    counter = iter(range(1000))

    def start() -> Fleet:
        return Fleet(tmp_path / str(next(counter)), "f", "", 1, ())

    def command(fleet: Fleet) -> None:
        try:
            Fleet.create(fleet.folder, "f", 20)
        except UsageError as error:
            raise ConfigError(str(error)) from error

    assert interrupted_everywhere(start, command) >= 10
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/ca.key").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        Fleet.create(tmp_path / "mine", "f", 20)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["ca.key"]


def test_after_an_interrupted_init_other_commands_finish_it(tmp_path, monkeypatch):
    folder = tmp_path / "f"
    steps(monkeypatch, 8)  # the index is there, the operator's folder is not
    with pytest.raises(KeyboardInterrupt):
        Fleet.create(folder, "f", 20)
    monkeypatch.undo()
    consistent(Fleet.open(folder).add("a", "board", 20))
    with pytest.raises(UsageError, match="holds a fleet already"):
        Fleet.create(folder, "f", 20)
