"""The peer mesh: whole frames between named boards over gRPC, without a server. docs/mesh.md tells
how it behaves.

`GrpcTransport` and `MeshLimits` are loaded when first asked for, so that a simulator can use
`mesh.base` without gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.mesh.base import MeshLimits
    from edgegossip.mesh.transport import GrpcTransport

__all__ = ["GrpcTransport", "MeshLimits"]
_PLACES = {"GrpcTransport": "edgegossip.mesh.transport", "MeshLimits": "edgegossip.mesh.base"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
