"""Who a process is: the folder that `edgegossip fleet add` made for it, loaded and checked; and the
revocation list in it, which is replaced while the process runs.

    ca.pem          the certificate of the fleet's authority
    identity.pem    our own certificate
    identity.key    our private key; nobody else may read it
    crl.pem         the revocation list; replaced when peers know a newer one
    fleet.toml      the same for human readers; nothing reads it

A signature made here is the signer's certificate and 64 bytes of ECDSA, so whoever knows the
authority can check it. Dates are not looked at in signatures, because boards have bad clocks;
revocation is."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from edgegossip.files import write_file
from edgegossip.security import certificates
from edgegossip.security.certificates import Certificate, RevocationList
from edgegossip.security.names import ROLES, Role, Subject, fleet_id, subject_of
from edgegossip.types import DataError, DecodeError, NodeId, PeerError, UsageError

T = TypeVar("T")
CA, CERTIFICATE, KEY, CRL, ABOUT = "ca.pem", "identity.pem", "identity.key", "crl.pem", "fleet.toml"
_DOMAIN = b"edgegossip signature 1\0"
_MAX_CERTIFICATE_BYTES = 4096


class OtherFleet(PeerError):
    """Raised for a signature whose certificate another authority issued."""


class RevokedSigner(PeerError):
    """Raised for a signature whose certificate was revoked."""

    def __init__(self, name: NodeId) -> None:
        super().__init__(f"a signature of {name}, whose certificate was revoked")
        self.name = name


class Revocations:
    """Holds the revocation list that a member goes by: the newest that its fleet's authority
    signed, wherever it came from. An older one, or one that somebody else signed, changes nothing.
    Thread-safe."""

    def __init__(self, authority: Certificate, present: RevocationList, file: Path | None = None) -> None:
        self._authority, self._present, self._file = authority, present, file
        self._lock = threading.Lock()
        self._looked = stamp(file)

    @classmethod
    def load(cls, file: Path, authority: Certificate) -> Revocations:
        """Load a list from its file. Raises DataError when the file is missing, damaged or signed
        by somebody else."""
        present = _revocation_list(file)
        if not present.is_signed_by(authority):
            raise DataError(f"{file} was not signed by this fleet's authority; copy the board's folder again")
        return cls(authority, present, file)

    @property
    def file_changed(self) -> bool:
        """Whether there is something for `look_at_file`."""
        return self._file is not None and stamp(self._file) != self._looked

    def look_at_file(self) -> bool:
        """Take over what somebody copied into the folder, if it is newer; return whether it was.
        Raises DataError and PeerError."""
        found = stamp(self._file)
        if self._file is None or found == self._looked:
            return False
        self._looked = found
        return self.offer(_revocation_list(self._file).der)

    @property
    def present(self) -> RevocationList:
        """The list that counts now."""
        return self._present

    @property
    def number(self) -> int:
        """The number of the list that counts now; it only rises."""
        return self._present.number

    def revoked(self, serial: int) -> bool:
        """Return whether the certificate with this serial number was revoked."""
        return serial in self._present.serials

    def offer(self, data: bytes, told: int = -1) -> bool:
        """Take over a list in DER if it is newer; return whether it was. It is kept for the next
        start where the folder can be written. `told`: the number of our list as the giver was told
        it. Raises PeerError for what the fleet's authority did not sign, and for a list that the
        giver knew to be of no use to us."""
        if data == self._present.der and told < 0:
            return False
        # In the order of what they cost us: anybody may send lists, and only the authority's are
        # worth reading to the end.
        try:
            offered = certificates.parse_revocations(data)
            if offered.number <= told:
                raise PeerError(f"revocation list {offered.number}, after it had been told that we have {told}")
            if offered.number <= self._present.number:
                return False
            if not offered.is_signed_by(self._authority):
                raise PeerError("a revocation list that our fleet's authority did not sign")
            offered.serials  # noqa: B018  (read now: a damaged entry is the giver's fault)
        except DecodeError as error:  # its words follow from the giver's bytes, and so would lines of the log
            raise PeerError("a revocation list that is damaged") from error
        with self._lock:
            if offered.number <= self._present.number:
                return False
            self._present = offered
            if self._file is not None:
                with suppress(OSError):  # a read-only folder: peers tell it again after the next start
                    write_file(self._file, offered.pem)
                self._looked = stamp(self._file)
        return True


@dataclass(frozen=True, slots=True)
class Identity:
    """Holds a member of a fleet. `revocations` is the one part that changes in the life of a
    process."""

    folder: Path
    subject: Subject
    authority: Certificate
    certificate: Certificate
    revocations: Revocations

    @property
    def name(self) -> NodeId:
        """The member's name in the fleet."""
        return self.subject.name

    @property
    def role(self) -> Role:
        """What it may be: a board, an operator or a coordinator."""
        return self.subject.role

    @property
    def fleet(self) -> str:
        """The fleet's id."""
        return self.subject.fleet_id

    @classmethod
    def load(cls, folder: str | Path) -> Identity:
        """Load an identity folder. Raises DataError for a folder that is incomplete or damaged,
        UsageError for a key that others can read."""
        folder = Path(folder).absolute()  # it is read again for newer lists, wherever a user's code has gone
        authority = _certificate(folder / CA)
        own = _certificate(folder / CERTIFICATE)
        if not own.is_signed_by(authority):
            raise DataError(f"{folder / CERTIFICATE} was not issued by {folder / CA}; copy the board's folder again")
        try:
            subject = subject_of(own.dns_names, fleet_id(authority.public_key))
        except PeerError as error:
            raise DataError(f"{folder / CERTIFICATE}: {error}; make it with `edgegossip fleet add`") from error
        if certificates.public_point(_private_key(folder / KEY).public_key()) != own.public_key:
            raise DataError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}; copy the board's folder again")
        return cls(folder, subject, authority, own, Revocations.load(folder / CRL, authority))

    def sign(self, data: bytes) -> bytes:
        """Sign `data` so that the signature says who made it. Begin `data` with what it is, so that
        it means nothing elsewhere. Key and certificate are read from the folder each time: they may
        be newer ones."""
        key, own = _private_key(self.folder / KEY), _certificate(self.folder / CERTIFICATE).der
        return len(own).to_bytes(2, "big") + own + certificates.sign(key, _DOMAIN + data)

    def verify(self, who: str, data: bytes, signature: bytes) -> NodeId:
        """Return the name of who signed `data`. `who` is a role ('operator', 'board',
        'coordinator') or a board's name. Raises PeerError when it was somebody else, a revoked one,
        or nobody of our fleet."""
        return self.signer(who, data, signature)[0].name

    def signer(self, who: str, data: bytes, signature: bytes) -> tuple[Subject, Certificate]:
        """Return who signed `data`, and the certificate that says so. Otherwise as `verify`."""
        length = int.from_bytes(signature[:2], "big")
        if len(signature) != 2 + length + certificates.SIGNATURE_BYTES or length > _MAX_CERTIFICATE_BYTES:
            raise PeerError("a signature that is no edgegossip signature")
        try:
            signer = certificates.parse_certificate(signature[2 : 2 + length])
        except DecodeError as error:
            raise PeerError("a signature with a bad certificate") from error
        if not signer.is_signed_by(self.authority):
            raise OtherFleet("a signature of somebody who is not of our fleet")
        subject = subject_of(signer.dns_names, self.fleet)
        if who not in (subject.role, None if who in ROLES or subject.role != "board" else subject.name):
            raise PeerError(f"a signature of {subject.name} ({subject.role}), where that of {who} is due")
        if self.revocations.revoked(signer.serial):
            raise RevokedSigner(subject.name)
        if not certificates.verify(signer, _DOMAIN + data, signature[2 + length :]):
            raise PeerError(f"a signature of {subject.name} that does not fit what was signed")
        return subject, signer


def _read(file: Path, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(file.read_bytes())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{file}: {reason}; --identity takes a folder that `edgegossip fleet add` made") from error
    except DecodeError as error:
        raise DataError(f"{file} is damaged ({error}); copy the board's folder again") from error


def _certificate(file: Path) -> Certificate:
    return _read(file, certificates.certificate_from_pem)


def _private_key(file: Path) -> EllipticCurvePrivateKey:
    key = _read(file, certificates.private_key_from_pem)
    if stat.S_IMODE(os.stat(file).st_mode) & 0o007:
        raise UsageError(f"{file} can be read by every user of this machine: chmod 600 {file}")
    return key


def _revocation_list(file: Path) -> RevocationList:
    return _read(file, certificates.revocations_from_pem)


def stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        status = os.stat(file) if file else None
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else None
