"""Giving the fleet's present revocation list to who runs, and seeing that they go by it then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from edgegossip.fleet.store import Fleet
from edgegossip.mesh.security.announce import Give, Told, announce
from edgegossip.mesh.security.identity import CRL, Identity
from edgegossip.mesh.security.revocations import Revocations
from edgegossip.types import EdgegossipError, LocalError, PeerError

_AT_A_TIME = 16


def tell(fleet: Fleet, where: str, to_coordinator: Give | None = None) -> tuple[str, int]:
    """Give the revocation list of the fleet's folder to the board that listens at `where` (host:port), or with `to_coordinator`
    to a coordinator; its name and the list's number. Raises ConfigError for a bad address, PeerError when it cannot be reached
    or does not take the list over, LocalError when it knows a list that this folder did not make: the folder is an old copy."""
    identity = operator_of(fleet)
    try:
        told = announce(identity, where, to_coordinator=to_coordinator)
    except PeerError as error:
        if "our certificate was revoked" not in str(error):
            raise
        cure = _cure(fleet, "whoever listens there", where)
        raise LocalError(f"{error}: {fleet.folder} is an old copy of the fleet's folder. {cure}") from error
    ours = identity.revocations.number
    if told.number == ours and told.has_ours:
        return told.name, ours
    if told.number < ours:
        why = f": {told.refusal}" if told.refusal else ""
        raise PeerError(
            f"{where}: {told.name} did not take over revocation list {ours}, it goes by list {told.number}{why}; "
            "its log says more; then say this again"
        )
    raise LocalError(_old_copy(fleet, told, where, ours))


def tell_all(
    fleet: Fleet, places: Sequence[str], to_coordinator: Give | None = None
) -> Mapping[str, tuple[str, int] | EdgegossipError]:
    """`tell` for each of the places at the same time, whatever the others come to: by place, what it returned or raised."""

    def one(where: str) -> tuple[str, int] | EdgegossipError:
        try:
            return tell(fleet, where, to_coordinator)
        except EdgegossipError as error:
            return error

    places = tuple(dict.fromkeys(places))
    if not places:
        return {}
    with ThreadPoolExecutor(min(len(places), _AT_A_TIME)) as pool:
        return dict(zip(places, pool.map(one, places), strict=True))


def operator_of(fleet: Fleet) -> Identity:
    """The newest valid operator's identity, with the list of the fleet's folder: its own may be older. Raises LocalError."""
    trouble: EdgegossipError = LocalError(
        f"{fleet.folder} has no valid operator, who could tell others: make one with "
        f"`edgegossip fleet add --fleet {fleet.folder} --role operator the-operator`, then say this again"
    )
    for member in reversed(fleet.members):
        if member.role != "operator" or member.state != "valid":
            continue
        try:
            identity = Identity.load(fleet.folder / member.folder)
        except EdgegossipError as error:
            trouble = error
            continue
        if f"{identity.certificate.serial:x}" == member.serial:
            present = Revocations.load(fleet.folder / CRL, identity.authority)
            return replace(identity, revocations=present)
    raise trouble


def _old_copy(fleet: Fleet, told: Told, where: str, ours: int) -> str:
    lists = f"list {told.number}" if told.number > ours else f"another list {ours}"
    return (
        f"{told.name} at {where} goes by {lists}, which {fleet.folder} (list {ours}) did not make: this folder is an old copy "
        f"of the fleet's, and nobody takes its list over. {_cure(fleet, told.name, where)}"
    )


def _cure(fleet: Fleet, who: str, where: str) -> str:
    return (
        f"Copy crl.pem from the identity folder of {who} to {fleet.folder / CRL}, then say: "
        f"edgegossip fleet revoke --fleet {fleet.folder} --tell {where}"
    )
