"""X.509 certificates, revocation lists (RFC 5280) and ECDSA signatures: what is read of them, with
`cryptography`.

TLS checks chains, dates and usages by itself. This is for what is signed outside TLS: revocation
lists, and documents that a member of the fleet signed. Everything is over P-256 with SHA-256, and
anything else is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import SignatureAlgorithmOID

from edgegossip.types import DecodeError

SIGNATURE_BYTES = 64  # r and s, big-endian
_MAX_BYTES = 1 << 20
_ECDSA = ec.ECDSA(SHA256())
# What `cryptography` raises for bytes that it cannot read, or will not. Not all of it is a
# ValueError.
_UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_Parsed = TypeVar("_Parsed", x509.Certificate, x509.CertificateRevocationList)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was read, and not verified: see `is_signed_by`."""

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
    """What a fleet's authority has revoked; read, and not verified: see `is_signed_by`.

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


def private_key_from_pem(text: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key (PKCS #8, not encrypted). Raises DecodeError for anything but one over
    P-256."""
    key = _understood(lambda: load_pem_private_key(text, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise DecodeError("a key that is not over the curve P-256")
    return key


def public_point(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return the uncompressed point of a public key: 65 bytes (SEC 1, 2.3.3)."""
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
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
    except _UNREADABLE as error:
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
