"""What a connection of a server run needs of the two ends' identities."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgegossip.security.admission import Admission

KEY_DOMAIN = b"edgegossip flower key 1\0"  # what a board signs begins with it
ASK_DOMAIN = b"edgegossip recipe 1\0"  # and with this when it asks what is run


@dataclass(frozen=True, slots=True)
class BoardCredentials:
    """Of a board: `context` accepts nobody but a coordinator of its fleet; `sign` makes a signature
    that says who signed."""

    context: ssl.SSLContext
    sign: Callable[[bytes], bytes]

    def proof(self, domain: bytes, data: bytes) -> str:
        """The signature of `data` in that domain, as requests carry it."""
        return b64encode(self.sign(domain + data)).decode()


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """Of a coordinator: files for TLS, who may come in, and a context with which it reaches
    itself."""

    certificate: Path
    key: Path
    authority: Path
    context: ssl.SSLContext
    admission: Admission
