"""The SuperLink's own process: Flower's server without what is of no use here, with the admission
middleware before it, and the SuperLink's end of bundles.

Flower asks for each object of a message in a request of its own, 11 a message, and a client that
waits asks again and again. A request costs the SuperLink 3 to 6 ms whatever it is about. Here the
same handlers of Flower's do the same work on the same state, after the same checks of signature and
task, without a request each (`Batching`; link.py is the other end). What a board has been given is
given again until its next request says that it came through.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import asyncio.sslproto
import importlib
import os
import ssl
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import object_store_factory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from google.protobuf.message import DecodeError
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgegossip.flower import admission
from edgegossip.flower._private.link import (
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
from edgegossip.profiling.sockets import BoardSockets

MEMORY_BYTES = 256 << 20  # of objects that the store keeps in memory; what is more lies on the disk
LARGE_BYTES = 1 << 20  # of an object that may
SERVER = Node(node_id=1)  # the SuperLink's own address in every run
HANDSHAKE_S = 10.0  # slow boards on slow links
IDLE_MIDDLEWARE = (
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
    "RuntimeTracingMiddleware",
)


def flower_superlink() -> None:
    """Be the `flower-superlink` command: reads sys.argv and serves until a signal ends it.

    Middlewares of features that are off here (event logs, licences, traces of a paid service) cost
    every request half of its time and are left out; those that check signatures, tokens and
    accounts stay. The admission middleware stands before all of them.
    """
    from flwr.superlink import main as app

    ObjectsOnDisk.folder = Path(os.environ[admission.OBJECTS_VARIABLE])
    object_store_factory.InMemoryObjectStore = ObjectsOnDisk  # type: ignore[misc]
    cli: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    descriptor, token, secure = admission.inherited()
    line = admission.Line(descriptor)
    every = app._get_middleware

    def middleware() -> list[Middleware]:
        needed = [m for m in every() if getattr(m.cls, "__name__", "") not in IDLE_MIDDLEWARE]
        return [Middleware(_middleware, line, token, secure), *needed]

    app._get_middleware = middleware
    if secure:
        _report_handshakes(line)
        cli.uvicorn = SimpleNamespace(run=_serve_tls)
    cli.flower_superlink()


class ObjectsOnDisk(InMemoryObjectStore):
    """Flower's store of objects, with no more than MEMORY_BYTES of large ones in memory: models of
    many boards may wait here at a time. A file goes with its object."""

    folder: Path

    def put(self, object_id: str, object_content: bytes) -> None:
        super().put(object_id, object_content)
        if len(object_content) < LARGE_BYTES:
            return
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None or isinstance(entry.content, _OnDisk):  # deleted meanwhile, or sent once more
                return
            others: Any = (e.content for e in self.store.values() if e is not entry)
            if sum(len(c) for c in others if isinstance(c, bytes)) + len(object_content) > MEMORY_BYTES:
                with suppress(OSError):  # no room there: then it stays here
                    entry.content = _OnDisk(self.folder / object_id, object_content)  # type: ignore[assignment]

    def get(self, object_id: str) -> bytes | None:
        content: Any = super().get(object_id)
        return content.read() if isinstance(content, _OnDisk) else content


class _OnDisk:
    """The content of an object in a file of its own, which goes when nobody refers to this."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        weakref.finalize(self, path.unlink, missing_ok=True)

    def read(self) -> bytes:
        return self._path.read_bytes()


def _middleware(app: admission.App, line: admission.Line, token: str, secure: bool) -> admission.AdmissionMiddleware:
    made = admission.AdmissionMiddleware(app, line, token, secure, FLEET_HTTP_PUBLIC_KEY_HEADER, Batching(line.news))
    line.measure = BoardSockets(made.own).sample
    return made


def _serve_tls(app: Any, **options: Any) -> None:
    """`uvicorn.run` with TLS 1.3 only, on Python's own loop, whose handshakes can be watched."""
    import uvicorn

    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_S
    config = uvicorn.Config(app, **(options | {"loop": "asyncio"}))
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    with suppress(KeyboardInterrupt):  # as `uvicorn.run` does
        uvicorn.Server(config).run()


def _report_handshakes(line: admission.Line) -> None:
    """asyncio drops what went wrong in a handshake. Its one function that knows is wrapped."""
    protocol: Any = asyncio.sslproto.SSLProtocol
    complete = protocol._on_handshake_complete

    def watched(self: Any, error: BaseException | None) -> None:
        if error is not None:
            where = self._transport.get_extra_info("peername") if self._transport is not None else None
            address = f"{where[0]}:{where[1]}" if where else "somebody:0"
            line.complain(_reason(error), address)
        complete(self, error)

    protocol._on_handshake_complete = watched


