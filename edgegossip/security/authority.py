"""A fleet's certificate authority: it makes certificates and revocation lists (RFC 5280). No files
here.

EC keys over P-256 throughout, because every TLS library and every board knows them. Certificates
and lists begin at the epoch: a board without a clock chip starts in 1970 and must still get in.
What ends a membership is revocation, not a date."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from edgegossip.security.certificates import public_point
from edgegossip.security.names import Role, Subject, fleet_id, serial_name

Key: TypeAlias = ec.EllipticCurvePrivateKey
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280, 4.1.2.5: no well-defined end
_USAGES: dict[Role, tuple[ObjectIdentifier, ...]] = {
    "board": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "operator": (ExtendedKeyUsageOID.CLIENT_AUTH,),
    "coordinator": (ExtendedKeyUsageOID.SERVER_AUTH,),
}


@dataclass(frozen=True, slots=True)
class Authority:
    """A fleet's own certificate authority."""

    key: Key
    certificate: x509.Certificate

    @property
    def fleet_id(self) -> str:
        return fleet_id(public_point(self.key.public_key()))


@dataclass(frozen=True, slots=True)
class Issued:
    """A member's key and certificate."""

    key: Key
    certificate: x509.Certificate


def found(name: str, not_after: datetime) -> Authority:
    """Make a new authority for a fleet called `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"edgegossip fleet {name}")
    builder = (
        _builder(subject, subject, key, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(
    authority: Authority,
    name: str,
    role: Role,
    *,
    not_after: datetime,
    not_before: datetime = EPOCH,
    hosts: Sequence[str] = (),
    usages: Collection[ObjectIdentifier] | None = None,
) -> Issued:
    """Make a key and certificate for one member. `hosts` are further host names and IP addresses of
    a coordinator, whose clients ask for its address and not for its name. `usages` and `not_before`
    are for tests."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = Subject(name, role, authority.fleet_id)
    names = [x509.DNSName(subject.dns_name), x509.DNSName(serial_name(serial, authority.fleet_id))]
    builder = (
        _builder(_name(subject.dns_name[:64]), authority.certificate.subject, key, not_after, not_before, serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USAGES[role] if usages is None else usages), critical=True)
        .add_extension(x509.SubjectAlternativeName([*names, *map(_general_name, hosts)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issuer_id(authority), critical=False)
    )
    return Issued(key, builder.sign(authority.key, hashes.SHA256()))


def revocation_list(authority: Authority, number: int, serials: Collection[int]) -> x509.CertificateRevocationList:
    """Make the list number `number`. It has no dates that mean anything: the number alone says
    which one is newer."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(EPOCH)
        .next_update(_NO_END)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_issuer_id(authority), critical=False)
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(EPOCH)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(authority.key, hashes.SHA256())


def years_from_now(years: float) -> datetime:
    """Say when a certificate of so many years ends; not beyond what one can say."""
    try:
        return min(datetime.now(UTC) + timedelta(days=365.25 * years), _NO_END)
    except OverflowError:
        return _NO_END


def key_pem(key: Key) -> bytes:
    """Write a key as PKCS #8, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: Key,
    not_after: datetime,
    not_before: datetime = EPOCH,
    serial: int | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _issuer_id(authority: Authority) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
