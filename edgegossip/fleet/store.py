"""A fleet's folder on the laptop of whoever runs it.

    fleet.json        name, and every certificate that was issued, with its state
    ca.pem ca.key     the authority; ca.key lets anybody issue certificates: keep it at home
    crl.pem           the present revocation list
    operator/         the operator's identity, which signs bundles and pushes revocations to boards
    boards/NAME/      one identity each (edgegossip.security.identity): copy it to that board, and
                      to no other
    profiles/         what goes into a board's provisioning bundle (provisioning.py)
    orders/           what boards run, signed by the operator with each `fleet set`
    checkins/         what each board last said at `fleet serve` (checkins.py)
    releases.json     releases of the program (releases.py)

One command at a time changes the folder (lock.py). Files are replaced whole and in such an order
that a command that is interrupted can be said again: a new revocation list before `fleet.json`, and
`fleet.json` before an identity folder is where people look for it, so that nobody can copy a
certificate that could not be revoked: the folder is written aside, and put in its place when the
index knows its certificate.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.files import refused_as, write_file
from edgegossip.fleet.lock import locked
from edgegossip.security import certificates
from edgegossip.security import identity as layout
from edgegossip.security.certificates import (
    Authority,
    Issued,
    RevocationList,
    certificate_from_pem,
    certificate_pem,
    key_pem,
    private_key_from_pem,
    revocations_from_pem,
    years_from_now,
)
from edgegossip.security.identity import Identity, Revocations
from edgegossip.security.names import Role, check_name
from edgegossip.types import ConfigError, DataError, DecodeError, EdgegossipError, NodeId, UsageError

INDEX, CA_KEY, OPERATOR = "fleet.json", "ca.key", "operator"
CHECKINS = "checkins"  # folder of what boards last said
_COORDINATOR_YEARS = 20.0
UNFINISHED = ".unfinished"  # there while `create` is at work
_FOLDERS: Mapping[Role, str] = {"board": "boards", "coordinator": "coordinators", "operator": "operators"}


@dataclass(frozen=True, slots=True)
class Member:
    """Holds one certificate that was issued."""

    name: str
    role: Role
    serial: str  # hexadecimal
    folder: str  # of its identity, below the fleet's folder
    not_after: str  # ISO 8601, UTC
    hosts: tuple[str, ...] = ()
    revoked: int | None = None  # number of the revocation list that first had it

    @property
    def state(self) -> str:
        """Whether its certificate is valid, revoked or expired: one of these words."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if datetime.fromisoformat(self.not_after) < datetime.now(UTC) else "valid"

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "state": self.state}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Holds a fleet as its folder says. Operations write the folder and return the fleet as it is
    then."""

    folder: Path
    name: str
    fleet_id: str
    crl_number: int
    members: tuple[Member, ...]

    @classmethod
    def create(cls, folder: Path, name: str, years: float) -> Fleet:
        """Make a new fleet with its authority and its operator. Raises ConfigError, and UsageError
        when there is one already."""
        check_name(name)
        _check_years(years)
        with refused_as(UsageError, folder):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                _check_new(folder)
                (folder / UNFINISHED).touch()
                (folder / INDEX).unlink(missing_ok=True)  # of an `init` that was interrupted
                folder.chmod(0o700)
                write_file(folder / ".gitignore", b"# keys: none of this belongs into a repository\n*\n")
                ca = certificates.new_authority(name, years_from_now(years))
                write_file(folder / CA_KEY, key_pem(ca.key), 0o600)
                write_file(folder / layout.CA, certificate_pem(ca.certificate))
                write_file(folder / layout.CRL, certificate_pem(certificates.revocation_list(ca, 1, ())))
                fleet = cls(folder, name, ca.fleet_id, 1, ())
                fleet = fleet._issued(("the-operator",), "operator", years, (), at=OPERATOR)
                (folder / UNFINISHED).unlink()
                return fleet

    @classmethod
    def open(cls, folder: Path) -> Fleet:
        """Read a fleet's folder. Raises UsageError when there is none, DataError when it is
        damaged."""
        try:
            document = json.loads((folder / INDEX).read_text())
            members = tuple(Member(**{**m, "hosts": tuple(m["hosts"])}) for m in document["members"])
            return cls(folder, document["name"], document["fleet_id"], document["crl_number"], members)
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is no fleet: make one with `edgegossip fleet init --fleet {folder}`") from error
        except OSError as error:
            raise UsageError(f"{folder}: {(error.strerror or str(error)).lower()}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); restore it from a copy") from error

    def add(self, name: str, role: Role, years: float, hosts: Sequence[str] = (), *, again: bool = False) -> Fleet:
        """Do `add_all` for one name."""
        return self.add_all((name,), role, years, hosts, again=again)

    def add_all(
        self, names: Sequence[str], role: Role, years: float, hosts: Sequence[str] = (), *, again: bool = False
    ) -> Fleet:
        """Issue certificates and write identity folders: for all of the names or, with an error,
        for none. With `again` a member that was there gets a new one, and its old one is revoked.
        Raises ConfigError for a name that cannot be or is taken."""
        for name in names:
            check_name(name)
            if list(names).count(name) > 1:
                raise ConfigError(f"{name} is there twice: say each name once")
        _check_years(years)
        if hosts and role != "coordinator":
            raise ConfigError(f"--host is for coordinators: a {role} is known by its name wherever it is")
        with self._changing() as now:
            return now._added(names, role, years, hosts, again)

    def revoke(self, *names: str) -> Fleet:
        """Revoke every certificate of these members, on one new list; without names only see that
        the list has all that it should. Raises ConfigError, before anything is changed, for a name
        that has none."""
        with self._changing() as now:
            now._finish_interrupted()
            return now._revoked(names)

    @property
    def boards(self) -> tuple[NodeId, ...]:
        """Those whose certificates are valid, in the order in which they were added."""
        return tuple(m.name for m in self.members if m.role == "board" and m.state == "valid")

    def operator(self) -> Identity:
        """Return the newest valid operator's identity, with the list of the fleet's folder: its own
        may be older. Raises UsageError."""
        trouble: EdgegossipError = UsageError(
            f"{self.folder} has no valid operator, who could tell others: make one with "
            f"`edgegossip fleet add --fleet {self.folder} --role operator the-operator`, then say this again"
        )
        for member in reversed(self.members):
            if member.role != "operator" or member.state != "valid":
                continue
            try:
                identity = Identity.load(self.folder / member.folder)
            except EdgegossipError as error:
                trouble = error
                continue
            if f"{identity.certificate.serial:x}" == member.serial:
                present = Revocations.load(self.folder / layout.CRL, identity.authority)
                return replace(identity, revocations=present)
        raise trouble

    def last_check_in(self, name: NodeId) -> dict[str, Any] | None:
        """Return what a board last said at `fleet serve`; None when it never checked in, or the
        file is damaged: the next check-in replaces it."""
        try:
            found = json.loads((self.folder / CHECKINS / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def valid_board(self, name: str) -> Member:
        """Return the member of that name; raises ConfigError for a name that is no board's, or a
        revoked one's."""
        found = [m for m in self._valid(name) if m.role == "board"]
        if not found:
            raise ConfigError(f"{name} is no board of this fleet: it has another role")
        return found[-1]

    def _added(self, names: Sequence[str], role: Role, years: float, hosts: Sequence[str], again: bool) -> Fleet:
        finished = self._finish_interrupted()
        there = [m for m in self.members if m.name in names and m.revoked is None]
        # this very command was interrupted, and its certificates are in their places by now
        repeated = any(m in finished for m in there) and all(m.role == role for m in there)
        if there and not repeated and not again:
            raise ConfigError(_taken(there, names))
        other = [m for m in there if m.role != role]
        if other:
            raise ConfigError(f"{other[0].name} has the role {other[0].role}: say --role {other[0].role}")
        fleet = self._revoked(() if repeated else [m.name for m in there])
        return fleet._issued([n for n in names if not (repeated and n in {m.name for m in there})], role, years, hosts)

    def _revoked(self, names: Sequence[str]) -> Fleet:
        """Whoever is on the present list stays on it, whether or not the index knows why: the list
        may be of a command that was interrupted before it wrote the index, or of a newer copy of
        this folder."""
        chosen = {m.serial for name in names for m in self._valid(name)}
        present, newest = self._present_list(), self.crl_number
        on_list: frozenset[int] = frozenset()
        if present is not None:
            on_list, newest = present.serials, max(newest, present.number)
        serials = on_list | {int(m.serial, 16) for m in self.members if m.revoked is not None or m.serial in chosen}
        is_new = present is None or present.number < newest or serials != on_list
        number = newest + is_new
        members = tuple(
            replace(m, revoked=number) if m.revoked is None and int(m.serial, 16) in serials else m
            for m in self.members
        )
        if (number, members) == (self.crl_number, self.members):
            return self
        if is_new:
            crl = certificates.revocation_list(self.authority(), number, serials)
            write_file(self.folder / layout.CRL, certificate_pem(crl))
        for m in members:
            if m.revoked is None and (self.folder / m.folder).is_dir():  # identities that are still to be copied
                write_file(self.folder / m.folder / layout.CRL, (self.folder / layout.CRL).read_bytes())
        return replace(self, crl_number=number, members=members)._saved()

    def _valid(self, name: str) -> list[Member]:
        valid = [m for m in self.members if m.name == name and m.revoked is None]
        if valid:
            return valid
        if any(m.name == name for m in self.members):
            raise ConfigError(
                f"{name} is revoked already; to tell a running board, leave the name out: "
                f"edgegossip fleet revoke --fleet {self.folder} --tell HOST:PORT; to let it in again: "
                f"edgegossip fleet add --fleet {self.folder} --again {name}"
            )
        there = list(dict.fromkeys(m.name for m in self.members if m.revoked is None))
        hint = did_you_mean(name, there) or f"; there are {', '.join(there)}"
        raise ConfigError(f"{name} is not in the fleet{hint}")

    def _present_list(self) -> RevocationList | None:
        """Return what crl.pem says; None when it is missing. Raises DataError when it is damaged or
        of somebody else."""
        file = self.folder / layout.CRL
        try:
            authority = certificate_from_pem((self.folder / layout.CA).read_bytes())
            if not file.exists():
                return None
            present = revocations_from_pem(file.read_bytes())
            if not present.is_signed_by(authority):
                raise DecodeError("this fleet's authority did not sign it")
            return present
        except (OSError, DecodeError) as error:
            raise DataError(
                f"{file} cannot be read ({error}): restore it from a copy, or from a board's identity folder"
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[Fleet]:
        """Yield the fleet as its folder says now, which nobody else changes meanwhile."""
        with refused_as(UsageError, self.folder):
            Fleet.open(self.folder)
            with locked(self.folder):
                yield Fleet.open(self.folder)

    def _finish_interrupted(self) -> list[Member]:
        """Finish what interrupted commands have issued; whose certificates these were."""
        waiting = [m for m in self.members if m.revoked is None and _is_staged(self.folder / m.folder, m.serial)]
        for m in waiting:
            _put_in_place(self.folder / m.folder, self.folder)
        if (self.folder / UNFINISHED).exists():
            (self.folder / UNFINISHED).unlink()
        return waiting

    def authority(self) -> Authority:
        """Load the fleet's authority; raises DataError when its files are missing or damaged."""
        try:
            key = private_key_from_pem((self.folder / CA_KEY).read_bytes())
            certificate = certificate_from_pem((self.folder / layout.CA).read_bytes()).parsed
        except (OSError, DecodeError) as error:
            raise DataError(
                f"the authority in {self.folder} cannot be read ({error}); restore it from a copy"
            ) from error
        if key.public_key() != certificate.public_key():
            raise DataError(f"{self.folder / CA_KEY} is not the key of {layout.CA}; restore it from a copy")
        return Authority(key, certificate)

    def _issued(self, names: Sequence[str], role: Role, years: float, hosts: Sequence[str], at: str = "") -> Fleet:
        """Write, in this order, keys and certificates aside, the index, folders in their places."""
        ca, new = self.authority(), []
        for name in names:
            issued = certificates.issue(ca, name, role, not_after=years_from_now(years), hosts=hosts)
            serial, not_after = f"{issued.certificate.serial_number:x}", issued.certificate.not_valid_after_utc
            before = [m.folder for m in self.members if (m.name, m.role) == (name, role)]
            folder = at or (before[-1] if before else f"{_FOLDERS[role]}/{name}")
            about = {"name": name, "role": role, "fleet": self.name, "fleet_id": self.fleet_id, "serial": serial}
            _stage(self.folder / folder, issued, about)
            new.append(Member(name, role, serial, folder, not_after.isoformat(), tuple(hosts)))
        fleet = replace(self, members=(*self.members, *new))._saved()
        for m in new:
            _put_in_place(self.folder / m.folder, self.folder)
        return fleet

    def _saved(self) -> Fleet:
        document = {
            "version": 1,
            "name": self.name,
            "fleet_id": self.fleet_id,
            "crl_number": self.crl_number,
            "members": [asdict(m) for m in self.members],
        }
        write_file(self.folder / INDEX, (json.dumps(document, indent=2) + "\n").encode(), 0o600)
        return self


def _stage(home: Path, issued: Issued, about: Mapping[str, str]) -> None:
    """Write aside what will be in the folder `home`. Raises OSError."""
    aside = _aside(home)
    shutil.rmtree(aside, ignore_errors=True)  # of a command that was interrupted before the index knew of it
    aside.mkdir(parents=True)
    aside.chmod(0o700)
    write_file(aside / layout.KEY, key_pem(issued.key), 0o600)
    write_file(aside / layout.CERTIFICATE, certificate_pem(issued.certificate))
    write_file(aside / layout.ABOUT, "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items()).encode())


def _is_staged(home: Path, serial: str) -> bool:
    """Return whether the certificate of this serial (hexadecimal) still waits to be put in its
    place."""
    try:
        return f'serial = "{serial}"\n' in (_aside(home) / layout.ABOUT).read_text()
    except FileNotFoundError:
        return False


def _put_in_place(home: Path, fleet: Path) -> None:
    """Move what was staged to where people look for it, with the authority's certificate and
    revocation list of the folder `fleet`. May be said again at any point. Raises OSError."""
    aside = _aside(home)
    home.mkdir(exist_ok=True)
    home.chmod(0o700)
    _move(aside / layout.KEY, home)
    _move(aside / layout.CERTIFICATE, home)
    for file in (layout.CA, layout.CRL):  # the list last: a running board reads its other files again with it
        write_file(home / file, (fleet / file).read_bytes())
    _move(aside / layout.ABOUT, home)
    aside.rmdir()


def _aside(home: Path) -> Path:
    return home.with_name(f".{home.name}.new")


def _move(file: Path, home: Path) -> None:
    if file.exists():  # else an interrupted command has moved it already
        os.replace(file, home / file.name)


def _check_new(folder: Path) -> None:
    """Raise UsageError unless a fleet may be made there: in an empty folder, or one that `create`
    did not finish."""
    if (folder / UNFINISHED).exists():
        return
    if (folder / INDEX).exists():
        raise UsageError(f"{folder} holds a fleet already: choose another folder, or add boards to it")
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: choose a new folder for the fleet")


def _taken(there: Sequence[Member], names: Sequence[str]) -> str:
    who = ", ".join(f"{m.name} (serial {m.serial}, in {m.folder})" for m in there)
    one = len(there) == 1
    return (
        f"{who} {'is' if one else 'are'} in the fleet already{', so none was added' if len(names) > 1 else ''}: "
        f"take {'another name' if one else 'other names'}, or say --again to revoke "
        f"{'that certificate and issue a new one' if one else 'those certificates and issue new ones'}"
    )


def _check_years(years: float) -> None:
    if not years > 0:
        raise ConfigError(f"--years {years:g}: must be greater than 0, for example 20")


def coordinator_of(folder: Path) -> Path:
    """Return the identity of the coordinator in the fleet's folder; made and kept there where there
    is none, if the authority's key is at hand. Raises ConfigError, DataError, HostError,
    UsageError."""
    fleet = Fleet.open(folder)
    there = [m for m in fleet.members if m.role == "coordinator" and m.state == "valid"]
    if not there and not (folder / CA_KEY).exists():
        raise UsageError(
            f"{folder} has no coordinator and, without {CA_KEY}, cannot make one: where that key is, say `edgegossip "
            "fleet add --role coordinator the-coordinator`, then copy fleet.json and coordinators/ here"
        )
    if not there:
        fleet = fleet.add("the-coordinator", "coordinator", _COORDINATOR_YEARS)
        there = [m for m in fleet.members if m.role == "coordinator" and m.state == "valid"]
    return folder / there[0].folder


def boards_of(folder: Path) -> tuple[NodeId, ...]:
    """Return `Fleet.boards` of the fleet in a folder. Raises UsageError, DataError."""
    return Fleet.open(folder).boards
