"""Who a board is, who its peers are, and what strangers may do: identities, TLS, revocation
(docs/security.md).

Nothing here imports `cryptography`: that package makes certificates on a laptop
(`edgegossip.fleet`) and never runs on a board. `Identity` is loaded when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgegossip.security.identity import Identity

__all__ = ["Identity"]


def __getattr__(name: str) -> Any:
    if name == "Identity":
        from edgegossip.security.identity import Identity

        return Identity
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
