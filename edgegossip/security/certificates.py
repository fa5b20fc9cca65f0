"""X.509 certificates, revocation lists (RFC 5280) and ECDSA signatures, with `cryptography`: how
a fleet's authority issues them, and what a member reads of them. No files here.

TLS checks chains, dates and usages by itself. What is read here was signed outside TLS: revocation
lists, and documents that a member of the fleet signed. Everything is over P-256 with SHA-256,
because every TLS library and every board knows them, and anything else is refused.

Certificates and lists begin at the epoch: a board without a clock chip starts in 1970 and must
still get in. What ends a membership is revocation, not a date.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier, SignatureAlgorithmOID

from edgegossip.security.names import Role, Subject, fleet_id, serial_name
from edgegossip.types import DecodeError

Key: TypeAlias = ec.EllipticCurvePrivateKey
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SIGNATURE_BYTES = 64  # r and s, big-endian
_MAX_BYTES = 1 << 20
_NO_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # RFC 5280, 4.1.2.5: no well-defined end
_USAGES: dict[Role, tuple[ObjectIdentifier, ...]] = {
    "board": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "operator": (ExtendedKeyUsageOID.CLIENT_AUTH,),
    "coordinator": (ExtendedKeyUsageOID.SERVER_AUTH,),
}
_ECDSA = ec.ECDSA(SHA256())
_Parsed = TypeVar("_Parsed", x509.Certificate, x509.CertificateRevocationList)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Holds a certificate that was read, and not verified: see `is_signed_by`."""

    der: bytes
    serial: int
    public_key: bytes  # uncompressed point, 65 bytes
    dns_names: tuple[str, ...]  # in lower case
    valid: tuple[float, float]  # seconds since the epoch; TLS looks at them, signatures outside it do not
    parsed: x509.Certificate

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the DER bytes, in hexadecimal."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def pem(self) -> bytes:
        """The certificate as a PEM block."""
        return self.parsed.public_bytes(Encoding.PEM)

    def is_signed_by(self, authority: Certificate) -> bool:
        """Return whether the authority's key signed it; names and dates are not looked at."""
        return authority.has_signed(self.parsed.tbs_certificate_bytes, self.parsed.signature)

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether this certificate's key made the ECDSA signature (DER) over `data`."""
        key = self.parsed.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)  # as parse_certificate has seen
        try:
            key.verify(signature, data, _ECDSA)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class RevocationList:
    """Holds what a fleet's authority has revoked; read, and not verified: see `is_signed_by`.

    Anybody can make a list of 25,000 entries. They are read by `serials` at its first use, so ask
    for it when it is known that the list is a new one and signed."""

    der: bytes
    number: int  # rises with every list
    parsed: x509.CertificateRevocationList

    @property
    def pem(self) -> bytes:
        """The list as a PEM block."""
        return self.parsed.public_bytes(Encoding.PEM)

    def is_signed_by(self, authority: Certificate) -> bool:
        """Return whether the authority's key signed it."""
        return authority.has_signed(self.parsed.tbs_certlist_bytes, self.parsed.signature)

    @cached_property
    def serials(self) -> frozenset[int]:
        """The serial numbers of the certificates that are revoked. Raises DecodeError."""
        return _understood(lambda: frozenset(entry.serial_number for entry in self.parsed))


def parse_certificate(data: bytes) -> Certificate:
    """Read a certificate in DER. Raises DecodeError for anything but one over P-256 that is signed
    with ECDSA and SHA-256."""
    return _certificate(_read(x509.load_der_x509_certificate, data))


def certificate_from_pem(text: bytes) -> Certificate:
    """Read the first certificate of a PEM file. Raises DecodeError as `parse_certificate`."""
    return _certificate(_read(x509.load_pem_x509_certificate, text))


def parse_revocations(data: bytes) -> RevocationList:
    """Read a revocation list in DER. Raises DecodeError for anything but one with a number, signed
    with ECDSA and SHA-256."""
    return _revocations(_read(x509.load_der_x509_crl, data))


def revocations_from_pem(text: bytes) -> RevocationList:
    """Read a revocation list in PEM. Raises DecodeError as `parse_revocations`."""
    return _revocations(_read(x509.load_pem_x509_crl, text))


