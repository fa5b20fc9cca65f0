"""What stands before Flower's SuperLink, in its process: an ASGI application around Flower's own.

Flower's Fleet API checks each request's signature, but reads its body first; its Control and Runtime API, on the same port, serve
anybody. So with TLS only the coordinator, which has a token, reaches anything but the Fleet API, and that is only for keys that
the coordinator has admitted: it is asked once for every key, over the socket that it gave to this process. Line by line in JSON:

    here -> coordinator    {"join": number, "key", "proof", "time", "from"}   may this key come in?
                           {"revoked": number, "list", "from"}                a revocation list (base64 of DER)
                           {"recipe": number, "proof", "time", "from"}        what is run here? (proof: with TLS)
                           {"handshake": reason, "from"}                      somebody did not manage TLS
                           {"sockets": number, "totals": [...] or null}
                           {"news": true}                                     a board has sent something
    coordinator -> here    {"answer": number, "why": "" or the reason}        to a "revoked" with "has": its list's number;
                                                                              to a "recipe" with "recipe" and "boards"
                           {"out": key}                                       not any more
                           {"sockets": number}                                what have boards' connections carried?
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import hmac
import itertools
import json
import os
import socket
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from edgegossip.flower.turnstile import Rate, Turnstile
from edgegossip.untrusted import whole_number

JOIN_PATH = "/edgegossip/join"
REVOKED_PATH = "/edgegossip/revoked"
RECIPE_PATH = "/edgegossip/recipe"
RUN_PREFIX = "/edgegossip/run/"
GATE_VARIABLE = "EDGEGOSSIP_GATE"  # descriptor,0 or 1 with TLS,file of the secret
TOKEN_HEADER = "x-edgegossip-token"
MAX_JOIN_BYTES = 16_384
MAX_LIST_BYTES = 1 << 20  # some 25,000 certificates
MAX_BODY_BYTES = 32 << 20  # Flower cuts arrays into pieces of 5 MiB
ANSWER_S = 20.0  # the coordinator may be busy with updates
NOT_ADMITTED = "the coordinator does not know this key"  # such as after its restart: the board introduces itself again

_BUSY = (429, 503)  # says nothing about who asked

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Express(Protocol):
    """What answers requests that are not Flower's own; see `_private/superlink.py`."""

    def serves(self, path: str) -> bool: ...
    def heard(self, path: str) -> None: ...
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


def token_of(secret: bytes) -> str:
    """What only the coordinator and its SuperLink know."""
    return hashlib.sha256(b"edgegossip gate\0" + secret).hexdigest()


