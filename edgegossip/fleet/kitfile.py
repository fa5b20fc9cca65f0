"""A board's provisioning bundle: one file with all that it needs to become itself, its identity,
networks, and what it runs. It goes onto a card's boot partition as `edgegossip.kit`, and first boot
(deploy/rootfs) puts it in its place.

    {"format": "edgegossip-kit", "version": 1, "body": TEXT, "signature": BASE64}

TEXT is a JSON object, and the signature (security/identity.py) over its SHA-256 is the fleet's
operator's:

    name, board, fleet, fleet_id, serial      who it is; `board` is a kind, such as raspberry-pi-4
    issued_s                                  the laptop's clock (Unix seconds) when it was made:
                                              the board's starts no earlier
    identity   {"ca.pem", "identity.pem", "identity.key", "crl.pem": PEM}
    node       [ARGUMENT, ...]                of `edgegossip node`, but for --name and --identity
    number     0, 1, ...                      of that command line: a board that checks in takes one
                                              with a higher number over
    check_in   "HOST:PORT" or ""              where `edgegossip fleet serve` listens
    wifi       [{"ssid", "psk", "country"}]   psk: 64 hexadecimal digits, made of the password (IEEE
                                              802.11i), which is not in it
    ssh_keys   [LINE, ...]                    of authorized_keys

The signature keeps its parts together: nothing of another board's, fleet's or network's can be put
in. Who it is for, a card says by itself: whoever can write the card can put another fleet's whole
bundle on it.

`python3 -m edgegossip.fleet.kitfile FILE` checks one: prints its name, or one sentence, and ends
with 1. First boot of boards that are already flashed calls this module by that name, so it stays.
"""

from __future__ import annotations

import hashlib
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgegossip.files import refused_as
from edgegossip.security import certificates
from edgegossip.security.identity import CA, CERTIFICATE, CRL, KEY, Identity, Revocations
from edgegossip.security.names import fleet_id, subject_of
from edgegossip.types import ConfigError, DataError, EdgegossipError

FORMAT, VERSION = "edgegossip-kit", 1
MAX_BYTES = 1 << 20  # most of it a revocation list
_DOMAIN = b"edgegossip kit 1\0"
_FILES = (CA, CERTIFICATE, KEY, CRL)


@dataclass(frozen=True, slots=True)
class Wifi:
    """Holds a network with a pre-shared key (WPA2, or WPA3 in its transition mode)."""

    ssid: str
    psk: str  # 64 hexadecimal digits
    country: str  # ISO 3166: what the radio may do; "" leaves it to the board

    @classmethod
    def of(cls, ssid: str, password: str, country: str = "") -> Wifi:
        """Make the key of a password, as IEEE 802.11i-2004, H.4 has it: the key that every password
        of 8 to 63 characters stands for. Raises ConfigError."""
        if not 1 <= len(ssid.encode()) <= 32:
            raise ConfigError(f"Wi-Fi {ssid!r}: a network's name has 1 to 32 bytes")
        if not (8 <= len(password) <= 63 and password.isascii() and password.isprintable()):
            raise ConfigError(f"Wi-Fi {ssid}: its password must have 8 to 63 ASCII characters")
        if country and not (len(country) == 2 and country.isascii() and country.isupper()):
            raise ConfigError(f"Wi-Fi {ssid}: {country!r} is no country; write two capital letters, such as DE")
        return cls(ssid, hashlib.pbkdf2_hmac("sha1", password.encode(), ssid.encode(), 4096, 32).hex(), country)