def private_key_from_pem(text: bytes) -> Key:
    """Read a private key (PKCS #8, not encrypted). Raises DecodeError for anything but one over
    P-256."""
    key = _understood(lambda: load_pem_private_key(text, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise DecodeError("a key that is not over the curve P-256")
    return key


def public_point(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the uncompressed point of a public key: 65 bytes (SEC 1, 2.3.3)."""
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def sign(key: Key, data: bytes) -> bytes:
    """Sign `data` with ECDSA and SHA-256: r and s, 64 bytes."""
    r, s = decode_dss_signature(key.sign(data, _ECDSA))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def verify(signer: Certificate, data: bytes, signature: bytes) -> bool:
    """Return whether the certificate's key made this signature (64 bytes, as of `sign`) over
    `data`."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    return signer.has_signed(data, encode_dss_signature(r, s))


def _understood(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except Exception as error:  # `cryptography` raises many kinds for what it cannot read, or will not
        # Of its message the first line: PEM errors go on with the address of a page.
        words = str(error).partition("\n")[0].partition(". See https:")[0].strip()
        raise DecodeError(words or type(error).__name__) from error


def _read(load: Callable[[bytes], _Parsed], data: bytes) -> _Parsed:
    if len(data) > _MAX_BYTES:
        raise DecodeError(f"{len(data)} bytes are too many for a certificate or a revocation list")
    parsed = _understood(lambda: load(data))
    if parsed.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA256:
        raise DecodeError("it is not signed with ECDSA and SHA-256")
    # One form only, so that nobody can alter what the authority signed and have it passed on:
    # `cryptography` overlooks the count of bits that a BIT STRING does not use, which is 0 before a
    # signature.
    signature = parsed.signature
    if not parsed.public_bytes(Encoding.DER).endswith(bytes((3, len(signature) + 1, 0)) + signature):
        raise DecodeError("a signature that is not made of bytes")
    return parsed


def _certificate(parsed: x509.Certificate) -> Certificate:
    def read() -> Certificate:
        key = parsed.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("a key that is not over the curve P-256")
        try:
            names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            dns_names = tuple(name.lower() for name in names.get_values_for_type(x509.DNSName))
        except x509.ExtensionNotFound:
            dns_names = ()
        valid = (parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp())
        der = parsed.public_bytes(Encoding.DER)
        return Certificate(der, parsed.serial_number, public_point(key), dns_names, valid, parsed)

    return _understood(read)


def _revocations(parsed: x509.CertificateRevocationList) -> RevocationList:
    def read() -> RevocationList:
        try:
            number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        except x509.ExtensionNotFound:
            raise ValueError("a revocation list without a number") from None
        if not 0 <= number < 1 << 63:
            raise ValueError("a revocation list whose number is out of range")
        return RevocationList(parsed.public_bytes(Encoding.DER), number, parsed)

    return _understood(read)


# -- the authority's side


@dataclass(frozen=True, slots=True)
class Authority:
    """Holds a fleet's own certificate authority."""

    key: Key
    certificate: x509.Certificate

    @property
    def fleet_id(self) -> str:
        """The id of its fleet: 16 hexadecimal digits."""
        return fleet_id(public_point(self.key.public_key()))


@dataclass(frozen=True, slots=True)
class Issued:
    """Holds a member's key and certificate."""

    key: Key
    certificate: x509.Certificate


def new_authority(name: str, not_after: datetime) -> Authority:
    """Make a new authority for a fleet called `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"edgegossip fleet {name}")
    builder = (
        _builder(subject, subject, key, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, SHA256()))


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
    return Issued(key, builder.sign(authority.key, SHA256()))


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
    return builder.sign(authority.key, SHA256())


def years_from_now(years: float) -> datetime:
    """Say when a certificate of so many years ends; not beyond what one can say."""
    try:
        return min(datetime.now(UTC) + timedelta(days=365.25 * years), _NO_END)
    except OverflowError:
        return _NO_END


def key_pem(key: Key) -> bytes:
    """Write a key as PKCS #8, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_pem(certificate: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """Write a certificate or a revocation list as a PEM block."""
    return certificate.public_bytes(Encoding.PEM)


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
