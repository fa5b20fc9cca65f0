"""A board's kit from what the fleet's folder knows of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgegossip.fleet import profiles
from edgegossip.fleet.kitfile import Kit
from edgegossip.fleet.store import Fleet, Member
from edgegossip.fleet.telling import operator_of
from edgegossip.security.identity import CA, CERTIFICATE, CRL, KEY
from edgegossip.types import NodeId, UsageError
from edgegossip.update.client import Order


def boards_of(fleet: Fleet) -> tuple[NodeId, ...]:
    """Those whose certificates are valid, in the order in which they were added."""
    return tuple(m.name for m in fleet.members if m.role == "board" and m.state == "valid")


def make(fleet: Fleet, name: NodeId, now_s: float) -> bytes:
    """The kit of that board. Raises ConfigError for a name that has no valid certificate or no run,
    DataError, UsageError."""
    board = _board(fleet, name)
    profile = profiles.load(fleet.folder, name)
    folder = fleet.folder / board.folder
    try:
        identity = {file: (folder / file).read_text() for file in (CA, CERTIFICATE, KEY, CRL)}
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {(error.strerror or str(error)).lower()}; edgegossip fleet add --again {name}"
        ) from error
    kit = Kit(
        name=name,
        board=profile.board,
        fleet=fleet.name,
        fleet_id=fleet.fleet_id,
        serial=board.serial,
        issued_s=int(now_s),
        identity=identity,
        node=profiles.arguments(profile, name, boards_of(fleet)),
        number=profile.number,
        check_in=profile.check_in,
        wifi=profile.wifi,
        ssh_keys=profile.ssh_keys,
    )
    return kit.signed(operator_of(fleet))


def order(fleet: Fleet, name: NodeId, number: int) -> dict[str, str] | None:
    """What that board runs from now on, signed, when its command line was changed after `number`;
    else None. Raises ConfigError when its profile does not say what it runs, DataError,
    UsageError."""
    profile = profiles.load(fleet.folder, name)
    if profile.number <= number:
        return None
    arguments = profiles.arguments(profile, fleet.valid_board(name).name, boards_of(fleet))
    return Order(name, profile.number, arguments).signed(operator_of(fleet))


def write(file: Path, data: bytes) -> None:
    """For its owner only, whatever was there. Raises UsageError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}") from error


def in_repository(file: Path) -> bool:
    """Whether a git repository is around it, which does not ignore kits."""
    for folder in file.absolute().parents:
        if (folder / ".git").exists():
            try:
                return "*.kit" not in (folder / ".gitignore").read_text().splitlines()
            except OSError:
                return True
    return False


def set_profiles(fleet: Fleet, names: Sequence[NodeId], given: dict[str, Any]) -> None:
    """Keep what is given (not None) for each of these boards. All are checked before one is
    changed. Raises ConfigError."""
    for name in names:
        _board(fleet, name)
    check_others(fleet, given)
    new = {name: profiles.load(fleet.folder, name).changed(**given) for name in names}
    for name, profile in new.items():
        profiles.keep(fleet.folder, name, profile)


def check_others(fleet: Fleet, given: dict[str, Any], new: Sequence[NodeId] = ()) -> None:
    """Whether the boards that are named in there are in the fleet, or among those that are to be
    added. Raises ConfigError."""
    for name in (*filter(None, [given.get("founder")]), *(given.get("boards") or ())):
        if name not in new:
            _board(fleet, name)


def _board(fleet: Fleet, name: NodeId) -> Member:
    return fleet.valid_board(name)
