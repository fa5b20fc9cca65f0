"""A fleet's folder on the laptop of whoever runs it.

    fleet.json        name, and every certificate that was issued, with its state
    ca.pem ca.key     the authority; ca.key lets anybody issue certificates: keep it at home
    crl.pem           the present revocation list
    operator/         the operator's identity, which signs runs and tells boards of revocations
    boards/NAME/      one identity each (edgegossip.mesh.security.identity): copy it to that board, and to no other

Files are replaced whole, and `fleet.json` last, so that a command that is interrupted can be said again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgegossip.choices import did_you_mean
from edgegossip.fleet import authority as authorities
from edgegossip.fleet.authority import Authority, Issued, certificate_pem, key_pem, years_from_now
from edgegossip.mesh.security import identity as layout
from edgegossip.mesh.security.announce import Give, announce
from edgegossip.mesh.security.names import Role, check_name
from edgegossip.mesh.security.revocations import write_file
from edgegossip.types import ConfigError, DataError, LocalError

INDEX, CA_KEY, OPERATOR = "fleet.json", "ca.key", "operator"
_FOLDERS: Mapping[Role, str] = {"board": "boards", "coordinator": "coordinators", "operator": "operators"}


@dataclass(frozen=True, slots=True)
class Member:
    """One certificate that was issued."""

    name: str
    role: Role
    serial: str  # hexadecimal
    folder: str  # of its identity, below the fleet's folder
    not_after: str  # ISO 8601, UTC
    hosts: tuple[str, ...] = ()
    revoked: int | None = None  # number of the revocation list that first had it

    @property
    def state(self) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if datetime.fromisoformat(self.not_after) < datetime.now(UTC) else "valid"

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet as its folder says. Operations write the folder and return the fleet as it is then."""

    folder: Path
    name: str
    fleet_id: str
    crl_number: int
    members: tuple[Member, ...]

    @classmethod
    def create(cls, folder: Path, name: str, years: float) -> Fleet:
        """A new fleet with its authority and its operator. Raises ConfigError, and LocalError when there is one already."""
        check_name(name)
        _check_years(years)
        with _told():
            if (folder / INDEX).exists():
                raise LocalError(f"{folder} holds a fleet already: choose another folder, or add boards to it")
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise LocalError(f"{folder} is not empty: choose a new folder for the fleet")
            folder.chmod(0o700)
            ca = authorities.found(name, years_from_now(years))
            write_file(folder / CA_KEY, key_pem(ca.key), 0o600)
            write_file(folder / layout.CA, certificate_pem(ca.certificate))
            write_file(folder / layout.CRL, certificate_pem(authorities.revocation_list(ca, 1, ())))
            fleet = cls(folder, name, ca.fleet_id, 1, ())
            return fleet.add("the-operator", "operator", years, at=OPERATOR)

    @classmethod
    def open(cls, folder: Path) -> Fleet:
        """Raises LocalError when there is none, DataError when it is damaged."""
        try:
            document = json.loads((folder / INDEX).read_text())
            members = tuple(Member(**{**m, "hosts": tuple(m["hosts"])}) for m in document["members"])
            return cls(folder, document["name"], document["fleet_id"], document["crl_number"], members)
        except FileNotFoundError as error:
            raise LocalError(f"{folder} is no fleet: make one with `edgegossip fleet init {folder}`") from error
        except OSError as error:
            raise LocalError(f"{folder}: {(error.strerror or str(error)).lower()}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); restore it from a copy") from error

    def add(
        self, name: str, role: Role, years: float, hosts: Sequence[str] = (), at: str = "", *, again: bool = False
    ) -> Fleet:
        """Issue a certificate and write its identity folder. With `again` a member that was there gets a new one, and its old
        one is revoked. Raises ConfigError for a name that cannot be or is taken."""
        check_name(name)
        _check_years(years)
        if hosts and role != "coordinator":
            raise ConfigError(f"--host is for coordinators: a {role} is known by its name wherever it is")
        old = [m for m in self.members if m.name == name and m.revoked is None]
        if old and not again:
            raise ConfigError(
                f"{name} is in the fleet already (serial {old[0].serial}): take another name, "
                "or say --again to revoke that certificate and issue a new one"
            )
        fleet = self.revoke(name) if old else self
        with _told():
            issued = authorities.issue(self.authority(), name, role, not_after=years_from_now(years), hosts=hosts)
            folder = at or f"{_FOLDERS[role]}/{name}"
            fleet._write_identity(folder, issued, name, role)
            return fleet._with_member(name, role, folder, issued, tuple(hosts))

    def revoke(self, name: str) -> Fleet:
        """Revoke every certificate of a member. Raises ConfigError when there is none."""
        valid = [m for m in self.members if m.name == name and m.revoked is None]
        if not valid:
            if any(m.name == name for m in self.members):
                raise ConfigError(f"{name} is revoked already")
            raise ConfigError(f"{name} is not in the fleet{did_you_mean(name, [m.name for m in self.members])}")
        number = self.crl_number + 1
        members = tuple(replace(m, revoked=number) if m in valid else m for m in self.members)
        serials = [int(m.serial, 16) for m in members if m.revoked is not None]
        with _told():
            crl = certificate_pem(authorities.revocation_list(self.authority(), number, serials))
            fleet = replace(self, crl_number=number, members=members)
            write_file(self.folder / layout.CRL, crl)
            for m in members:
                if m.revoked is None and (self.folder / m.folder).is_dir():  # kits that are still to be copied
                    write_file(self.folder / m.folder / layout.CRL, crl)
            return fleet._saved()

    def authority(self) -> Authority:
        """Raises DataError when the files of the authority are missing or damaged."""
        try:
            key = serialization.load_pem_private_key((self.folder / CA_KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((self.folder / layout.CA).read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"the authority in {self.folder} cannot be read ({error}); restore it from a copy"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise DataError(f"{self.folder / CA_KEY} is not the key of {layout.CA}; restore it from a copy")
        return Authority(key, certificate)

    def _write_identity(self, at: str, issued: Issued, name: str, role: Role) -> None:
        folder = self.folder / at
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        write_file(folder / layout.KEY, key_pem(issued.key), 0o600)
        write_file(folder / layout.CERTIFICATE, certificate_pem(issued.certificate))
        for file in (layout.CA, layout.CRL):
            write_file(folder / file, (self.folder / file).read_bytes())
        serial = f"{issued.certificate.serial_number:x}"
        about = {"name": name, "role": role, "fleet": self.name, "fleet_id": self.fleet_id, "serial": serial}
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items())
        write_file(folder / layout.ABOUT, text.encode())

    def _with_member(self, name: str, role: Role, folder: str, issued: Issued, hosts: tuple[str, ...]) -> Fleet:
        certificate = issued.certificate
        not_after = certificate.not_valid_after_utc.isoformat()
        member = Member(name, role, f"{certificate.serial_number:x}", folder, not_after, hosts)
        return replace(self, members=(*self.members, member))._saved()

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


def tell(fleet: Fleet, where: str, to_coordinator: Give | None = None) -> tuple[str, int]:
    """Give the present revocation list to a running board, or with `to_coordinator` to a coordinator; its name and the number of
    its list then. Raises ConfigError and PeerError."""
    return announce(layout.Identity.load(fleet.folder / OPERATOR), where, to_coordinator=to_coordinator)


def _check_years(years: float) -> None:
    if not years > 0:
        raise ConfigError(f"--years {years:g}: must be greater than 0, for example 20")


@contextmanager
def _told() -> Iterator[None]:
    """What the file system refuses, in one sentence."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the fleet's folder"
        raise LocalError(f"{where}: {(error.strerror or str(error)).lower()}") from error