@dataclass(frozen=True, slots=True)
class ProvisioningBundle:
    """Holds a checked bundle: its parts belong together and to one fleet."""

    name: str
    board: str
    fleet: str
    fleet_id: str
    serial: str
    issued_s: int
    identity: Mapping[str, str]
    node: tuple[str, ...] = ()
    number: int = 0
    check_in: str = ""
    wifi: tuple[Wifi, ...] = ()
    ssh_keys: tuple[str, ...] = ()

    def signed(self, operator: Identity) -> bytes:
        """Return the file, signed by an operator of its fleet. Raises DataError and UsageError when
        that identity cannot be used."""
        body = json.dumps(asdict(self), sort_keys=True)
        signature = b64encode(operator.sign(_DOMAIN + hashlib.sha256(body.encode()).digest())).decode()
        document = {"format": FORMAT, "version": VERSION, "body": body, "signature": signature}
        return (json.dumps(document, indent=1) + "\n").encode()


def read(file: Path) -> ProvisioningBundle:
    """Read and check the bundle in a file. Raises DataError with one sentence when it is none,
    damaged, or not of one piece."""
    with refused_as(DataError, file), open(file, "rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    try:
        return parse(data)
    except EdgegossipError as error:
        raise DataError(f"{file}: {error}") from error


def parse(data: bytes) -> ProvisioningBundle:
    """Check the bytes of a bundle. Raises EdgegossipError."""
    if len(data) > MAX_BYTES:
        raise DataError(f"it has more than {MAX_BYTES} bytes, so it is no provisioning bundle")
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError
        version, body, signature = document["version"], str(document["body"]), b64decode(document["signature"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(
            "it is no provisioning bundle, or damaged: make it with `edgegossip fleet kit` and copy it again"
        ) from None
    if version != VERSION:
        raise DataError(f"a provisioning bundle of version {version}; this edgegossip reads version {VERSION}")
    bundle = _bundle(body)
    _check(bundle, body.encode(), signature)
    return bundle


def _bundle(body: str) -> ProvisioningBundle:
    try:
        found: dict[str, Any] = json.loads(body)
        bundle = ProvisioningBundle(
            **{k: str(found[k]) for k in ("name", "board", "fleet", "fleet_id", "serial", "check_in")},
            issued_s=int(found["issued_s"]),
            number=int(found.get("number", 0)),
            identity={name: str(found["identity"][name]) for name in _FILES},
            node=tuple(map(str, found["node"])),
            wifi=tuple(Wifi(str(w["ssid"]), str(w["psk"]), str(w["country"])) for w in found["wifi"]),
            ssh_keys=tuple(map(str, found["ssh_keys"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"what is in it makes no sense ({error}): make it again with `edgegossip fleet kit`") from None
    return bundle


def _check(bundle: ProvisioningBundle, body: bytes, signature: bytes) -> None:
    """See that the operator signed it, and certificate, key and name are one board's. Raises
    EdgegossipError."""
    pem = {name: text.encode() for name, text in bundle.identity.items()}
    authority = certificates.certificate_from_pem(pem[CA])
    own = certificates.certificate_from_pem(pem[CERTIFICATE])
    crl = certificates.revocations_from_pem(pem[CRL])
    if not own.is_signed_by(authority) or not crl.is_signed_by(authority):
        raise DataError(
            "its certificate and its authority are of two fleets: make it again with `edgegossip fleet kit`"
        )
    subject = subject_of(own.dns_names, fleet_id(authority.public_key))
    if (subject.name, subject.role, subject.fleet_id) != (bundle.name, "board", bundle.fleet_id):
        raise DataError(f"it is for {bundle.name}, but its certificate is that of {subject.name} ({subject.role})")
    if certificates.public_point(certificates.private_key_from_pem(pem[KEY]).public_key()) != own.public_key:
        raise DataError("its key is not that of its certificate: make it again with `edgegossip fleet kit`")
    identity = Identity(Path(), subject, authority, own, Revocations(authority, crl))
    identity.verify("operator", _DOMAIN + hashlib.sha256(body).digest(), signature)


def main(arguments: list[str]) -> int:
    """Check the file that the command line names. Returns the exit code."""
    if len(arguments) != 1:
        print("usage: python3 -m edgegossip.fleet.kitfile FILE", file=sys.stderr)
        return 2
    try:
        print(read(Path(arguments[0])).name)
    except EdgegossipError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