class Line:
    """The SuperLink's end of the socket to the coordinator. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._asked: dict[int, concurrent.futures.Future[dict[str, Any]]] = {}
        self.on_out: Callable[[str], None] = lambda key: None
        self.measure: Callable[[], list[int] | None] = lambda: None
        self._complaints = Rate(5.0, 50.0)
        threading.Thread(target=self._read, daemon=True, name="gate").start()

    def ask(self, what: str, question: dict[str, Any]) -> concurrent.futures.Future[dict[str, Any]]:
        """`what`: join, revoked or recipe. The answer's "why" is empty when all is well."""
        answer: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        number = next(self._numbers)
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))  # answered, or not waited for any more
        self.tell({what: number, **question})
        return answer

    def news(self) -> None:
        """A board has sent something."""
        self.tell({"news": True})

    def complain(self, reason: str, address: str) -> None:
        """Somebody did not manage TLS."""
        if self._complaints.allows():
            self.tell({"handshake": reason, "from": address})

    def tell(self, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            pass  # the coordinator is gone, and so will this process be

    def _read(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:  # the coordinator is gone, as in `tell`
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, news: dict[str, Any]) -> None:
        if "answer" in news:
            asked = self._asked.get(news["answer"])
            if asked is not None and asked.set_running_or_notify_cancel():
                asked.set_result(news)
        elif "out" in news:
            self.on_out(news["out"])
        elif "sockets" in news:
            self.tell({"sockets": news["sockets"], "totals": self.measure()})


class Gate:
    """`secure`: with TLS and keys; otherwise everybody on this network may come in, and only the coordinator's own connections
    are told from others'. `express` answers requests to its own paths; the coordinator's begin with RUN_PREFIX."""

    def __init__(self, app: App, line: Line, token: str, secure: bool, key_header: str, express: Express) -> None:
        self._app, self._line, self._token, self._secure = app, line, token.encode(), secure
        self._express = express
        self._key_header = key_header.lower().encode()
        self._admitted: set[bytes] = set()
        self._turnstile = Turnstile()
        self._doors = {RECIPE_PATH: self._recipe}
        if secure:
            self._doors |= {JOIN_PATH: self._join, REVOKED_PATH: self._revoked}
        self.own: set[tuple[str, int]] = set()  # addresses from which the coordinator itself has come
        line.on_out = lambda key: self._admitted.discard(_header_of(key))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or not self._secure:
                await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if hmac.compare_digest(headers.get(TOKEN_HEADER.encode(), b""), self._token):
            self.own.add(tuple(scope["client"]))
        else:
            try:
                if scope["path"] in self._doors:
                    return await _answer(send, 200, "", **await self._at_the_door(scope, headers, receive))
                if self._secure:
                    self._check(scope["path"], headers)
            except _Refused as refused:
                return await _answer(send, refused.status, refused.detail)
        if self._express.serves(scope["path"]):
            return await self._express(scope, receive, send)
        await self._app(scope, receive, send)
        self._express.heard(scope["path"])

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Raises _Refused, before anything of the body is read."""
        ours = self._express.serves(path) and not path.startswith(RUN_PREFIX)
        if not ours and not path.startswith("/v1/fleet/"):
            if path != "/health":
                raise _Refused(403, "only the coordinator may ask for this")
            return
        if headers.get(self._key_header) not in self._admitted:
            raise _Refused(401, NOT_ADMITTED)
        _check_length(headers, MAX_BODY_BYTES)

    async def _at_the_door(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """What somebody who may be a stranger is told. Raises _Refused."""
        host = scope["client"][0]
        try:
            with self._turnstile.asking(host):
                return await self._doors[scope["path"]](scope, headers, receive)
        except _Refused as refused:
            if refused.status not in _BUSY:
                self._turnstile.refused(host)
            raise

    async def _join(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        asked = await self._said(("key", "proof", "time"), scope, headers, receive)
        await self._ask("join", asked, scope)
        self._admitted.add(_header_of(asked["key"]))
        return {}

    async def _recipe(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """For a board that was told this address and nothing else."""
        asked = await self._said(("proof", "time") if self._secure else (), scope, headers, receive)
        answer = await self._ask("recipe", asked, scope)
        return {name: answer[name] for name in ("recipe", "boards")}

    async def _said(
        self, names: tuple[str, ...], scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> dict[str, str]:
        body = await self._body(scope, headers, MAX_JOIN_BYTES, receive)
        try:
            document = json.loads(body)
            said = {name: str(document[name]) for name in names}
            "".join(said.values()).encode()  # JSON has texts that UTF-8 has not
            return said
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Refused(400, "this is not how a board introduces itself") from None

    async def _revoked(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """From anybody: the list is signed by the fleet's authority, or it changes nothing."""
        body = await self._body(scope, headers, MAX_LIST_BYTES, receive)
        answer = await self._ask("revoked", {"list": b64encode(body).decode()}, scope)
        return {"has": int(answer["has"])}

    async def _body(self, scope: Scope, headers: dict[bytes, bytes], limit: int, receive: Receive) -> bytes:
        _check_length(headers, limit)
        if not self._turnstile.allows(scope["client"][0]):
            raise _Refused(429, "too many boards at once; try again in a moment")
        return await _read(receive)

    async def _ask(self, what: str, question: dict[str, str], scope: Scope) -> dict[str, Any]:
        """The coordinator's answer. Raises _Refused when it is no."""
        try:
            host, port = scope["client"]
            asked = self._line.ask(what, {**question, "from": f"{host}:{port}"})
            answer = await asyncio.wait_for(asyncio.wrap_future(asked), ANSWER_S)
        except TimeoutError:
            raise _Refused(503, "the coordinator is busy; try again in a moment") from None
        if answer["why"]:
            raise _Refused(403, str(answer["why"]))
        return answer


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def _header_of(key: str) -> bytes:
    """How Flower's clients write a public key (PEM) into each request."""
    return b64encode(key.encode())


def _check_length(headers: dict[bytes, bytes], limit: int) -> None:
    length = headers.get(b"content-length", b"").decode("latin-1")
    if not (length.isascii() and length.isdigit()):
        raise _Refused(411, "a request that does not say how long it is")
    if whole_number(length, limit) is None:
        raise _Refused(413, f"a request of more than {limit} bytes")


async def _read(receive: Receive) -> bytes:
    """The server takes no more than content-length says."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(body)


async def _answer(send: Send, status: int, detail: str, **more: Any) -> None:
    body = json.dumps({"detail": detail, **more}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status != 200:
        headers.append((b"connection", b"close"))  # what is left of the body is not waited for
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def inherited() -> tuple[int, str, bool]:
    """Descriptor, token and whether TLS is on, as the coordinator set them for this process."""
    descriptor, secure, secret_file = os.environ.pop(GATE_VARIABLE).split(",", 2)
    with open(secret_file, "rb") as file:
        return int(descriptor), token_of(file.read()), secure == "1"
