"""Who may talk to a coordinator: both ends of its admission. What is refused, and why, is decided
by `security.Admission`.

`AdmissionMiddleware` stands before Flower's SuperLink, in its process: an ASGI application around
Flower's own. Flower's Fleet API checks each request's signature, but reads its body first; its
Control and Runtime API, on the same port, serve anybody. So with TLS only the coordinator, which
has a token, reaches anything but the Fleet API, and that is only for keys that the coordinator has
admitted: the `AdmissionController` in the coordinator's process is asked once for every key, over a
socket. Line by line in JSON:

    middleware -> controller    {"join": number, "key", "proof", "time", "from"}   may this key come in?
                                {"revoked": number, "list", "from"}                a revocation list (base64 of DER)
                                {"recipe": number, "proof", "time", "from"}        what is run here? (proof: with TLS)
                                {"handshake": reason, "from"}                      somebody did not manage TLS
                                {"sockets": number, "totals": [...] or null}
                                {"news": true}                                     a board has sent something
    controller -> middleware    {"in": key}                                        this key may come in
                                {"out": key}                                       not any more
                                {"answer": number, "why": "" or the reason}        to a "revoked" with "has": its list's
                                                                                   number; to a "recipe" with "recipe" and
                                                                                   "boards"
                                {"sockets": number}                                what have boards' connections carried?
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import hmac
import itertools
import json
import logging
import os
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeAlias

from edgegossip.flower.credentials import ASK_DOMAIN, KEY_DOMAIN
from edgegossip.profiling.records import Value
from edgegossip.security import tls
from edgegossip.security.admission import REVOKED, Admission
from edgegossip.security.limits import RateLimitedLog, SharedRateLimiter, TokenBuckets, host_of
from edgegossip.types import EdgegossipError, NodeId, PeerError
from edgegossip.untrusted import whole_number

JOIN_PATH = "/edgegossip/join"
REVOKED_PATH = "/edgegossip/revoked"
RECIPE_PATH = "/edgegossip/recipe"
RUN_PREFIX = "/edgegossip/run/"
GATE_VARIABLE = "EDGEGOSSIP_GATE"  # descriptor,0 or 1 with TLS,file of the secret
OBJECTS_VARIABLE = "EDGEGOSSIP_OBJECTS"  # names the folder of the SuperLink's large objects
TOKEN_HEADER = "x-edgegossip-token"
MAX_JOIN_BYTES = 16_384
MAX_LIST_BYTES = 1 << 20  # some 25,000 certificates
MAX_BODY_BYTES = 32 << 20  # Flower cuts arrays into pieces of 5 MiB
BODY_S = 10.0  # for a stranger's request to come as a whole
ANSWER_S = 20.0  # the coordinator may be busy with updates
NOT_ADMITTED = "the coordinator does not know this key"  # such as after its restart: the board introduces itself again

LOOK_S = 1.0  # between two looks at the revocation list
SOCKETS_S = 2.0
AHEAD_S, BEHIND_S = 5.0, 305.0  # Flower takes signatures of no other time

_BUSY = (429, 503)  # says nothing about who asked

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Bundles(Protocol):
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
        self.on_in: Callable[[str], None] = lambda key: None
        self.on_out: Callable[[str], None] = lambda key: None
        self.measure: Callable[[], list[int] | None] = lambda: None
        self._complaints = TokenBuckets(5.0, 50.0)
        threading.Thread(target=self._read, daemon=True, name="admission").start()

    def ask(self, what: str, question: dict[str, Any]) -> concurrent.futures.Future[dict[str, Any]]:
        """Ask the coordinator; `what` is join, revoked or recipe. The answer's "why" is empty when
        all is well."""
        answer: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        number = next(self._numbers)
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))  # answered, or not waited for any more
        self.tell({what: number, **question})
        return answer

    def news(self) -> None:
        """Say that a board has sent something."""
        self.tell({"news": True})

    def complain(self, reason: str, address: str) -> None:
        """Say that somebody did not manage TLS."""
        if self._complaints.take("", time.monotonic()):
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
        elif "in" in news:
            self.on_in(news["in"])
        elif "out" in news:
            self.on_out(news["out"])
        elif "sockets" in news:
            self.tell({"sockets": news["sockets"], "totals": self.measure()})


class AdmissionMiddleware:
    """Lets through who was admitted. `secure`: with TLS and keys; otherwise everybody on this
    network may come in, and only the coordinator's own connections are told from others'. `bundles`
    answers requests to its own paths; the coordinator's begin with RUN_PREFIX."""

    def __init__(self, app: App, line: Line, token: str, secure: bool, key_header: str, bundles: Bundles) -> None:
        self._app, self._line, self._token, self._secure = app, line, token.encode(), secure
        self._bundles = bundles
        self._key_header = key_header.lower().encode()
        self._admitted: set[bytes] = set()
        self._limiter = SharedRateLimiter()
        self._open_paths = {RECIPE_PATH: self._recipe}
        if secure:
            self._open_paths |= {JOIN_PATH: self._join, REVOKED_PATH: self._revoked}
        self.own: set[tuple[str, int]] = set()  # addresses from which the coordinator itself has come
        line.on_in = lambda key: self._admitted.add(_header_of(key))
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
                if scope["path"] in self._open_paths:
                    return await _answer(send, 200, "", **await self._unadmitted(scope, headers, receive))
                if self._secure:
                    self._check(scope["path"], scope["headers"])
            except _Refused as refused:
                return await _answer(send, refused.status, refused.detail)
        if self._bundles.serves(scope["path"]):
            return await self._bundles(scope, receive, send)
        await self._app(scope, receive, send)
        self._bundles.heard(scope["path"])

    def _check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check a request that is not the coordinator's. Raises _Refused, before anything of the
        body is read."""
        ours = self._bundles.serves(path) and not path.startswith(RUN_PREFIX)
        if not ours and not path.startswith("/v1/fleet/"):
            if path != "/health":
                raise _Refused(403, "only the coordinator may ask for this")
            return
        # Flower goes by the first header of a name, a dictionary by the last one: only who shows a
        # single key is sure to be the one that is looked at.
        shown = [value for name, value in headers if name == self._key_header]
        if len(shown) != 1 or shown[0] not in self._admitted:
            raise _Refused(401, NOT_ADMITTED)
        _check_length(dict(headers), MAX_BODY_BYTES)

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
        asked = await self._said(("key", "proof", "time"), scope, headers, receive)
        await self._ask("join", asked, scope)
        return {}

    async def _recipe(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """Give the recipe to a board that knows this address and nothing else."""
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
                return await _read(receive)
        except TimeoutError:
            raise _Refused(408, "a request that takes too long to come") from None

    async def _ask(self, what: str, question: dict[str, str], scope: Scope) -> dict[str, Any]:
        """Return the coordinator's answer. Raises _Refused when it is no."""
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
    # With a transfer-encoding too, the length would not count (RFC 9112, 6.3).
    if b"transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise _Refused(411, "a request that does not say how long it is")
    if whole_number(length, limit) is None:
        raise _Refused(413, f"a request of more than {limit} bytes")


