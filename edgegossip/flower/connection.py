"""What the two ends of a server run's connections share: credentials, paths of the coordinator's
own, what errors mean; and the two questions that need no more than that, without Flower.

`fetch_run` asks a coordinator what it runs, for a board that knows its address and nothing else.
`send_revocations` brings a revocation list to a running coordinator.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import printable

if TYPE_CHECKING:
    import httpx

    from edgegossip.security.admission import Admission
    from edgegossip.security.identity import Identity

JOIN_PATH = "/edgegossip/join"
REVOKED_PATH = "/edgegossip/revoked"
RECIPE_PATH = "/edgegossip/recipe"
TOKEN_HEADER = "x-edgegossip-token"  # of the coordinator's own requests
NOT_ADMITTED = "the coordinator does not know this key"  # such as after its restart: the board introduces itself again
KEY_DOMAIN = b"edgegossip flower key 1\0"  # what a board signs begins with it
ASK_DOMAIN = b"edgegossip recipe 1\0"  # and with this when it asks what is run
REQUEST_S = 30.0
PROBE_S = 5.0
MAX_DETAIL = 500  # characters of what a server says, for a log line
_BEHIND_S = 300  # Flower takes no signature that is older
_MOST = 65_536  # bytes of an answer to a revocation list
_MOST_RUN = 1 << 20  # and of a recipe with the names of boards


class LinkError(PeerError):
    """Says that a request to a coordinator failed.

    `gone`: nobody answered; otherwise it answered with a refusal. `unknown`: it does not know whose
    request it was."""

    def __init__(self, text: str, gone: bool, unknown: bool = False) -> None:
        super().__init__(text)
        self.gone, self.unknown = gone, unknown


@dataclass(frozen=True, slots=True)
class BoardCredentials:
    """Has what a board needs: `context` accepts nobody but a coordinator of its fleet; `sign` makes
    a signature that says who signed."""

    context: ssl.SSLContext
    sign: Callable[[bytes], bytes]

    @classmethod
    def of(cls, identity: Identity) -> BoardCredentials:
        """Return those of a board with this certificate."""
        from edgegossip.security import tls

        return cls(tls.caller_context(identity, "coordinator"), identity.sign)

    def proof(self, domain: bytes, data: bytes) -> str:
        """Return the signature of `data` in that domain, as requests carry it."""
        return b64encode(self.sign(domain + data)).decode()


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """Has what a coordinator needs: files for TLS, who may come in, and a context with which it
    reaches itself."""

    certificate: Path
    key: Path
    authority: Path
    context: ssl.SSLContext
    admission: Admission


@dataclass(frozen=True, slots=True)
class RunningRun:
    """Says what a coordinator runs. `recipe` is TOML, not looked at yet."""

    recipe: str
    boards: tuple[NodeId, ...]


def fetch_run(address: str, credentials: BoardCredentials | None) -> RunningRun:
    """Ask the coordinator at HOST:PORT what it runs. Whoever listens there may be nobody that we
    know: an answer has a size and a time. Raises LinkError, whose `gone` says that nobody answered
    there."""
    import httpx

    scheme, document = "http", dict[str, str]()
    if credentials is not None:
        clock = datetime.now(UTC).isoformat()
        scheme, document = "https", {"proof": credentials.proof(ASK_DOMAIN, clock.encode()), "time": clock}
    context = credentials.context if credentials is not None else False
    with answered(address), httpx.Client(verify=context, timeout=REQUEST_S, trust_env=False) as client:
        try:
            with client.stream("POST", f"{scheme}://{address}{RECIPE_PATH}", json=document) as coming:
                body = _whole(address, coming)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if credentials is None and speaks_tls(address):
                raise without_identity(address) from None
            raise
        httpx.Response(coming.status_code, content=body, request=coming.request).raise_for_status()
    try:
        found = json.loads(body)
        recipe, boards = found["recipe"], found["boards"]
        if isinstance(recipe, str) and isinstance(boards, list) and all(isinstance(name, str) for name in boards):
            return RunningRun(recipe, tuple(boards))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise LinkError(f"{address} does not answer as a coordinator of this edgegossip does", gone=False)


def _whole(address: str, response: httpx.Response) -> bytes:
    """Read a body as it comes, without unpacking what says that it is compressed. Raises
    LinkError."""
    body, until_s = bytearray(), time.monotonic() + REQUEST_S
    for part in response.iter_raw():
        body += part
        if len(body) > _MOST_RUN:
            raise LinkError(f"{address} answers with more than {_MOST_RUN} bytes, as no coordinator does", gone=False)
        if time.monotonic() > until_s:
            raise LinkError(f"the answer of {address} takes more than {REQUEST_S:g} s to come", gone=True)
    return bytes(body)


def send_revocations(s: ssl.SSLSocket, revocations: bytes) -> int:
    """Bring a revocation list (DER) to a running coordinator, over a connection that is open
    already; return the number of the list that it has then. Raises PeerError."""
    connection = http.client.HTTPConnection("coordinator")
    connection.sock = s
    try:
        connection.request("POST", REVOKED_PATH, revocations, {"content-type": "application/pkix-crl"})
        answer = connection.getresponse()
        document = json.loads(answer.read(_MOST))
        if answer.status != 200:
            raise PeerError(printable(str(document["detail"]), MAX_DETAIL))
        return int(document["has"])
    except (http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerError(f"its answer makes no sense: {error}") from error


# -- requests, and what their errors mean


def speaks_tls(address: str) -> bool:
    """Return whether somebody at HOST:PORT does; who, is not asked."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def without_identity(address: str) -> LinkError:
    """Return why a board without TLS gets no answer from a coordinator with it."""
    text = f"the coordinator at {address} speaks TLS: start this board with --identity DIR, the folder that"
    return LinkError(f"{text} `edgegossip fleet add` made for it", gone=False)


@contextmanager
def answered(address: str) -> Iterator[None]:
    """Turn what goes wrong with requests to this address, inside, into LinkError."""
    import httpx

    try:
        yield
    except LinkError:
        raise
    except PeerError as error:  # of the TLS context
        raise LinkError(f"{address} cannot be trusted: {error}", gone=False) from None
    except httpx.RequestError as error:  # or its answer cannot be read
        raise LinkError(f"{address} does not answer: {printable(str(error), MAX_DETAIL)}", gone=True) from None
    except httpx.HTTPStatusError as error:
        _refused(address, error.response)


def _refused(address: str, response: httpx.Response) -> NoReturn:
    status, detail = response.status_code, _detail(response)
    if status == 401 and detail != NOT_ADMITTED:
        text = (
            f"{address} does not accept this board's signature: its key is unknown there, or the two clocks differ by "
            f"more than 5 s (behind: {_BEHIND_S} s); set the clock and try again"
        )
        raise LinkError(text, gone=False, unknown=True)
    if status == 403:
        raise LinkError(f"the coordinator at {address} refuses this board: {detail}", gone=False)
    raise LinkError(f"{address} refused the request ({status}): {detail}", gone=status in (429, 502, 503, 504))


def _detail(response: httpx.Response) -> str:
    try:
        answer = json.loads(response.text)
        return printable(str(answer.get("detail") or answer.get("public_message") or answer), MAX_DETAIL)
    except (ValueError, AttributeError, RecursionError):
        return printable(response.reason_phrase, MAX_DETAIL)