def _reason(error: BaseException) -> str:
    return (error.reason or str(error)) if isinstance(error, ssl.SSLError) else "EOF"


class Batching:
    """Serves the paths of bundles; lives on the server's event loop.

    `on_news` is called when a board has sent something."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._news = asyncio.Event()  # there may be something for boards; another one each time
        self._given: dict[
            int, PullMessagesResponse
        ] = {}  # the last message of each board, until it says that it has it
        self._work: dict[str, Callable[[Request], Awaitable[bytes]]] = {
            TAKE_PATH: self._take,
            GIVE_PATH: self._give,
            RUN_TAKE_PATH: self._run_take,
            RUN_GIVE_PATH: self._run_give,
        }

    def serves(self, path: str) -> bool:
        return path in self._work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Flower's own translator makes answers of errors."""
        request = Request(scope, receive)

        async def answer(request: Request) -> Response:
            try:
                return Response(await self._work[request.url.path](request), media_type="application/octet-stream")
            except (DecodeError, UnicodeDecodeError, ValueError, IndexError) as error:
                return JSONResponse({"detail": f"a malformed request: {error}"}, 400)

        response = await http_error_translator(request, answer)
        await response(scope, receive, send)

    def heard(self, path: str) -> None:
        """A request of Flower's own has been answered: whoever waits for what it may have brought
        looks again."""
        if path.startswith("/v1/fleet/push-"):
            self._on_news()
        elif path.startswith("/v1/runtime/push-"):
            self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _take(self, request: Request) -> bytes:
        """The next message for a board; nothing when there is none within the time that it
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
        """A board's answer."""
        head, objects = unpack(await request.body())
        given = PushMessagesRequest.FromString(head)
        if given.messages_list[0].metadata.src_node_id != given.node.node_id:
            raise ValueError("a message of another board")
        answer = await run_in_threadpool(self._store, request, given, objects)
        self._on_news()
        return answer

    def _store(self, request: Request, given: PushMessagesRequest, objects: dict[str, bytes]) -> bytes:
        _authenticate(request, given)
        state, run_id = request.app.state.linkstate_factory.state(), given.messages_list[0].metadata.run_id
        answer = fleet_handlers.push_messages(given, state)
        wanted = set(answer.objects_to_push)
        for object_id, content in objects.items():
            if object_id in wanted:
                push = PushObjectRequest(
                    node=given.node,
                    run_id=run_id,
                    session_id=answer.session_id,
                    object_id=object_id,
                    object_content=content,
                )
                fleet_handlers.push_object(push, state)
        return bytes(answer.SerializeToString())

    async def _run_take(self, request: Request) -> bytes:
        """Replies to the coordinator's messages that are there; those that go into one answer whole
        count as received."""
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
        """The coordinator's messages."""
        head, objects = unpack(await request.body())
        given = PushAppMessagesRequest.FromString(head)
        answer = await run_in_threadpool(self._store_for_boards, request, given, objects)
        self._wake()
        return answer

    def _store_for_boards(self, request: Request, given: PushAppMessagesRequest, objects: dict[str, bytes]) -> bytes:
        state, task = _state_and_task(request)
        answer = runtime_handlers.push_messages(given, state, task)
        wanted = set(answer.objects_to_push)
        for object_id, content in objects.items():
            if object_id in wanted:
                push = PushObjectRequest(
                    node=SERVER,
                    run_id=task.run_id,
                    session_id=answer.session_id,
                    object_id=object_id,
                    object_content=content,
                )
                runtime_handlers.push_object(push, state, task)
        return bytes(answer.SerializeToString())


def _authenticate(request: Request, message: Any) -> None:
    """Flower's check of signature and board. Raises what Flower's translator makes a 401 of."""
    request.state.protobuf_request = message
    authenticate_node(request)


def _state_and_task(request: Request) -> tuple[Any, Any]:
    """Raises FlowerError on a wrong token."""
    state = request.app.state.runtime_state_factory.state()
    return state, authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)


def _contents(trees: Iterable[ObjectTree], pull: Callable[[str], bytes], left: int) -> dict[str, bytes]:
    """Objects that are there, children before parents, as many as go into one answer of `left`
    bytes."""
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