async def _read(receive: Receive) -> bytes:
    """Read a body. The server takes no more than content-length says."""
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
    """Return descriptor, token and whether TLS is on, as the coordinator set them for this
    process."""
    descriptor, secure, secret_file = os.environ.pop(GATE_VARIABLE).split(",", 2)
    with open(secret_file, "rb") as file:
        return int(descriptor), token_of(file.read()), secure == "1"


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A key that came in."""

    name: NodeId
    serial: int
    node_id: int


class AdmissionController:
    """The coordinator's end: who may come in, who not any more, and what it said to whom. A thread.
    `admission` None: without TLS, where nobody shows who it is. `recipe` (TOML) is told to boards
    that ask for it. `register` gives a key (PEM) to Flower, by name; the board's id there.
    `refused` hears every refusal in a sentence; `lose` of a board that was revoked, and why; `news`
    that a board has sent something. All on the controller's thread."""

    def __init__(
        self,
        line: socket.socket,
        admission: Admission | None,
        boards: Sequence[NodeId],
        register: Callable[[bytes, NodeId], int],
        refused: Callable[[str], None],
        lose: Callable[[NodeId, str], None],
        news: Callable[[], None] = lambda: None,
        recipe: str = "",
    ) -> None:
        self._socket, self._admission, self._boards = line, admission, tuple(boards)
        self._register, self._refused, self._lose = register, refused, lose
        self._on_news, self._recipe = news, recipe
        self._admitted: dict[str, _Admitted] = {}  # by key
        self._lines = RateLimitedLog()
        self._lock = threading.Lock()
        self._totals: dict[int, list[int] | None] = {}
        self._carried = [0, 0, 0]
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True, name="admission")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and the line. Idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(LOOK_S + 1.0)
        self._socket.close()

    def name_of(self, node_id: int) -> NodeId | None:
        """Return whose certificate that board showed; None without TLS."""
        return next((a.name for a in list(self._admitted.values()) if a.node_id == node_id), None)

    @property
    def proves(self) -> bool:
        """Whether boards show certificates at all."""
        return self._admission is not None

    def sockets(self) -> dict[str, Value]:
        """What boards' connections have carried since the last call, as the kernel counts it in the
        SuperLink's process; nothing where it does not say."""
        number = time.monotonic_ns()
        self._tell({"sockets": number})
        with self._news:
            self._news.wait_for(lambda: number in self._totals or self._closed.is_set(), SOCKETS_S)
            found = self._totals.pop(number, None)
            self._totals.clear()
        if found is None:
            return {}
        new = [total - before for total, before in zip(found, self._carried, strict=True)]
        self._carried = found
        return dict(zip(("net/sent_bytes", "net/received_bytes", "net/link_bytes"), new, strict=True))

    def _run(self) -> None:
        self._socket.settimeout(LOOK_S)
        rest = b""
        while not self._closed.is_set():
            try:
                data = self._socket.recv(65_536)
                if not data:
                    return
            except TimeoutError:
                data = b""
            except OSError:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._safely(partial(self._hear, line))
            self._safely(self._look)

    def _safely(self, work: Callable[[], None]) -> None:
        """Do it whatever comes of it: nobody could come in any more if this thread ended, such as
        by a record that a full disk did not take."""
        try:
            work()
        except Exception as error:
            if self._lines.worth(f"{type(error).__name__}: {error}", time.monotonic()):
                logging.getLogger(__name__).exception("the coordinator's admission failed")

    def _hear(self, line: bytes) -> None:
        news = json.loads(line)
        if "news" in news:
            self._on_news()
        elif "sockets" in news:
            with self._news:
                self._totals[news["sockets"]] = news["totals"]
                self._news.notify_all()
        elif "handshake" in news and self._admission is not None:
            self._say(news["from"], tls.words_of(news["handshake"]))
        elif "join" in news:
            self._answer(news["join"], news["from"], lambda: self._admit(news["key"], news["proof"], news["time"]))
        elif "recipe" in news:
            self._answer(news["recipe"], news["from"], lambda: self._describe(news))
        elif "revoked" in news and self._admission is not None:
            self._answer(news["revoked"], news["from"], partial(self._take_list, self._admission, news["list"]), has=0)

    def _answer(self, number: int, asker: str, work: Callable[[], dict[str, Any]], **otherwise: Any) -> None:
        """Answer with what `work` gives, or why it did not."""
        try:
            self._tell({"answer": number, "why": "", **work()})
        except EdgegossipError as error:
            self._tell({"answer": number, "why": str(error), **otherwise})
            self._say(asker, str(error))
        except Exception:  # a bug: nobody waits for its answer
            self._tell({"answer": number, "why": "the coordinator failed at this question", **otherwise})
            raise

    def _take_list(self, admission: Admission, text: str) -> dict[str, Any]:
        try:
            admission.offer(b64decode(text))
            return {"has": admission.identity.revocations.number}
        finally:
            self._look(at_once=True)

    def _admit(self, key: str, proof: str, clock: str) -> dict[str, Any]:
        """Let a key in. Raises EdgegossipError with the reason."""
        if self._admission is None:
            raise PeerError("this coordinator runs without TLS and keys")
        name, serial = self._who(self._admission, KEY_DOMAIN, key, proof, clock)
        if key not in self._admitted:
            self._admitted[key] = _Admitted(name, serial, self._register(key.encode(), name))
        # Not with the answer, which waits for the event loop there: a revocation may be quicker, and
        # the key would come in after it went out.
        self._tell({"in": key})
        return {}

    def _describe(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what is run here, for a board of this run. Raises EdgegossipError with the
        reason."""
        if self._admission is not None:
            self._who(self._admission, ASK_DOMAIN, asked["time"], asked["proof"], asked["time"])
        return {"recipe": self._recipe, "boards": list(self._boards)}

    def _who(self, admission: Admission, domain: bytes, text: str, proof: str, clock: str) -> tuple[NodeId, int]:
        """Return which board of this run signed `text` in that domain, and its certificate's serial
        number. Raises EdgegossipError."""
        try:
            data, signature = domain + text.encode(), b64decode(proof, validate=True)
            ahead_s = datetime.fromisoformat(clock).timestamp() - time.time()
        except (ValueError, OverflowError):
            raise PeerError("it did not say who it is") from None
        caller = admission.by_signature("board", self._boards, data, signature)
        name = caller.subject.name
        if not -BEHIND_S < ahead_s < AHEAD_S:
            words = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the coordinator's"
            raise PeerError(f"the clock of {name} is {words}: set it and start the board again")
        return name, caller.serial

    def _look(self, at_once: bool = False) -> None:
        """Put out whose certificate was revoked; now and then, unless `at_once`."""
        if self._admission is None or not at_once and time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if not self._admission.look():
            return
        gone = {key: a for key, a in self._admitted.items() if self._admission.revoked(a.serial)}
        for key in gone:
            self._tell({"out": key})
            del self._admitted[key]
        for name in sorted({a.name for a in gone.values()} - {a.name for a in self._admitted.values()}):
            self._lose(name, REVOKED)

    def _say(self, address: str, why: str) -> None:
        host = host_of(address)
        text = f"refused {address.rpartition(':')[0]}: {why}"
        if self._lines.worth(text, time.monotonic(), host):
            self._refused(text)

    def _tell(self, document: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:
            self._socket.sendall(json.dumps(document).encode() + b"\n")
