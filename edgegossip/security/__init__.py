"""Who a board is, who its peers are, and what strangers may do: identities, certificates,
revocation, admission, limits and TLS, for mesh, coordinator and fleet (docs/security.md).

`Identity`, and with it `cryptography`, is loaded when it is first asked for: a board without
certificates never pays for it."""

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
