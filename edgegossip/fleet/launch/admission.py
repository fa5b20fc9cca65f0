"""The fleet of a coordinator: which identity it serves with, and who may take part."""

from __future__ import annotations

from pathlib import Path

from edgegossip.fleet.launch.preflight import FLEET
from edgegossip.flower.connection import ServerCredentials
from edgegossip.security import tls
from edgegossip.security.admission import Admission
from edgegossip.security.identity import CA, CERTIFICATE, KEY, Identity
from edgegossip.types import ConfigError, NodeId

NAME = "the-coordinator"
_INDEX = "fleet.json"
_YEARS = 20.0


def credentials(folder: Path) -> ServerCredentials:
    """With the coordinator's identity in `folder`. Raises ConfigError when it is a board's,
    DataError and UsageError when it cannot be used."""
    identity = Identity.load(folder)
    if identity.role != "coordinator":
        raise ConfigError(
            f"--identity {folder}: this is {identity.name} ({identity.role}); a coordinator needs a folder that "
            "`edgegossip fleet add NAME --role coordinator` made"
        )
    if identity.revocations.revoked(identity.certificate.serial):
        raise ConfigError(f"--identity {folder}: the certificate of {identity.name} was revoked; issue a new one")
    context = tls.caller_context(identity, "coordinator")
    return ServerCredentials(folder / CERTIFICATE, folder / KEY, folder / CA, context, Admission(identity))


def find_fleet(fleet: Path | None, identity: Path | None, insecure: bool) -> Path | None:
    """The identity to serve with: --identity, or that of the coordinator in --fleet or in ./fleet,
    which is made where it is not there yet; None for none. Raises ConfigError for options that do
    not go together."""
    if insecure and (fleet or identity):
        raise ConfigError("--insecure goes without TLS, --fleet and --identity with it: leave one out")
    if fleet and identity:
        raise ConfigError("--fleet has the coordinator's identity in it: leave --identity out")
    if insecure or identity:
        return identity
    if fleet is None and not (Path(FLEET) / _INDEX).is_file():
        return None
    return coordinator_of(fleet or Path(FLEET))


def coordinator_of(folder: Path) -> Path:
    """The identity of the coordinator in the fleet's folder; made and kept there where there is
    none. Raises ConfigError, DataError, HostError, UsageError."""
    from edgegossip.fleet.store import Fleet

    fleet = Fleet.open(folder)
    there = [m for m in fleet.members if m.role == "coordinator" and m.state == "valid"]
    if not there:
        fleet = fleet.add(NAME, "coordinator", _YEARS)
        there = [m for m in fleet.members if m.role == "coordinator" and m.state == "valid"]
    return folder / there[0].folder


def boards_of(folder: Path) -> tuple[NodeId, ...]:
    """Boards of the fleet whose certificates are valid, in the order in which they were added."""
    from edgegossip.fleet.store import Fleet

    return tuple(m.name for m in Fleet.open(folder).members if m.role == "board" and m.state == "valid")
