"""Training through a coordinator that is Flower's server, and the compression for anybody's Flower
app.

`compressed(strategy, codec)` and `compression_mod(codec)` are the drop-in for existing apps;
`Coordinator` and `NodeClient` are the two ends of `edgegossip run` in server mode. Needs Flower,
which the extra `server` brings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgegossip.types import HostError

if TYPE_CHECKING:
    from edgegossip.flower.checkpoints import BoardCheckpointer, CoordinatorCheckpointer
    from edgegossip.flower.client import NodeClient
    from edgegossip.flower.coordinator import Coordinator
    from edgegossip.flower.mod import compression_mod
    from edgegossip.flower.strategy import compressed

__all__ = ["BoardCheckpointer", "Coordinator", "CoordinatorCheckpointer", "NodeClient", "compressed", "compression_mod"]

_HOMES = {
    "BoardCheckpointer": "checkpoints",
    "Coordinator": "coordinator",
    "CoordinatorCheckpointer": "checkpoints",
    "NodeClient": "client",
    "compressed": "strategy",
    "compression_mod": "mod",
}


def __getattr__(name: str) -> Any:
    """Import what is used of Flower, which takes more than a second, only when it is."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise HostError("server mode needs Flower: pip install flwr==1.41.0") from None
