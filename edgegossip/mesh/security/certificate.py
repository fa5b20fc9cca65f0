"""What a board needs to know of a certificate and of a revocation list (RFC 5280), read without a cryptographic package. Pure.

TLS checks chains, dates and usages by itself. This is for what is signed outside TLS: revocation lists, and documents that an
operator signed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from edgegossip.mesh.security import der, p256
from edgegossip.mesh.security.der import Element
from edgegossip.types import DecodeError

_SHA256_WITH_ECDSA = bytes.fromhex("2a8648ce3d040302")
_EC_PUBLIC_KEY = bytes.fromhex("2a8648ce3d0201")
_SECP256R1 = bytes.fromhex("2a8648ce3d030107")
_SUBJECT_ALT_NAME = bytes.fromhex("551d11")
_CRL_NUMBER = bytes.fromhex("551d14")
_DNS_NAME = 0x82
_MAX_BYTES = 1 << 20
_MAX_NAMES = 1000


@dataclass(frozen=True, slots=True)
class Signed:
    """The three parts that certificates and revocation lists have alike."""

    content: der.Element  # what is signed
    signature: bytes  # r and s, 64 bytes

    def is_signed_by(self, public: p256.Point) -> bool:
        return p256.verify(public, self.content.whole, self.signature)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Read, not verified: see `is_signed_by`."""

    der: bytes
    serial: int
    public_key: bytes  # uncompressed point, 65 bytes
    point: p256.Point
    dns_names: tuple[str, ...]
    valid: tuple[float, float]  # seconds since the epoch; TLS looks at them, signatures outside it do not
    signed: Signed

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.der).hexdigest()

    def is_signed_by(self, authority: Certificate) -> bool:
        return self.signed.is_signed_by(authority.point)


@dataclass(frozen=True, slots=True)
class RevocationList:
    """What a fleet's authority has revoked. Read, not verified: see `is_signed_by`."""

    der: bytes
    number: int  # rises with every list
    serials: frozenset[int]
    signed: Signed

    def is_signed_by(self, authority: Certificate) -> bool:
        return self.signed.is_signed_by(authority.point)


@dataclass(frozen=True, slots=True)
class UnreadList:
    """A revocation list but for its entries. Anybody can make a list of 200,000 of them, which take half a second to read on a
    laptop: whether it is a new one and signed is to be known before."""

    der: bytes
    number: int
    entries: Element | None
    signed: Signed

    def is_signed_by(self, authority: Certificate) -> bool:
        return self.signed.is_signed_by(authority.point)

    def read(self) -> RevocationList:
        """Raises DecodeError."""
        entries = self.entries.children(_MAX_BYTES) if self.entries else []
        serials = frozenset(der.items(entry.children(), 1)[0].integer() for entry in entries)
        return RevocationList(self.der, self.number, serials, self.signed)


def parse_certificate(data: bytes) -> Certificate:
    """Raises DecodeError for anything but a certificate over P-256 signed with ECDSA and SHA-256."""
    signed = _signed(data)
    fields = signed.content.children()
    if fields and fields[0].tag == 0xA0:  # version
        fields = fields[1:]
    serial, _, _, validity, _, key, *rest = der.items(fields, 6)
    public_key = _public_key(key)
    point = p256.point_from_bytes(public_key)
    if point is None:
        raise DecodeError("the public key of a certificate is not on the curve")
    names: tuple[str, ...] = ()
    for oid, value in _extensions(rest, 0xA3):
        if oid == _SUBJECT_ALT_NAME:
            names = tuple(_ascii(n.content) for n in der.parse(value).children(_MAX_NAMES) if n.tag == _DNS_NAME)
    begin, end = der.items(validity.children(), 2)[:2]
    valid = (der.seconds(begin), der.seconds(end))
    return Certificate(bytes(data), serial.integer(), public_key, point, names, valid, signed)


def parse_revocations(data: bytes) -> RevocationList:
    """Raises DecodeError for anything but a version 2 list with a number, signed with ECDSA and SHA-256."""
    return outline_of(data).read()


def outline_of(data: bytes) -> UnreadList:
    """As parse_revocations, but for the entries; cheap, whatever the list holds. Raises DecodeError."""
    signed = _signed(data)
    fields = signed.content.children()
    if fields and fields[0].tag == der.INTEGER:  # version
        fields = fields[1:]
    _, _, _, *rest = der.items(fields, 3)
    if rest and rest[0].tag in (der.UTC_TIME, der.GENERALIZED_TIME):  # nextUpdate
        rest = rest[1:]
    entries = rest[0] if rest and rest[0].tag == der.SEQUENCE else None
    numbers = [der.parse(value).integer() for oid, value in _extensions(rest, 0xA0) if oid == _CRL_NUMBER]
    if len(numbers) != 1 or numbers[0] >= 1 << 63:
        raise DecodeError("a revocation list without a number")
    return UnreadList(bytes(data), numbers[0], entries, signed)


def parse_private_key(data: bytes) -> int:
    """The number in a PKCS #8 key over P-256 (RFC 5208, RFC 5915). Raises DecodeError."""
    _, algorithm, wrapped = der.items(der.parse(data).expect(der.SEQUENCE).children(), 3)[:3]
    _check_curve(algorithm)
    inner = der.items(der.parse(wrapped.expect(der.OCTET_STRING).content).children(), 2)
    private = int.from_bytes(inner[1].expect(der.OCTET_STRING).content, "big")
    if not 0 < private < p256.N:
        raise DecodeError("a private key out of range")
    return private


def _signed(data: bytes) -> Signed:
    if len(data) > _MAX_BYTES:
        raise DecodeError(f"{len(data)} bytes are too many for a certificate or a revocation list")
    parts = der.items(der.parse(data).expect(der.SEQUENCE).children(), 3)
    if len(parts) > 3:
        raise DecodeError("something follows the signature")
    content, algorithm, signature = parts
    if der.items(algorithm.children(), 1)[0].content != _SHA256_WITH_ECDSA:
        raise DecodeError("it is not signed with ECDSA and SHA-256")
    r, s = der.items(der.parse(signature.bits()).children(), 2)[:2]
    try:
        raw = r.integer().to_bytes(32, "big") + s.integer().to_bytes(32, "big")
    except OverflowError as error:
        raise DecodeError("a signature whose numbers are too large") from error
    return Signed(content.expect(der.SEQUENCE), raw)


def _public_key(element: der.Element) -> bytes:
    algorithm, key = der.items(element.expect(der.SEQUENCE).children(), 2)[:2]
    _check_curve(algorithm)
    return key.bits()


def _check_curve(algorithm: der.Element) -> None:
    kind, curve = der.items(algorithm.children(), 2)[:2]
    if (kind.content, curve.content) != (_EC_PUBLIC_KEY, _SECP256R1):
        raise DecodeError("a key that is not over the curve P-256")


def _extensions(fields: list[der.Element], tag: int) -> list[tuple[bytes, bytes]]:
    """(object id, value) of each."""
    found: list[tuple[bytes, bytes]] = []
    for field in fields:
        if field.tag == tag:
            for extension in der.parse(field.content).expect(der.SEQUENCE).children():
                parts = der.items(extension.children(), 2)
                found.append((parts[0].expect(der.OID).content, parts[-1].expect(der.OCTET_STRING).content))
    return found


def _ascii(content: bytes) -> str:
    try:
        return content.decode("ascii").lower()
    except UnicodeDecodeError as error:
        raise DecodeError("a name in a certificate that is not ASCII") from error
