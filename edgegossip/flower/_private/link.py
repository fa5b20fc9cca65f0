"""A request to the SuperLink: its errors, and the bytes that it sends."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, TypeVar

import httpx
from flwr.common.constant import TIMESTAMP_TOLERANCE
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufRequestContext
from google.protobuf.message import Message as ProtobufMessage

from edgegossip.flower.admission import NOT_ADMITTED, TOKEN_HEADER
from edgegossip.types import PeerError


class LinkError(PeerError):
    """A request to the SuperLink failed.

    `gone`: nobody answered; otherwise it answered with a refusal. `unknown`: it does not know whose
    request it was."""

    def __init__(self, text: str, gone: bool, unknown: bool = False) -> None:
        super().__init__(text)
        self.gone, self.unknown = gone, unknown


_Client = TypeVar("_Client", bound=ProtobufClient)
HOLD_HEADER = "x-edgegossip-hold"  # for how many seconds an answer may be waited for
REQUEST_S = 30.0
PROBE_S = 5.0
MAX_DETAIL = 500  # of what a server says, for a log line


def connect(kind: type[_Client], address: str, context: ssl.SSLContext | None, interceptors: Sequence[Any]) -> _Client:
    """One of Flower's clients; `context` None: without TLS.

    It goes straight to that address, whatever proxies the environment names, and nowhere else,
    whatever it is told there."""
    scheme = "http" if context is None else "https"
    client = kind(f"{scheme}://{address}", interceptors=interceptors, verify=False)
    client._client.close()
    client._client = httpx.Client(verify=context or False, timeout=REQUEST_S, trust_env=False)
    return client


def post(
    client: ProtobufClient,
    path: str,
    message: ProtobufMessage,
    body: bytes,
    hold_s: float = 0.0,
    arriving: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> bytes:
    """A request to a path of ours (batching.py) with what Flower's own requests of that client
    carry; the answer's body. `message`: what the body is about. `arriving`: entered while the
    answer comes in, which is no time of waiting for it."""
    headers = {"content-type": "application/octet-stream", HOLD_HEADER: f"{hold_s:g}"}
    request = client._client.build_request("POST", f"{client._base_url}{path}", content=body, headers=headers)
    context = ProtobufRequestContext(rpc_method=path, message=message, request=request)
    response = client._send(context, stream=True)
    try:
        response.raise_for_status()
        request.extensions["timeout"]["read"] = REQUEST_S  # which a stream of Flower's does without
        with arriving():
            response.read()
        return response.content
    finally:
        response.close()
        _untie(response)


def _untie(response: httpx.Response) -> None:
    """A response and its stream refer to each other, and its body, which may be a model, would wait
    for the garbage collector."""
    if response.is_closed:
        response.stream = _EMPTY


_EMPTY = httpx.ByteStream(b"")


class TokenInterceptor:
    """Shows that a request is the coordinator's own."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers[TOKEN_HEADER] = self._token
        return call_next(context)


def speaks_tls(address: str) -> bool:
    """Whether somebody there does; who, is not asked."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def without_identity(address: str) -> LinkError:
    """Why a board without TLS gets no answer from a coordinator with it."""
    text = f"the coordinator at {address} speaks TLS: start this board with --identity DIR, the folder that"
    return LinkError(f"{text} `edgegossip fleet add` made for it", gone=False)


@contextmanager
def answered(address: str) -> Iterator[None]:
    try:
        yield
    except LinkError:
        raise
    except PeerError as error:  # of the TLS context
        raise LinkError(f"{address} cannot be trusted: {error}", gone=False) from None
    except httpx.TransportError as error:
        raise LinkError(f"{address} does not answer: {error}", gone=True) from None
    except httpx.HTTPStatusError as error:
        _refused(address, error.response)


def _refused(address: str, response: httpx.Response) -> NoReturn:
    status, detail = response.status_code, _detail(response)
    if status == 401 and detail != NOT_ADMITTED:
        text = (
            f"{address} does not accept this board's signature: its key is unknown there, or the two clocks differ by "
            f"more than 5 s (behind: {TIMESTAMP_TOLERANCE} s); set the clock and try again"
        )
        raise LinkError(text, gone=False, unknown=True)
    if status == 403:
        raise LinkError(f"the coordinator at {address} refuses this board: {detail}", gone=False)
    raise LinkError(f"{address} refused the request ({status}): {detail}", gone=status in (429, 502, 503, 504))


def _detail(response: httpx.Response) -> str:
    try:
        answer = json.loads(response.text)
        return str(answer.get("detail") or answer.get("public_message") or answer)[:MAX_DETAIL]
    except (ValueError, AttributeError):
        return response.reason_phrase


class ByteMeter:
    """Innermost interceptor: counts what each request hands to the socket, headers as HTTP/1.1
    writes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        request = context.request
        line = len(request.method) + len(request.url.raw_path) + len("  HTTP/1.1\r\n")
        headers = sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers.raw)
        with self._lock:
            self._sent_bytes += line + headers + len("\r\n") + len(request.content)
        response = call_next(context)
        _untie(response)
        return response

    def sent_bytes(self) -> int:
        """Since this object was made."""
        with self._lock:
            return self._sent_bytes
