"""Who a process is: the folder that `edgegossip fleet add` made for it, loaded and checked.

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
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from edgegossip.security import certificates
from edgegossip.security.certificates import Certificate
from edgegossip.security.names import ROLES, Role, Subject, fleet_id, subject_of
from edgegossip.security.revocations import Revocations
from edgegossip.types import DataError, DecodeError, NodeId, PeerError, UsageError

CA, CERTIFICATE, KEY, CRL, ABOUT = "ca.pem", "identity.pem", "identity.key", "crl.pem", "fleet.toml"
_DOMAIN = b"edgegossip signature 1\0"
_MAX_CERTIFICATE_BYTES = 4096


class OtherFleet(PeerError):
    """A signature whose certificate another authority issued."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A member of a fleet. `revocations` is the one part that changes in the life of a process."""

    folder: Path
    subject: Subject
    authority: Certificate
    certificate: Certificate
    revocations: Revocations

    @property
    def name(self) -> NodeId:
        return self.subject.name

    @property
    def role(self) -> Role:
        return self.subject.role

    @property
    def fleet(self) -> str:
        """The fleet's id."""
        return self.subject.fleet_id

    @classmethod
    def load(cls, folder: str | Path) -> Identity:
        """Load an identity folder. Raises DataError for a folder that is incomplete or damaged,
        UsageError for a key that others can read."""
        folder = Path(folder)
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
            raise PeerError(f"a signature with a bad certificate: {error}") from error
        if not signer.is_signed_by(self.authority):
            raise OtherFleet("a signature of somebody who is not of our fleet")
        subject = subject_of(signer.dns_names, self.fleet)
        if who not in (subject.role, None if who in ROLES or subject.role != "board" else subject.name):
            raise PeerError(f"a signature of {subject.name} ({subject.role}), where that of {who} is due")
        if self.revocations.revoked(signer.serial):
            raise PeerError(f"a signature of {subject.name}, whose certificate was revoked")
        if not certificates.verify(signer, _DOMAIN + data, signature[2 + length :]):
            raise PeerError(f"a signature of {subject.name} that does not fit what was signed")
        return subject, signer


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{file}: {reason}; --identity takes a folder that `edgegossip fleet add` made") from error


def _certificate(file: Path) -> Certificate:
    try:
        return certificates.certificate_from_pem(_read(file))
    except DecodeError as error:
        raise DataError(f"{file} is damaged ({error}); copy the board's folder again") from error


def _private_key(file: Path) -> EllipticCurvePrivateKey:
    data = _read(file)
    if stat.S_IMODE(os.stat(file).st_mode) & 0o007:
        raise UsageError(f"{file} can be read by every user of this machine: chmod 600 {file}")
    try:
        return certificates.private_key_from_pem(data)
    except DecodeError as error:
        raise DataError(f"{file} is damaged ({error}); copy the board's folder again") from error
