"""The client side of a check-in: a board asks the machine from which its fleet is run what time it
is, which release it should have, and for that release; and it may be given an order.

HTTP over TLS 1.3 with certificates both ways (security/tls.py): the board goes no further than to a
coordinator of its own fleet. The other end is edgegossip.fleet.checkins. A board asks because it
may not know the time, so the handshake leaves dates out; they are checked when the time is known
(`Client.check_dates`).

What is asked of a board comes as an order, which that machine cannot make (update/order.py).
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from edgegossip.mesh import address as addresses
from edgegossip.security import tls
from edgegossip.security.certificates import Certificate, parse_certificate
from edgegossip.security.identity import Identity
from edgegossip.types import PeerError
from edgegossip.untrusted import printable
from edgegossip.update.bundle import MAX_SIGNATURE_BYTES, MAX_STORED_BYTES, Blob, Head, parse_head

CHECK_IN, RELEASE, REVOCATIONS = "/v1/check-in", "/v1/release", "/v1/crl"
TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 65_536
MAX_LIST_BYTES = 1 << 20
_YEAR_10000_S = 253_402_300_800.0  # no certificate gets there
_MORE_BYTES = 1 << 17  # a manifest has some 60 bytes a file as it travels


@dataclass(frozen=True, slots=True)
class CheckInAnswer:
    """Says what a board hears at a check-in."""

    time_s: float  # the coordinator's clock, Unix seconds
    crl_number: int
    order: Mapping[str, Any] | None = None  # the operator's word, if there is a newer one; see `Order.read`


class Client:
    """Holds one connection to the machine at `where` (host:port); a context manager. Every method
    raises PeerError with one sentence."""

    coordinator: Certificate  # of the machine that answered last

    def __init__(self, identity: Identity, where: str) -> None:
        address = addresses.parse(where, "check-in")
        self._where, self._revocations = where, identity.revocations
        self._context = tls.caller_context(identity, "coordinator", dated=False)
        self._connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=TIMEOUT_S, context=self._context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def check_in(self, report: Mapping[str, Any]) -> CheckInAnswer:
        """Send the board's report, and return what it is told."""
        body = self._ask("POST", CHECK_IN, MAX_ANSWER_BYTES, json.dumps(report).encode())
        try:
            found = json.loads(body)
            order = found.get("order")
            if not isinstance(order, dict | None):
                raise TypeError("an order that is none")
            time_s = float(found["time_s"])
            if not 0 <= time_s < _YEAR_10000_S:
                raise ValueError(f"a time of {time_s:g} s")
            return CheckInAnswer(time_s, int(found["crl_number"]), order)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise PeerError(f"{self._where}: an answer that makes no sense ({error})") from error

    def update_revocations(self) -> None:
        """Fetch the fleet's revocation list, whose signature counts, and take it over. It may
        revoke who gave it."""
        self._revocations.offer(self._ask("GET", REVOCATIONS, MAX_LIST_BYTES))
        if self._revocations.revoked(self.coordinator.serial):
            raise PeerError(f"{self._where}: its certificate was revoked")

    def check_dates(self, now_s: float) -> None:
        """Look whether the coordinator's certificate is valid at this time, once that is known."""
        try:
            self._context.check_dates(self.coordinator, now_s)
        except PeerError as error:
            raise PeerError(f"{self._where}: {error}") from None

    def head(self, sequence: int) -> tuple[Head, Callable[[Blob], bytes]]:
        """Fetch the start of that release's bundle; return it with a function that fetches a blob
        of it. Raises PeerError and DecodeError."""
        data, found = b"", None
        while found is None:
            if len(data) > MAX_STORED_BYTES + MAX_SIGNATURE_BYTES + 64:
                raise PeerError(f"{self._where}: a bundle without end")
            more = self._range(sequence, len(data), _MORE_BYTES)
            if not more:
                raise PeerError(f"{self._where}: a bundle that is cut short")
            data += more
            found = parse_head(data)
        head, begin = found

        def fetch(blob: Blob) -> bytes:
            if not blob.stored_bytes:
                return b""
            stored = self._range(sequence, begin + blob.at, blob.stored_bytes)
            if len(stored) != blob.stored_bytes:
                raise PeerError(f"{self._where}: a bundle that is cut short")
            return stored

        return head, fetch

    def _range(self, sequence: int, at: int, count: int) -> bytes:
        """Fetch bytes of the bundle, fewer at its end."""
        return self._ask("GET", f"{RELEASE}/{sequence}?from={at}&count={count}", count)

    def _ask(self, method: str, path: str, most_bytes: int, body: bytes | None = None) -> bytes:
        try:
            if not self._connection.sock:
                self._connection.connect()
                self.coordinator = parse_certificate(self._connection.sock.getpeercert(True) or b"")
            self._connection.request(method, path, body)
            answer = self._connection.getresponse()
            found = answer.read(most_bytes + 1)
            if answer.status != 200:
                raise PeerError(f"{self._where}: {printable(found[:500].decode(errors='replace'))}")
            if len(found) > most_bytes:
                raise PeerError(f"{self._where}: an answer of more than {most_bytes} bytes")
            return found
        except PeerError as error:
            text = str(error)
            raise PeerError(text if text.startswith(self._where) else f"{self._where}: {text}") from error
        except ssl.SSLError as error:
            raise PeerError(f"{self._where}: {tls.words(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            raise PeerError(f"{self._where}: {str(reason).lower()}") from error
