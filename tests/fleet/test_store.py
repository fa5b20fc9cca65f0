"""A fleet's folder: what is issued, who may read it, and what a revocation changes."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from edgegossip.fleet.store import Fleet
from edgegossip.security import Identity
from edgegossip.types import ConfigError, DataError, PeerError, UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    fleet = Fleet.create(tmp_path_factory.mktemp("fleets") / "kitchen", "kitchen", 20)
    for name in ("pi-01", "pi-02"):
        fleet = fleet.add(name, "board", 20)
    return fleet.add("laptop", "coordinator", 20, ["192.168.1.5", "laptop.local"])


def identity(fleet: Fleet, name: str) -> Identity:
    member = next(m for m in fleet.members if m.name == name and m.revoked is None)
    return Identity.load(fleet.folder / member.folder)


def test_an_identity_is_what_was_asked_for(made):
    pi = identity(made, "pi-01")
    assert (pi.name, pi.role, pi.fleet) == ("pi-01", "board", made.fleet_id)
    assert identity(made, "the-operator").role == "operator"
    assert pi.revocations.number == 1
    assert f"{pi.certificate.serial:x}" == next(m.serial for m in made.members if m.name == "pi-01")


def test_only_the_owner_may_read_keys(made):
    keys = [*made.folder.rglob("*.key")]
    assert len(keys) == 5
    assert {stat.S_IMODE(k.stat().st_mode) for k in keys} == {0o600}
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700


def test_a_key_that_others_can_read_is_refused(made, tmp_path):
    folder = copy(made.folder / "boards/pi-01", tmp_path / "pi-01")
    (folder / "identity.key").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        Identity.load(folder)


def copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / "identity.key").chmod(0o600)
    return target


def test_a_certificate_says_who_for_what_and_is_valid_since_the_epoch(made):
    pem = (made.folder / "boards/pi-01/identity.pem").read_bytes()
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        f"pi-01.board.{made.fleet_id}.edgegossip",
        f"*.{certificate.serial_number:x}.serial.{made.fleet_id}.edgegossip",
    ]
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert len(list(usages)) == 2
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.not_valid_before_utc.timestamp() == 0
    laptop = x509.load_pem_x509_certificate((made.folder / "coordinators/laptop/identity.pem").read_bytes())
    hosts = laptop.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "laptop.local" in hosts.get_values_for_type(x509.DNSName)
    assert [str(a) for a in hosts.get_values_for_type(x509.IPAddress)] == ["192.168.1.5"]


@pytest.mark.parametrize("name", ["", "Pi-01", "pi_01", "a.b", "-a", "a-", "a" * 64, "board", "ca", "*", "pi\n01"])
def test_names_that_cannot_be(made, name):
    with pytest.raises(ConfigError, match="cannot be a name"):
        made.add(name, "board", 20)


def test_a_name_is_given_once(made):
    with pytest.raises(ConfigError, match="--again"):
        made.add("pi-01", "board", 20)
    with pytest.raises(ConfigError, match="--host is for coordinators"):
        made.add("pi-09", "board", 20, ["10.0.0.1"])
    with pytest.raises(UsageError, match="holds a fleet already"):
        Fleet.create(made.folder, "x", 1)


def test_signatures(made):
    operator, one, two = identity(made, "the-operator"), identity(made, "pi-01"), identity(made, "pi-02")
    signature = operator.sign(b"run")
    assert two.verify("operator", b"run", signature) == "the-operator"
    by_board = one.sign(b"run")
    assert two.verify("pi-01", b"run", by_board) == two.verify("board", b"run", by_board) == "pi-01"
    for who, data, what, words in [
        ("operator", b"run", by_board, "where that of operator is due"),
        ("pi-02", b"run", by_board, "where that of pi-02 is due"),
        ("the-operator", b"run", signature, "where that of the-operator is due"),  # a name means a board
        ("operator", b"rum", signature, "does not fit"),
        ("operator", b"run", signature[:-1], "no edgegossip signature"),
        ("operator", b"run", b"", "no edgegossip signature"),
        ("operator", b"run", signature[:40] + b"\xff" + signature[41:], "bad certificate$|not of our fleet"),
    ]:
        with pytest.raises(PeerError, match=words):
            two.verify(who, data, what)


def test_another_fleet_of_the_same_name_is_another_fleet(made, tmp_path):
    other = Fleet.create(tmp_path / "other", "kitchen", 20).add("pi-01", "board", 20)
    assert other.fleet_id != made.fleet_id
    with pytest.raises(PeerError, match="not of our fleet"):
        identity(made, "pi-02").verify("pi-01", b"x", identity(other, "pi-01").sign(b"x"))
    mixed = copy(made.folder / "boards/pi-01", tmp_path / "mixed")
    (mixed / "crl.pem").write_bytes((other.folder / "crl.pem").read_bytes())
    with pytest.raises(DataError, match="not signed by this fleet's authority"):
        Identity.load(mixed)
    (mixed / "ca.pem").write_bytes((other.folder / "ca.pem").read_bytes())
    with pytest.raises(DataError, match="was not issued by"):
        Identity.load(mixed)


def test_revoking_and_issuing_again(tmp_path):
    fleet = Fleet.create(tmp_path / "f", "f", 20).add("pi-01", "board", 20).add("pi-02", "board", 20)
    two, old = identity(fleet, "pi-02"), identity(fleet, "pi-01")
    before = old.sign(b"x")
    fleet = fleet.add("pi-01", "board", 20, again=True)
    assert [(m.name, m.state) for m in Fleet.open(fleet.folder).members] == [
        ("the-operator", "valid"),
        ("pi-01", "revoked"),
        ("pi-02", "valid"),
        ("pi-01", "valid"),
    ]
    newer = identity(fleet, "pi-02").revocations  # identities that were not copied yet have the new list
    assert newer.number == 2 and newer.revoked(old.certificate.serial)
    assert two.verify("pi-01", b"x", before) == "pi-01"  # it does not know yet
    assert two.revocations.offer(newer.present.der) is True
    assert two.revocations.offer(newer.present.der) is False
    with pytest.raises(PeerError, match="was revoked"):
        two.verify("pi-01", b"x", before)
    assert two.verify("pi-01", b"x", identity(fleet, "pi-01").sign(b"x")) == "pi-01"
    fleet = fleet.revoke("pi-01")
    with pytest.raises(ConfigError, match="revoked already"):
        fleet.revoke("pi-01")
    with pytest.raises(ConfigError, match="did you mean pi-02"):
        fleet.revoke("pi-2")


def test_only_newer_lists_of_the_same_authority_are_taken_over(made, tmp_path):
    other = Fleet.create(tmp_path / "other", "kitchen", 20).add("pi-01", "board", 20).revoke("pi-01")
    pi = Identity.load(copy(made.folder / "boards/pi-01", tmp_path / "pi"))
    theirs = Identity.load(other.folder / "operator").revocations.present.der
    with pytest.raises(PeerError, match="did not sign"):
        pi.revocations.offer(theirs)
    for damaged in (b"", theirs[:-1], theirs + b"\0", b"\x30\x84\xff\xff\xff\xff"):
        with pytest.raises(PeerError, match="damaged"):
            pi.revocations.offer(damaged)
    assert pi.revocations.number == 1


def test_a_board_reads_its_identity_without_grpc(made):
    code = (
        "import sys; from edgegossip.security import Identity; i = Identity.load(sys.argv[1]); i.sign(b'');"
        "print('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, made.folder / "boards/pi-01"], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
