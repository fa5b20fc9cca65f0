"""Certificate and key of our folder in the forms that TLS and gRPC take. Thread-safe."""

from __future__ import annotations

import threading

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.security import der, tls
from edgegossip.mesh.security.identity import CERTIFICATE, KEY, Identity
from edgegossip.mesh.security.revocations import stamp
from edgegossip.types import DataError


class Credentials:
    """Of connections that begin from now on: `server_context` and `client_context` for Python's `ssl`, which know the revocation
    list too, `channel` and `server` for gRPC. Raises DataError when the files cannot be used at first; later those that are
    there already stay."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._files = identity.folder / CERTIFICATE, identity.folder / KEY
        self._lock = threading.Lock()
        self._taken: object = None  # what told the files apart then
        self._shown: object = None  # what gRPC has of them
        self._failed: object = None  # what told apart those that could not be taken the last time
        self._complaint = ""  # and why, once that was told
        self._take()

    @property
    def stale(self) -> bool:
        """Whether there is something for `look`."""
        return self._taken != self._stamps()

    def look(self, *, again: bool = False) -> str:
        """Take the files once more if they have changed, or `again` because the revocation list has. Files that cannot be used,
        half copied for example, are tried again at the next look; the reason is returned once, when the same ones are there at
        two looks (a certificate and its key are not replaced in one step), and otherwise nothing."""
        with self._lock:
            if again:
                self._taken = None
            if not self.stale:
                return ""
            found, failed = self._stamps(), self._failed
            try:
                self._take()
            except DataError as error:
                self._failed = found
                if found != failed or str(error) == self._complaint:
                    return ""
                self._complaint = str(error)
                return self._complaint
            self._failed, self._complaint = None, ""
            return ""

    def _take(self) -> None:
        taken = self._stamps()
        try:
            pem, key = (file.read_bytes() for file in self._files)
        except OSError as error:
            raise DataError(f"{self._identity.folder}: {(error.strerror or str(error)).lower()}") from error
        server_context, client_context = tls.server_context(self._identity), tls.client_context(self._identity)
        if self._stamps() != taken:  # or gRPC might get a certificate and the key of another one
            raise DataError(f"{self._identity.folder} is being replaced")
        self.server_context, self.client_context = server_context, client_context
        authority = der.to_pem(self._identity.authority.der, "CERTIFICATE")
        # Another revocation list is nothing to gRPC, which takes what is another object for new.
        if self._shown != (pem, key):
            self.channel = grpc.ssl_channel_credentials(authority, key, pem)
            self.server = grpc.ssl_server_certificate_configuration([(key, pem)], authority)
            self._shown = pem, key
        self._taken = taken

    def _stamps(self) -> tuple[object, ...]:
        return tuple(map(stamp, self._files))
