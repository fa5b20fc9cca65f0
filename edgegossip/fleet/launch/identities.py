"""Whose identities a run on this machine goes by: for `run`'s own boards those of a fleet that is
made when the run starts and gone when it ends; for a coordinator those of the operator's fleet."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip.fleet.launch.preflight import FLEET
from edgegossip.fleet.store import INDEX, Fleet, coordinator_of
from edgegossip.recipe import Recipe
from edgegossip.security import tls
from edgegossip.security.admission import Admission
from edgegossip.security.identity import CA, CERTIFICATE, KEY, Identity
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.types import ConfigError, NodeId

if TYPE_CHECKING:
    from edgegossip.flower.connection import ServerCredentials

_YEARS = 1.0
_PREFIX = "edgegossip-fleet-"
_MADE_S = 60.0  # a folder so young may not be claimed yet


@contextmanager
def identities(recipe: Recipe, members: Sequence[NodeId]) -> Iterator[Mapping[NodeId, Path]]:
    """Yield the identity folder of each board, and in server mode of COORDINATOR, for as long as
    the context lasts; none when the run goes without TLS."""
    if recipe.network.tls == "off":
        yield {}
        return
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _claimed(folder):
        fleet = Fleet.create(Path(folder) / "fleet", "run", _YEARS)
        for name in members:
            fleet = fleet.add(name, "board", _YEARS)
        found = {m.name: fleet.folder / m.folder for m in fleet.members if m.role == "board"}
        if recipe.run.mode == "server":
            found[COORDINATOR] = coordinator_of(fleet.folder)
        yield found


def credentials(folder: Path) -> ServerCredentials:
    """Load the coordinator's identity in `folder`, as Flower's server takes it. Raises ConfigError
    when it is a board's, DataError and UsageError when it cannot be used."""
    from edgegossip.flower.connection import ServerCredentials  # here: a run of the mesh goes without Flower

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
    """Find the identity to serve with: --identity, or that of the coordinator in --fleet or in
    ./fleet, which is made where it is not there yet; None for none. Raises ConfigError for options
    that do not go together."""
    if insecure and (fleet or identity):
        raise ConfigError("--insecure goes without TLS, --fleet and --identity with it: leave one out")
    if fleet and identity:
        raise ConfigError("--fleet has the coordinator's identity in it: leave --identity out")
    if insecure or identity:
        return identity
    if fleet is None and not (Path(FLEET) / INDEX).is_file():
        return None
    return coordinator_of(fleet or Path(FLEET))


@contextmanager
def _claimed(folder: str) -> Iterator[None]:
    """Let others see that it is in use, for as long as this process lives."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def _sweep(parent: Path) -> None:
    """Remove what runs of ours that were killed with -9 left there: keys, though of fleets that are
    gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if (
                not stat.S_ISDIR(about.st_mode)
                or about.st_uid != os.geteuid()
                or time.time() - about.st_mtime < _MADE_S
            ):
                continue
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(fd)
