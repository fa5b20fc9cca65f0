"""The SuperLink's own process: Flower's server without what is of no use here, with the admission
middleware before it, and the SuperLink's end of bundles.

Flower's Fleet API checks each request's signature, but reads its body first; its Control and
Runtime API, on the same port, serve anybody. So with TLS only the coordinator, which has a token,
reaches anything but the Fleet API, and that is only for keys that the coordinator has admitted
(`AdmissionMiddleware`, an ASGI application around Flower's own); it is asked over a
`ControlChannel`, whose other end, and whose words, are in admission.py.

Flower asks for each object of a message in a request of its own, 11 a message, and a client that
waits asks again and again. A request costs the SuperLink 3 to 6 ms whatever it is about. Here the
same handlers of Flower's do the same work on the same state, after the same checks of signature and
task, without a request each (`Batching`; link.py is the other end). What a board has been given is
given again until its next request says that it came through. Signs of life come with a token
that stands for the board's key, once that has signed one.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import concurrent.futures
import gc
import hmac
import importlib
import itertools
import json
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import object_store_factory
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from google.protobuf.message import DecodeError
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgegossip.flower._private.arrivals import Arrivals, watch
from edgegossip.flower._private.link import (
    BEAT_PATH,
    BEAT_TOKEN_HEADER,
    BUNDLE_BYTES,
    GIVE_PATH,
    HOLD_HEADER,
    MAX_HOLD_S,
    RUN_BUNDLE_BYTES,
    RUN_GIVE_PATH,
    RUN_TAKE_PATH,
    TAKE_PATH,
    is_whole,
    pack,
    unpack,
)
from edgegossip.flower._private.objects import REPLIES, SLACK_BYTES, BoardUsage, ObjectsOnDisk, asking
from edgegossip.flower.admission import ADMISSION_VARIABLE, OBJECTS_VARIABLE, token_of
from edgegossip.flower.connection import JOIN_PATH, NOT_ADMITTED, RECIPE_PATH, REVOKED_PATH, TOKEN_HEADER
from edgegossip.security.https import HANDSHAKE_S, SLOWEST_BYTES_PER_S
from edgegossip.security.limits import RateLimitedLog, SharedRateLimiter, TokenBuckets, endpoint, network_of
from edgegossip.telemetry.sockets import BoardSockets
from edgegossip.types import NodeId
from edgegossip.untrusted import printable, whole_number

SERVER = Node(node_id=1)  # the SuperLink's own address in every run
PULL_OBJECT_PATH = "/v1/fleet/pull-object"  # of boards, Flower's
PUSH_MESSAGES_PATH, PUSH_OBJECT_PATH = "/v1/fleet/push-messages", "/v1/fleet/push-object"
RUN_PREFIX = "/edgegossip/run/"  # of the coordinator's own paths
MAX_JOIN_BYTES = 16_384
MAX_LIST_BYTES = 1 << 20  # some 25,000 certificates
MAX_BODY_BYTES = 65_536  # of a board's request that brings nothing
MAX_TREE_BYTES = 1 << 20  # of one that says what is coming
BODY_S = 10.0  # for a stranger's request to come as a whole
# For a board's to come, to be worked on, and for its answer to go, each: so many seconds, and those
# that its bytes take on a link a third as fast as the slowest that docs/mesh.md names.
REQUEST_S = 60.0
MAX_REQUESTS = 4  # of one board at a time: it waits, gives signs of life, and answers
REQUESTS_PER_S, REQUEST_BURST = 50.0, 200.0  # of one board; the next ones wait
MAX_LINE = 1000  # characters of one in the log
ANSWER_S = 20.0  # the coordinator may be busy with updates
IDLE_MIDDLEWARE = (
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
    "RuntimeTracingMiddleware",
)
_BUSY = (429, 503)  # says nothing about who asked
_ORDINARY = (401, 412)  # a board that our earlier process knew, or that is back before it was missed
_ONCE = {
    name.lower().encode()
    for name in (
        FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
        TASK_TOKEN_HEADER,
        TOKEN_HEADER,
        "content-length",
        "transfer-encoding",
        HOLD_HEADER,
        BEAT_TOKEN_HEADER,
    )
}  # and the key: who reads the first of several, and who the last, would not read the same

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def flower_superlink() -> None:
    """Be the `flower-superlink` command: reads sys.argv and serves until a signal ends it.

    Middlewares of features that are off here (event logs, licences, traces of a paid service) cost
    every request half of its time and are left out; those that check signatures, tokens and
    accounts stay. The admission middleware stands before all of them.
    """
    from flwr.superlink import main as app

    ObjectsOnDisk.folder = Path(os.environ[OBJECTS_VARIABLE])
    factory: Any = object_store_factory
    factory.InMemoryObjectStore = ObjectsOnDisk
    cli: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    descriptor, token, secure = _inherited()
    control = ControlChannel(descriptor)
    arrivals = Arrivals(control.report_refusal)
    every = app._get_middleware

    def middleware() -> list[Middleware]:
        needed = [m for m in every() if getattr(m.cls, "__name__", "") not in IDLE_MIDDLEWARE]
        return [Middleware(_middleware, control, token, secure, arrivals), *needed]

    app._get_middleware = middleware
    _keep_log_short()
    if secure:
        watch(arrivals, control.report_handshake)
        cli.uvicorn = SimpleNamespace(run=_serve_tls)
    gc.collect()
    gc.freeze()  # what is loaded stays
    gc.enable()
    cli.flower_superlink()


def _keep_log_short() -> None:
    """Keep the log from growing with each request: what was refused the coordinator logs, and of
    Flower's own lines the same one comes once a minute, and few altogether."""
    lines, lock = RateLimitedLog(), threading.Lock()

    def is_worth(record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage(), MAX_LINE), None  # a board's words may be in it
        with lock:
            return lines.worth(record.msg, time.monotonic())

    for name in ("flwr", "uvicorn.error"):
        logging.getLogger(name).addFilter(is_worth)
    logging.getLogger("uvicorn.access").addFilter(lambda record: False)


