"""A request to the SuperLink: its errors, and the bytes that it sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import httpx
from flwr.common.constant import TIMESTAMP_TOLERANCE

from edgegossip.types import PeerError


class LinkError(PeerError):
    """A request to the SuperLink failed. `gone`: nobody answered; otherwise it answered with a refusal."""

    def __init__(self, text: str, gone: bool) -> None:
        super().__init__(text)
        self.gone = gone


@contextmanager
def answered(address: str) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise LinkError(f"{address} does not answer: {error}", gone=True) from None
    except httpx.HTTPStatusError as error:
        _refused(address, error.response)


def _refused(address: str, response: httpx.Response) -> NoReturn:
    status = response.status_code
    if status == 401:
        text = (
            f"{address} does not accept this board's signature: its key is unknown there, or the two clocks differ by "
            f"more than 5 s (behind: {TIMESTAMP_TOLERANCE} s); set the clock and try again"
        )
        raise LinkError(text, gone=False)
    try:
        answer = json.loads(response.text)
        text = str(answer.get("detail") or answer.get("public_message") or answer)
    except (ValueError, AttributeError):
        text = response.reason_phrase
    raise LinkError(f"{address} refused the request ({status}): {text}", gone=status in (502, 503, 504))


class ByteMeter:
    """Innermost interceptor: counts what each request hands to the socket, headers as HTTP/1.1 writes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        request = context.request
        line = len(request.method) + len(request.url.raw_path) + len("  HTTP/1.1\r\n")
        headers = sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers.raw)
        with self._lock:
            self._sent_bytes += line + headers + len("\r\n") + len(request.content)
        return call_next(context)

    def sent_bytes(self) -> int:
        """Since this object was made."""
        with self._lock:
            return self._sent_bytes
