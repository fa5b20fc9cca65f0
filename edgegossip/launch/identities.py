"""A fleet for one run: identities for `run`'s own boards, made when it starts and gone when it ends."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgegossip.launch.admission import coordinator_of
from edgegossip.launch.preflight import require
from edgegossip.profiling.summary import COORDINATOR
from edgegossip.recipe import Recipe
from edgegossip.types import NodeId

_YEARS = 1.0


@contextmanager
def identities(recipe: Recipe, members: Sequence[NodeId]) -> Iterator[Mapping[NodeId, Path]]:
    """The identity folder of each board, and in server mode of COORDINATOR, for as long as the context lasts; none when the run
    goes without TLS. Raises HostError when network.tls = on and the package that makes certificates is missing."""
    if recipe.network.tls == "on":
        require("cryptography", "pip install 'edgegossip[fleet]', or say network.tls = off")
    elif recipe.network.tls == "off" or importlib.util.find_spec("cryptography") is None:
        yield {}
        return
    from edgegossip.fleet.store import Fleet

    with tempfile.TemporaryDirectory(prefix="edgegossip-fleet-") as folder:
        fleet = Fleet.create(Path(folder) / "fleet", "run", _YEARS)
        for name in members:
            fleet = fleet.add(name, "board", _YEARS)
        found = {m.name: fleet.folder / m.folder for m in fleet.members if m.role == "board"}
        if recipe.run.mode == "server":
            found[COORDINATOR] = coordinator_of(fleet.folder)
        yield found
