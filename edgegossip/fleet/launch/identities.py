"""A fleet for one run: identities for `run`'s own boards, made when it starts and gone when it
ends."""

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

from edgegossip.fleet.launch.admission import coordinator_of
from edgegossip.recipe import Recipe
from edgegossip.telemetry.summary import COORDINATOR
from edgegossip.types import NodeId

_YEARS = 1.0
_PREFIX = "edgegossip-fleet-"
_MADE_S = 60.0  # a folder so young may not be claimed yet


@contextmanager
def _claimed(folder: str) -> Iterator[None]:
    """Others see that it is in use, for as long as this process lives."""
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


@contextmanager
def identities(recipe: Recipe, members: Sequence[NodeId]) -> Iterator[Mapping[NodeId, Path]]:
    """The identity folder of each board, and in server mode of COORDINATOR, for as long as the
    context lasts; none when the run goes without TLS."""
    if recipe.network.tls == "off":
        yield {}
        return
    from edgegossip.fleet.store import Fleet

    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _claimed(folder):
        fleet = Fleet.create(Path(folder) / "fleet", "run", _YEARS)
        for name in members:
            fleet = fleet.add(name, "board", _YEARS)
        found = {m.name: fleet.folder / m.folder for m in fleet.members if m.role == "board"}
        if recipe.run.mode == "server":
            found[COORDINATOR] = coordinator_of(fleet.folder)
        yield found