def _inherited() -> tuple[int, str, bool]:
    """Return descriptor, token and whether TLS is on, as the coordinator set them for this
    process."""
    descriptor, secure, secret_file = os.environ.pop(ADMISSION_VARIABLE).split(",", 2)
    with open(secret_file, "rb") as file:
        return int(descriptor), token_of(file.read()), secure == "1"


class ControlChannel:
    """Speaks with the coordinator over a socket. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, concurrent.futures.Future[dict[str, Any]]] = {}
        self.on_in: Callable[[str, NodeId], None] = lambda key, board: None
        self.on_out: Callable[[str], None] = lambda key: None
        self.on_most: Callable[[int], None] = lambda size_bytes: None
        self.measure: Callable[[], list[int] | None] = lambda: None
        self._handshakes, self._refusals = TokenBuckets(5.0, 50.0), TokenBuckets(5.0, 50.0)
        self._taken = TokenBuckets(1.0, 1.0)
        threading.Thread(target=self._read, daemon=True, name="admission").start()

    def ask(self, what: str, question: dict[str, Any]) -> concurrent.futures.Future[dict[str, Any]]:
        """Ask the coordinator; `what` is join, revoked or recipe. The answer's "why" is empty when
        all is well."""
        answer: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        number = next(self._numbers)
        self._pending[number] = answer
        answer.add_done_callback(lambda _: self._pending.pop(number, None))  # answered, or not waited for any more
        self.tell({what: number, **question})
        return answer

    def news(self) -> None:
        """Say that a board has sent something."""
        self.tell({"news": True})

    def taken(self) -> None:
        """Say, at most once a second, that a board has taken in more of a large message."""
        if self._taken.take("", time.monotonic()):
            self.tell({"taken": True})

    def report_handshake(self, reason: str, address: str) -> None:
        """Say that somebody did not manage TLS."""
        if self._handshakes.take("", time.monotonic()):
            self.tell({"handshake": reason, "from": address})

    def report_refusal(self, reason: str, address: str, board: NodeId = "") -> None:
        """Say that a request was refused."""
        if self._refusals.take(board or network_of(address), time.monotonic()):
            self.tell({"refused": reason, "from": address, "board": board})

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
                self._receive(json.loads(line))

    def _receive(self, news: dict[str, Any]) -> None:
        if "answer" in news:
            asked = self._pending.get(news["answer"])
            if asked is not None and asked.set_running_or_notify_cancel():
                asked.set_result(news)
        elif "in" in news:
            self.on_in(news["in"], news["board"])
        elif "out" in news:
            self.on_out(news["out"])
        elif "most" in news:
            self.on_most(news["most"])
        elif "sockets" in news:
            self.tell({"sockets": news["sockets"], "totals": self.measure()})


class Place:
    """Is one open request of an admitted key, until `deadline`."""

    def __init__(self, key: bytes, size_bytes: int, deadline: asyncio.Timeout) -> None:
        self.key, self.size_bytes, self._deadline = key, size_bytes, deadline
        self._loop, self._open, self.ended = asyncio.get_running_loop(), True, False
        self._since_s = self._loop.time()

    def begin(self, size_bytes: int = 0) -> None:
        """Give what it does now the time that so many bytes take."""
        self._since_s = self._loop.time()
        self.more(size_bytes)

    def more(self, size_bytes: int) -> None:
        """Give it the time that so many bytes take, since it began."""
        if self._open:
            self._deadline.reschedule(self._since_s + REQUEST_S + size_bytes / SLOWEST_BYTES_PER_S)

    def end(self) -> None:
        """End it. From any thread."""
        self.ended = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._deadline.reschedule(self._loop.time())

    def close(self) -> None:
        self._open = False


class AdmissionMiddleware:
    """Lets through who was admitted, a few requests of each at a time. `secure`: with TLS and keys;
    otherwise everybody on this network may come in, and only the coordinator's own connections are
    told from others'. `bundles` answers requests to its own paths; the coordinator's begin with
    RUN_PREFIX."""

    def __init__(
        self,
        app: App,
        control: ControlChannel,
        token: str,
        secure: bool,
        key_header: str,
        bundles: Batching,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._app, self._control, self._token, self._secure = app, control, token.encode(), secure
        self._bundles, self._arrivals = bundles, arrivals or Arrivals(control.report_refusal)
        self._key_header = key_header.lower().encode()
        self._admitted: dict[bytes, BoardUsage] = {}  # by key
        self._boards: dict[NodeId, BoardUsage] = {}
        self._places: dict[NodeId, list[Place]] = {}  # the oldest first
        self._requests = TokenBuckets(REQUESTS_PER_S, REQUEST_BURST)
        self._most_bytes = SLACK_BYTES
        self._limiter = SharedRateLimiter()
        self._open_paths = {RECIPE_PATH: self._recipe}
        if secure:
            self._open_paths |= {JOIN_PATH: self._join, REVOKED_PATH: self._revoked}
        self.own: set[tuple[str, int]] = set()  # addresses from which the coordinator itself has come
        control.on_in, control.on_out, control.on_most = self._let_in, self._put_out, self._allow

    def _let_in(self, key: str, name: NodeId) -> None:
        if name not in self._boards:
            self._boards[name] = BoardUsage(name, lambda why: self._control.report_refusal(why, "", name))
            self._boards[name].most_bytes = self._most_bytes
        self._admitted[_header_of(key)] = self._boards[name]

    def _put_out(self, key: str) -> None:
        """Take a key back; what is open with it ends."""
        header = _header_of(key)
        board = self._admitted.pop(header, None)
        for place in list(self._places.get(board.name, ())) if board is not None else ():
            if place.key == header:
                place.end()

    def _allow(self, size_bytes: int) -> None:
        """Take note of how large the run's frames may be."""
        self._most_bytes = size_bytes + SLACK_BYTES
        for board in list(self._boards.values()):
            board.most_bytes = self._most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or not self._secure:
                await self._app(scope, receive, send)
            return
        with self._arrivals.asking(scope["client"]):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say why not."""
        headers = dict(scope["headers"])
        board: BoardUsage | None = None
        try:
            self._check_once(scope["headers"])
            if hmac.compare_digest(headers.get(TOKEN_HEADER.encode(), b""), self._token):
                self.own.add(tuple(scope["client"]))
                self._arrivals.admit(scope["client"])
            elif scope["path"] in self._open_paths:
                return await _answer(send, 200, "", **await self._unadmitted(scope, headers, receive))
            elif self._secure:
                if scope["path"] == BEAT_PATH and BEAT_TOKEN_HEADER.encode() in headers:
                    headers[self._key_header] = self._bundles.key_of(headers[BEAT_TOKEN_HEADER.encode()])
                board = self._board(scope["path"], headers)
                if board is not None:
                    self._arrivals.admit(scope["client"])
                    return await self._serve(board, scope, headers, receive, send)
        except _Refused as refused:
            if not refused.told:
                self._control.report_refusal(refused.detail, endpoint(*scope["client"]), board.name if board else "")
            return await _answer(send, refused.status, refused.detail)
        await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._bundles.serves(scope["path"]):
            return await self._bundles(scope, receive, send)
        await self._app(scope, receive, send)
        self._bundles.heard(scope["path"])

    def _check_once(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise _Refused where a header that says who asks, or for how much, is there twice."""
        found = [name for name, _ in headers if name in _ONCE or name == self._key_header]
        if len(found) != len(set(found)):
            raise _Refused(400, "a request with a header twice that counts once")

    def _board(self, path: str, headers: dict[bytes, bytes]) -> BoardUsage | None:
        """Return who asks, where that is not the coordinator; None for what anybody may ask. Raises
        _Refused, before anything of the body is read."""
        ours = self._bundles.serves(path) and not path.startswith(RUN_PREFIX)
        if not ours and not path.startswith("/v1/fleet/"):
            if path != "/health":
                raise _Refused(403, "only the coordinator may ask for this")
            return None
        board = self._admitted.get(headers.get(self._key_header, b""))
        if board is None:
            raise _Refused(
                401, NOT_ADMITTED, told=True
            )  # as after the coordinator's restart: it is told by coming back
        return board

    async def _serve(
        self, board: BoardUsage, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Answer a board's request, once all of it is here. Raises _Refused."""
        size_bytes = _check_length(headers, self._limit(board, scope["path"]))
        begun, refusal = False, ""
        try:
            async with asyncio.timeout(REQUEST_S) as deadline:
                place = Place(headers[self._key_header], size_bytes, deadline)

                async def answer(message: MutableMapping[str, Any]) -> None:
                    nonlocal begun, refusal
                    begun = True
                    if message.get("status", 200) >= 400 and message["status"] not in _ORDINARY:
                        # What is not there has any name: each line would be another one.
                        what = printable(scope["path"]) if message["status"] != 404 else "what is not there"
                        refusal = f"its request for {what} was answered with {message['status']}"
                    place.begin(len(message.get("body", b"")))
                    await send(message)

                self._take_place(board, place)
                try:
                    while not self._requests.take(board.name, time.monotonic()):
                        await asyncio.sleep(1 / REQUESTS_PER_S)
                    body = await _read(receive, place.more)
                    place.begin()
                    asking.set(board)
                    await self._pass(scope, _Whole(body, receive), answer)
                finally:
                    place.close()
                    self._places[board.name].remove(place)
        except TimeoutError:
            if not begun:
                raise _Refused(408, "a request that takes too long, or makes room for newer ones") from None
        if refusal:
            self._control.report_refusal(refusal, endpoint(*scope["client"]), board.name)

    def _limit(self, board: BoardUsage, path: str) -> int:
        """Return how many bytes a request for this may have."""
        if path in (GIVE_PATH, PUSH_OBJECT_PATH):
            return min(board.most_bytes, BUNDLE_BYTES + SLACK_BYTES)
        return MAX_TREE_BYTES if path == PUSH_MESSAGES_PATH else MAX_BODY_BYTES

    def _take_place(self, board: BoardUsage, place: Place) -> None:
        """Make room for a request of this board: of too many, or too large ones together, its
        oldest go, which it has likely forgotten."""
        places = self._places.setdefault(board.name, [])
        left = [p for p in places if not p.ended]
        while left and (
            len(left) >= MAX_REQUESTS or sum(p.size_bytes for p in left) + place.size_bytes > REPLIES * board.most_bytes
        ):
            left.pop(0).end()
        places.append(place)

    async def _unadmitted(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """Answer somebody who may be a stranger. Raises _Refused."""
        host = scope["client"][0]
        try:
            with self._limiter.asking(host):
                return await self._open_paths[scope["path"]](scope, headers, receive)
        except _Refused as refused:
            if refused.status not in _BUSY:
                self._limiter.refused(host, time.monotonic())
            raise

    async def _join(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        asked = await self._fields(("key", "proof", "time"), scope, headers, receive)
        await self._ask("join", asked, scope)
        return {}

    async def _recipe(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """Give the recipe to a board that knows this address and nothing else."""
        asked = await self._fields(("proof", "time") if self._secure else (), scope, headers, receive)
        answer = await self._ask("recipe", asked, scope)
        return {name: answer[name] for name in ("recipe", "boards")}

    async def _fields(
        self, names: tuple[str, ...], scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> dict[str, str]:
        body = await self._body(scope, headers, MAX_JOIN_BYTES, receive)
        try:
            document = json.loads(body)
            fields = {name: str(document[name]) for name in names}
            "".join(fields.values()).encode()  # JSON has texts that UTF-8 has not
            return fields
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Refused(400, "this is not how a board introduces itself") from None

    async def _revoked(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """Take a list from anybody: it is signed by the fleet's authority, or it changes
        nothing."""
        body = await self._body(scope, headers, MAX_LIST_BYTES, receive)
        answer = await self._ask("revoked", {"list": b64encode(body).decode()}, scope)
        return {"has": int(answer["has"])}

    async def _body(self, scope: Scope, headers: dict[bytes, bytes], limit: int, receive: Receive) -> bytes:
        _check_length(headers, limit)
        if not self._limiter.allows(scope["client"][0], time.monotonic()):
            raise _Refused(429, "too many boards at once; try again in a moment")
        try:
            async with asyncio.timeout(BODY_S):
                return bytes(await _read(receive))
        except TimeoutError:
            raise _Refused(408, "a request that takes too long to come") from None

    async def _ask(self, what: str, question: dict[str, str], scope: Scope) -> dict[str, Any]:
        """Return the coordinator's answer. Raises _Refused when it is no."""
        try:
            asked = self._control.ask(what, {**question, "from": endpoint(*scope["client"])})
            answer = await asyncio.wait_for(asyncio.wrap_future(asked), ANSWER_S)
        except TimeoutError:
            raise _Refused(503, "the coordinator is busy; try again in a moment") from None
        if answer["why"]:
            raise _Refused(403, str(answer["why"]), told=True)
        return answer


class _Refused(Exception):
    """`told`: the coordinator knows already, or has no need to."""

    def __init__(self, status: int, detail: str, told: bool = False) -> None:
        super().__init__(detail)
        self.status, self.detail, self.told = status, detail, told


def _header_of(key: str) -> bytes:
    """Return how Flower's clients write a public key (PEM) into each request."""
    return b64encode(key.encode())


def _check_length(headers: dict[bytes, bytes], limit: int) -> int:
    """Return how many bytes a request has. Raises _Refused."""
    length = headers.get(b"content-length", b"").decode("latin-1")
    # With a transfer-encoding too, the length would not count (RFC 9112, 6.3).
    if b"transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise _Refused(411, "a request that does not say how long it is")
    size_bytes = whole_number(length, limit)
    if size_bytes is None:
        raise _Refused(413, f"a request of more than {limit} bytes")
    return size_bytes


async def _read(receive: Receive, more: Callable[[int], None] = lambda size_bytes: None) -> bytearray:
    """Read a body. The server takes no more than content-length says. `more` hears how much has
    come."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        more(len(body))
        if message["type"] != "http.request" or not message.get("more_body"):
            return body


class _Whole:
    """Gives a body that has been read already, and then what comes after it."""

    def __init__(self, body: bytearray, receive: Receive) -> None:
        self._body: bytes | None = bytes(body)
        self._receive = receive

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _answer(send: Send, status: int, detail: str, **more: Any) -> None:
    body = json.dumps({"detail": detail, **more}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status != 200:
        headers.append((b"connection", b"close"))  # what is left of the body is not waited for
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _middleware(app: App, control: ControlChannel, token: str, secure: bool, arrivals: Arrivals) -> AdmissionMiddleware:
    bundles = Batching(control.news, control.taken)
    made = AdmissionMiddleware(app, control, token, secure, FLEET_HTTP_PUBLIC_KEY_HEADER, bundles, arrivals)
    control.measure = BoardSockets(made.own).sample
    return made


def _serve_tls(app: Any, **options: Any) -> None:
    """Serve as `uvicorn.run` does, with TLS 1.3 only, on Python's own loop, whose handshakes can be
    watched."""
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class OneRequestAtATime(HttpToolsProtocol):
        """Ends a connection that asks on and on before it was answered: uvicorn keeps all that has
        come of such questions. One may wait, since the last of an answer comes before its end."""

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            if len(self.pipeline) > 1:
                self.pipeline.clear()
                self.transport.abort()

    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = 2 * HANDSHAKE_S  # that of arrivals is shorter
    # As many connections as its backlog come in at once, before we see one. No proxy stands
    # before it, whatever a request says.
    ours = {"loop": "asyncio", "http": OneRequestAtATime, "ws": "none", "backlog": 128, "proxy_headers": False}
    config = uvicorn.Config(app, **(options | ours))
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    gc.freeze()  # what has come since: arrivals look for garbage often, and need not look at this
    with suppress(KeyboardInterrupt):  # as `uvicorn.run` does
        uvicorn.Server(config).run()


class Batching:
    """Serves the paths of bundles; lives on the server's event loop.

    `on_news` is called when a board has sent something, `on_taken` when it has asked for one more
    object of a large message."""

    def __init__(self, on_news: Callable[[], None], on_taken: Callable[[], None]) -> None:
        self._on_news, self._on_taken = on_news, on_taken
        self._news = asyncio.Event()  # there may be something for boards; another one each time
        # The last message of each board, until it says that it has it.
        self._given: dict[int, PullMessagesResponse] = {}
        self._beat_tokens: dict[bytes, tuple[bytes, int]] = {}  # the key that each stands for, and Flower's id
        self._handlers: dict[str, Callable[[Request], Awaitable[bytes]]] = {
            TAKE_PATH: self._take,
            GIVE_PATH: self._give,
            BEAT_PATH: self._beat,
            PUSH_MESSAGES_PATH: self._push_messages,
            RUN_TAKE_PATH: self._run_take,
            RUN_GIVE_PATH: self._run_give,
        }

    def serves(self, path: str) -> bool:
        return path in self._handlers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; Flower's own translator makes answers of errors."""
        request = Request(scope, receive)

        async def answer(request: Request) -> Response:
            try:
                return Response(await self._handlers[request.url.path](request), media_type="application/octet-stream")
            except (DecodeError, UnicodeDecodeError, ValueError, IndexError) as error:
                return JSONResponse({"detail": f"a malformed request: {error}"}, 400)

        response = await http_error_translator(request, answer)
        await response(scope, receive, send)

    def heard(self, path: str) -> None:
        """Take note that a request of Flower's own has been answered: whoever waits for what it may
        have brought looks again."""
        if path.startswith("/v1/fleet/push-"):
            self._on_news()
        elif path == PULL_OBJECT_PATH:
            self._on_taken()
        elif path.startswith("/v1/runtime/push-"):
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def key_of(self, token: bytes) -> bytes:
        """Return the key for which this token stands, as it is written in a request; empty for
        none."""
        return self._beat_tokens.get(token, (b"", 0))[0]

    async def _beat(self, request: Request) -> bytes:
        """Take a sign of life; return the token with which the next may come, and nothing for who
        is unknown. A key has one token, which is worth no more than it."""
        state, token = request.app.state.linkstate_factory.state(), request.headers.get(BEAT_TOKEN_HEADER, "").encode()
        if token:
            known = self._beat_tokens.get(token)
            beat = state.acknowledge_node_heartbeat
            good = known is not None and await run_in_threadpool(beat, known[1], HEARTBEAT_MIN_INTERVAL)
            return token if good else b""
        asked = SendNodeHeartbeatRequest.FromString(await request.body())
        await run_in_threadpool(_authenticate, request, asked)
        if not (await run_in_threadpool(fleet_handlers.send_node_heartbeat, asked, state)).success:
            return b""
        key, node = request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER].encode(), asked.node.node_id
        for old in [t for t, whose in self._beat_tokens.items() if node == whose[1]]:
            del self._beat_tokens[old]
        token = secrets.token_urlsafe(16).encode()
        self._beat_tokens[token] = key, node
        return token

    async def _take(self, request: Request) -> bytes:
        """Return the next message for a board; nothing when there is none within the time that it
        waits."""
        asked = PullMessagesRequest.FromString(await request.body())
        until = time.monotonic() + min(MAX_HOLD_S, max(0.0, float(request.headers.get(HOLD_HEADER, "0"))))
        await run_in_threadpool(_authenticate, request, asked)
        state = request.app.state.linkstate_factory.state()
        gone = asyncio.ensure_future(request.receive())  # all of the body is here, so this is the end of the connection
        try:
            while True:
                news = self._news
                found = await run_in_threadpool(self._next, state, asked)
                left_s = until - time.monotonic()
                if found or left_s <= 0.0:
                    return found
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, gone}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if gone.done():
                    return b""
        finally:
            gone.cancel()

    def _next(self, state: Any, asked: PullMessagesRequest) -> bytes:
        node = asked.node
        last = self._given.get(node.node_id)
        if last is not None and last.messages_list[0].metadata.message_id in asked.message_ids:
            state.object_store.delete(last.messages_list[0].metadata.message_id)
            del self._given[node.node_id]
            last = None
        found = last or fleet_handlers.pull_messages(PullMessagesRequest(node=node), state, state.object_store)
        if not found.messages_list:
            return b""
        self._given[node.node_id] = found
        run_id = found.messages_list[0].metadata.run_id

        def pull(object_id: str) -> bytes:
            ask = PullObjectRequest(node=node, run_id=run_id, object_id=object_id)
            return bytes(fleet_handlers.pull_object(ask, state).object_content)

        return pack(found.SerializeToString(), _contents(found.message_object_trees, pull, BUNDLE_BYTES))

    async def _give(self, request: Request) -> bytes:
        """Take a board's answer."""
        head, objects = unpack(await request.body())
        if len(head) > MAX_TREE_BYTES:
            raise ValueError("a head that is larger than a reply's")
        answer = await run_in_threadpool(self._store, request, PushMessagesRequest.FromString(head), objects)
        self._on_news()
        return answer

    async def _push_messages(self, request: Request) -> bytes:
        """Take the head of a board's answer, whose objects follow one by one."""
        given = PushMessagesRequest.FromString(await request.body())
        answer = await run_in_threadpool(self._store, request, given, {})
        self._on_news()
        return answer

    def _store(self, request: Request, given: PushMessagesRequest, objects: dict[str, bytes]) -> bytes:
        _authenticate(request, given)
        state, run_id = request.app.state.linkstate_factory.state(), given.messages_list[0].metadata.run_id
        if not _is_asked(state, given):
            return bytes(PushMessagesResponse().SerializeToString())  # it comes too late: nothing is kept
        answer = fleet_handlers.push_messages(given, state)
        for push in _wanted(answer, objects, given.node, run_id):
            fleet_handlers.push_object(push, state)
        return bytes(answer.SerializeToString())

    async def _run_take(self, request: Request) -> bytes:
        """Return replies to the coordinator's messages that are there; those that go into one
        answer whole count as received."""
        body = await request.body()
        return await run_in_threadpool(self._replies, request, PullAppMessagesRequest.FromString(body))

    def _replies(self, request: Request, asked: PullAppMessagesRequest) -> bytes:
        state, task = _state_and_task(request)
        found = runtime_handlers.pull_messages(asked, state, task)

        def pull(object_id: str) -> bytes:
            ask = PullObjectRequest(node=SERVER, run_id=task.run_id, object_id=object_id)
            return bytes(runtime_handlers.pull_object(ask, state, task).object_content)

        contents = _contents(found.message_object_trees, pull, RUN_BUNDLE_BYTES)
        for tree in found.message_object_trees:
            if is_whole(tree, contents):
                state.object_store.delete(tree.object_id)
        return pack(found.SerializeToString(), contents)

    async def _run_give(self, request: Request) -> bytes:
        """Take the coordinator's messages."""
        head, objects = unpack(await request.body())
        given = PushAppMessagesRequest.FromString(head)
        answer = await run_in_threadpool(self._store_for_boards, request, given, objects)
        self._wake()
        return answer

    def _store_for_boards(self, request: Request, given: PushAppMessagesRequest, objects: dict[str, bytes]) -> bytes:
        state, task = _state_and_task(request)
        answer = runtime_handlers.push_messages(given, state, task)
        for push in _wanted(answer, objects, SERVER, task.run_id):
            runtime_handlers.push_object(push, state, task)
        return bytes(answer.SerializeToString())


def _wanted(answer: Any, objects: dict[str, bytes], node: Node, run_id: int) -> Iterator[PushObjectRequest]:
    """Yield those of a message's objects that the answer to its head asks for."""
    wanted = set(answer.objects_to_push)
    for object_id, content in objects.items():
        if object_id in wanted:
            yield PushObjectRequest(
                node=node,
                run_id=run_id,
                session_id=answer.session_id,
                object_id=object_id,
                object_content=content,
            )


def _is_asked(state: Any, given: PushMessagesRequest) -> bool:
    """Return whether this board owes this answer. Raises ValueError for a message that is none."""
    [message], [tree] = given.messages_list, given.message_object_trees
    about = message.metadata
    if about.src_node_id != given.node.node_id or tree.object_id != about.message_id:
        raise ValueError("a message of another board, or with the content of another one")
    with state.lock:
        asked = state.message_ins_store.get(about.reply_to_message_id)
        answer_id = state.message_ins_id_to_message_res_id.get(about.reply_to_message_id, about.message_id)
        return asked is not None and asked.metadata.dst_node_id == given.node.node_id and answer_id == about.message_id


def _authenticate(request: Request, message: Any) -> None:
    """Do Flower's check of signature and board. Raises what Flower's translator makes a 401 of."""
    request.state.protobuf_request = message
    authenticate_node(request)


def _state_and_task(request: Request) -> tuple[Any, Any]:
    """Raises FlowerError on a wrong token."""
    state = request.app.state.runtime_state_factory.state()
    return state, authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)


def _contents(trees: Iterable[ObjectTree], pull: Callable[[str], bytes], left: int) -> dict[str, bytes]:
    """Return objects that are there, children before parents, as many as go into one answer of
    `left` bytes."""
    found: dict[str, bytes] = {}
    for tree in trees:
        for item in iterate_object_tree(tree):
            if item.object_id in found or left <= 0:
                continue
            content = pull(item.object_id)
            if content and len(content) <= left:
                found[item.object_id] = content
                left -= len(content)
    return found
