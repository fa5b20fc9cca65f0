"""How the two ends of a server run trust one another. What a fleet is, certificates and revocation are others' business: here are
the few things that a connection needs of them."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgegossip.types import NodeId

KEY_DOMAIN = b"edgegossip flower key 1\0"  # what a board signs begins with it
ASK_DOMAIN = b"edgegossip recipe 1\0"  # and with this when it asks what is run


@dataclass(frozen=True, slots=True)
class BoardCredentials:
    """Of a board: `context` accepts nobody but a coordinator of its fleet; `sign` makes a signature that says who signed."""

    context: ssl.SSLContext
    sign: Callable[[bytes], bytes]

    def proof(self, domain: bytes, data: bytes) -> str:
        """The signature of `data` in that domain, as requests carry it."""
        return b64encode(self.sign(domain + data)).decode()


class Policy(Protocol):
    """Who may take part in a run."""

    def examine(self, data: bytes, proof: bytes) -> tuple[NodeId, int]:
        """Whose signature over `data` this is, and the serial number of that certificate. Raises PeerError: of nobody who may."""

    def offer(self, revocations: bytes) -> int:
        """Take over a revocation list (DER) if it is newer; the number of the one in force. Raises PeerError for one that nobody
        who may has signed."""

    def newly_revoked(self) -> bool:
        """Whether there is a newer revocation list since the last call."""

    def revoked(self, serial: int) -> bool:
        """Whether that certificate is on the list."""

    def explain(self, reason: str) -> str:
        """OpenSSL's word for why a handshake failed, for people: one clause about the other side."""


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """Of a coordinator: files for TLS, who may come in, and a context with which it reaches itself."""

    certificate: Path
    key: Path
    authority: Path
    context: ssl.SSLContext
    policy: Policy
