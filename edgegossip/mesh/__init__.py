"""The peer mesh: whole frames between named boards over gRPC, without a server. docs/mesh.md tells
how it behaves.

`GrpcTransport` and `MeshLimits` are loaded when first asked for, so that a simulator can use
`mesh.base` without gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.mesh.base import MeshLimits
    from edgegossip.mesh.transport import GrpcTransport

__all__ = ["GrpcTransport", "MeshLimits"]


def __getattr__(name: str) -> Any:
    if name == "GrpcTransport":
        from edgegossip.mesh.transport import GrpcTransport

        return GrpcTransport
    if name == "MeshLimits":
        from edgegossip.mesh.base import MeshLimits

        return MeshLimits
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
