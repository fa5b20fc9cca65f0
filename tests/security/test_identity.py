"""An identity folder that cannot be used says why, and what a TLS failure means is said in
words."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from edgegossip import security
from edgegossip.fleet.store import Fleet
from edgegossip.security import certificates, handshake, tls
from edgegossip.security.identity import Identity
from edgegossip.types import DataError, DecodeError, UsageError


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    made = Fleet.create(tmp_path_factory.mktemp("identity") / "fleet", "test", 1)
    return made.add("a", "board", 1).add("b", "board", 1)


@pytest.fixture
def folder(fleet: Fleet, tmp_path: Path) -> Path:
    return shutil.copytree(fleet.folder / "boards" / "a", tmp_path / "a")


def test_the_package_names_identities_and_nothing_else(folder: Path) -> None:
    assert security.Identity is Identity
    assert security.Identity.load(folder).role == "board"
    with pytest.raises(AttributeError, match="no attribute 'Certificate'"):
        _ = security.Certificate


def test_parts_of_two_boards_do_not_go_together(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    shutil.copy(fleet.folder / "boards" / "b" / "identity.key", folder / "identity.key")
    with pytest.raises(DataError, match="is not the key of"):
        Identity.load(folder)
    other = Fleet.create(tmp_path / "other", "other", 1)
    shutil.copy(other.folder / "ca.pem", folder / "ca.pem")
    with pytest.raises(DataError, match="was not issued by"):
        Identity.load(folder)


def test_a_list_of_another_fleet_is_refused(folder: Path, tmp_path: Path) -> None:
    other = Fleet.create(tmp_path / "other", "other", 1)
    shutil.copy(other.folder / "crl.pem", folder / "crl.pem")
    with pytest.raises(DataError, match="was not signed by this fleet's authority"):
        Identity.load(folder)


@pytest.mark.parametrize("name", ["ca.pem", "identity.pem", "identity.key", "crl.pem"])
def test_files_that_are_missing_or_damaged_are_named(folder: Path, name: str) -> None:
    (folder / name).write_text("garbage")
    with pytest.raises(DataError, match=f"{name} is damaged"):
        Identity.load(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no such file"):
        Identity.load(folder)


def test_a_key_for_everybody_is_refused(folder: Path) -> None:
    (folder / "identity.key").chmod(0o644)
    with pytest.raises(UsageError, match="can be read by every user"):
        Identity.load(folder)


def test_who_was_renewed_while_its_process_runs_signs_as_the_new_one(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "fleet", "test", 1).add("a", "board", 1)
    running = Identity.load(fleet.folder / "boards" / "a")
    fleet.add("a", "board", 1, again=True)
    assert Identity.load(running.folder).verify("a", b"words", running.sign(b"words")) == "a"


def test_a_context_needs_the_files(folder: Path) -> None:
    identity = Identity.load(folder)
    (folder / "identity.key").unlink()
    with pytest.raises(DataError, match="copy the board's folder again"):
        tls.server_context(identity)


def test_failures_in_words() -> None:
    assert "during the TLS handshake" in tls.words(ConnectionResetError())
    assert tls.words(OSError(errno.ETIMEDOUT, "Timed Out")) == "timed out"
    assert tls.words_of("HTTP_REQUEST") == "it does not speak TLS: start it with --identity"


def test_a_time_beyond_all_calendars_is_the_last_one() -> None:
    assert certificates.years_from_now(1e9).year == 9999


def test_a_listener_that_says_neither_yes_nor_no() -> None:
    with pytest.raises(DecodeError, match="that is none"):
        handshake.parse_answer(b"\x02" + bytes(16))


def test_newer_lists_are_found_from_any_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may change it while its coordinator looks whether a board was revoked."""
    monkeypatch.chdir(folder.parent)
    identity = Identity.load(folder.name)
    monkeypatch.chdir("/")
    assert identity.folder == folder and (identity.folder / "crl.pem").is_file()
    tls.server_context(identity)
