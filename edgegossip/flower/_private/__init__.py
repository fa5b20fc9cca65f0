"""Everything of Flower 1.41 that is not its public API. The only package that may import it.

Flower's public API serves apps that Flower starts itself: a new process a message on the board, one
for the server, each behind fixed polls of seconds. To speak to its SuperLink directly we use the
HTTP clients that Flower's own processes use: the Fleet API as a board (`FleetLink`), the Runtime
API as a server app (`RunLink`) and the Control API to start a run (`start_run`).
`tests/flower/test_private.py` says by name what is gone when another Flower version moves
something.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.flower._private.fleet import FleetLink
    from edgegossip.flower._private.link import LinkError, answered, speaks_tls, without_identity
    from edgegossip.flower._private.objects import Incoming
    from edgegossip.flower._private.runtime import RunLink, is_away, register_key, start_run
    from edgegossip.flower._private.superlink import flower_superlink

__all__ = [
    "FleetLink",
    "Incoming",
    "LinkError",
    "RunLink",
    "answered",
    "flower_superlink",
    "is_away",
    "register_key",
    "speaks_tls",
    "start_run",
    "without_identity",
]

_HOMES = {
    "FleetLink": "fleet",
    "Incoming": "objects",
    "LinkError": "link",
    "RunLink": "runtime",
    "answered": "link",
    "flower_superlink": "superlink",
    "is_away": "runtime",
    "register_key": "runtime",
    "speaks_tls": "link",
    "start_run": "runtime",
    "without_identity": "link",
}


def __getattr__(name: str) -> Any:
    """A board must not pay for the coordinator's part, which comes with a web server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
