"""Names inside certificates. Pure.

A certificate of a fleet bears two DNS names, and TLS compares them as it compares those of web
servers:

    NAME.ROLE.FLEET.edgegossip         who it is; a client asks for exactly this name
    *.SERIAL.serial.FLEET.edgegossip   this very certificate, so that a client can ask for the one
                                       that it has checked; the first label is free for a one-time
                                       token

FLEET is the start of the SHA-256 of the authority's public key, so two fleets never share names,
even when their owners call them alike."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from edgegossip.types import ConfigError, NodeId, PeerError

Role: TypeAlias = Literal["board", "operator", "coordinator"]
ROLES: tuple[Role, ...] = get_args(Role)
_ENDING = "edgegossip"
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123; TLS does not tell upper from lower case
_RESERVED = {*ROLES, "ca", "serial"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Says whom a certificate is for."""

    name: NodeId
    role: Role
    fleet_id: str  # 16 hexadecimal digits

    @property
    def dns_name(self) -> str:
        """Its DNS name, which a client asks for."""
        return f"{self.name}.{self.role}.{self.fleet_id}.{_ENDING}"


def fleet_id(public_key: bytes) -> str:
    """Return the id of a fleet, from its authority's uncompressed public point (65 bytes): 16
    hexadecimal digits."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def serial_name(serial: int, fleet: str, token: str = "*") -> str:
    """Return the name of one certificate."""
    return f"{token}.{serial:x}.serial.{fleet}.{_ENDING}"


def token_in(server_name: str) -> str:
    """Return the one-time token in a name of that kind; empty for others."""
    labels = server_name.split(".")
    return labels[0] if len(labels) == 5 and labels[2] == "serial" and labels[4] == _ENDING else ""


def check_name(name: str) -> NodeId:
    """Return the name. Raises ConfigError for what cannot be a name in a certificate."""
    if not _LABEL.fullmatch(name):
        close = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63]
        hint = f", such as {close}" if _LABEL.fullmatch(close) else ", such as pi-01"
        raise ConfigError(f"{name!r} cannot be a name: 1 to 63 lower-case letters, digits and hyphens inside{hint}")
    if name in _RESERVED:
        raise ConfigError(f"{name!r} cannot be a name: it means something else here; take another, such as {name}-1")
    return name


def subject_of(dns_names: tuple[str, ...], fleet: str) -> Subject:
    """Return whom a certificate with these names is for. Raises PeerError unless they name exactly
    one member of the fleet."""
    found = [s for s in map(_parse, dns_names) if s is not None]
    if len(found) != 1:
        raise PeerError("its certificate does not name one member of a fleet")
    if found[0].fleet_id != fleet:
        raise PeerError(f"its certificate is of fleet {found[0].fleet_id}, ours is {fleet}")
    return found[0]


def _parse(dns_name: str) -> Subject | None:
    labels = dns_name.split(".")
    if len(labels) != 4 or labels[3] != _ENDING or not all(_LABEL.fullmatch(label) for label in labels[:3]):
        return None
    for role in ROLES:
        if labels[1] == role:
            return Subject(labels[0], role, labels[2])
    return None
