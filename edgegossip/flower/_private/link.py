"""Links to the SuperLink: a board's own, and what both ends of a run need for theirs.

Flower moves the content of a message as a tree of objects, each in a signed request. Here a message
and all its content are one request where they fit into BUNDLE_BYTES (`pack`); the SuperLink's end
of that is in superlink.py. What is larger travels object by object, as Flower sends it (`Objects`).

`FleetLink` is a board's connection; runtime.py has the coordinator's. Both speak through Flower's
HTTP clients with what is at the end of this file: how they connect, and what their errors mean.
"""

from __future__ import annotations

import json
import ssl
import struct
import threading
from base64 import b64encode
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Any, TypeVar

import httpx
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    HEARTBEAT_MIN_INTERVAL,
    TIMESTAMP_HEADER,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
    HEAD_BODY_DIVIDER,
)
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufRequestContext
from flwr.supercore.version import package_name, package_version
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from edgegossip.flower.connection import (
    JOIN_PATH,
    KEY_DOMAIN,
    REQUEST_S,
    TOKEN_HEADER,
    BoardCredentials,
    LinkError,
    answered,
    speaks_tls,
    without_identity,
)
from edgegossip.memory import Buffer, Spool
from edgegossip.types import PeerError

BUNDLE_BYTES = 8 << 20  # of content in one request; what is larger travels object by object, as Flower sends it
RUN_BUNDLE_BYTES = 32 << 20  # of replies to the coordinator, which is on the same machine
TAKE_PATH, GIVE_PATH = "/edgegossip/take", "/edgegossip/give"  # of boards
RUN_TAKE_PATH, RUN_GIVE_PATH = "/edgegossip/run/take", "/edgegossip/run/give"  # of the coordinator
BEAT_PATH = "/edgegossip/beat"  # of boards: a sign of life
BEAT_TOKEN_HEADER = "x-edgegossip-beat"  # that the first one was answered with: it says whose the next are
HOLD_HEADER = "x-edgegossip-hold"  # for how many seconds an answer may be waited for
MAX_HOLD_S = 10.0
MAX_PARTS = 100_000  # of a bundle
_CHUNKS_HEAD_BYTES = 64  # more than stands before the body of an ArrayChunk: its name, no children, a length

_Client = TypeVar("_Client", bound=ProtobufClient)


# -- a board's connection


class FleetLink:
    """Is a board's connection to a SuperLink: one process, one HTTP client, one key of its own.

    Thread-safe. Methods raise LinkError. With `credentials` over TLS; the key is then signed with
    the board's own, so that a process that was killed and the next one are two SuperNodes of one
    board."""

    def __init__(self, address: str, credentials: BoardCredentials | None = None, spool: Spool = Spool()) -> None:
        self._address, self._credentials = address, credentials
        signature = Signature()
        self._public = signature.public
        self.meter = ByteMeter()
        context = None if credentials is None else credentials.context
        self._client = connect(FleetHttpClient, address, context, [signature, self.meter])
        self._node = Node()
        self._received = ""  # id of the last message
        self._beat_token = ""
        self._objects = Objects(self._client, self._node, spool)

    @property
    def moved(self) -> int:
        """How many objects of large messages have gone either way."""
        return self._objects.moved

    def join(self) -> int:
        """Register and go online; this board's id in Flower."""
        with answered(self._address):
            if self._credentials is not None:
                self._introduce(self._credentials)
            else:
                self._register()
            try:
                answer = self._client.ActivateNode(
                    ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
                )
            except httpx.HTTPStatusError as error:
                if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
                    raise
                return self._online_already()
        self._node.node_id = answer.node_id
        return int(answer.node_id)

    def _register(self) -> None:
        try:
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if not speaks_tls(self._address):
                raise
            raise without_identity(self._address) from None
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401:
                raise  # anything else: it knows this key from before

    def _introduce(self, credentials: BoardCredentials) -> None:
        """Ask the coordinator to register our key."""
        proof = credentials.proof(KEY_DOMAIN, self._public)
        document = {"key": self._public.decode(), "proof": proof, "time": now().isoformat()}
        self._client._client.post(f"https://{self._address}{JOIN_PATH}", json=document).raise_for_status()

    def _online_already(self) -> int:
        """Return our id, or say that this key is online: because we have joined before (two signs
        of a restarted SuperLink, one after the other), or as a process that has just died, until
        its heartbeats are missed."""
        if self._node.node_id and self.beat():
            return int(self._node.node_id)
        raise LinkError(f"{self._address} still takes this board for online; it will miss it soon", gone=True)

    def beat(self) -> bool:
        """Return whether the SuperLink still knows this board. The first time it is asked as Flower
        asks, with key and signature, 0.9 kB, and gives a token; then with that, a sixth of it."""
        asked = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        with answered(self._address):
            if self._beat_token:
                try:
                    if post(self._client, BEAT_PATH, asked, b"", headers={BEAT_TOKEN_HEADER: self._beat_token}):
                        return True
                except httpx.HTTPStatusError:
                    pass  # a SuperLink that was restarted, perhaps: it is asked in full
            self._beat_token = post(self._client, BEAT_PATH, asked, asked.SerializeToString()).decode(
                "ascii", "replace"
            )
            return bool(self._beat_token)

    def receive(
        self, hold_s: float, arriving: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Incoming | None:
        """Return the next message for this board, if one comes within `hold_s` seconds (MAX_HOLD_S
        at most). The one before counts as received. `arriving`: entered while the message comes
        in."""
        request = PullMessagesRequest(node=self._node, message_ids=[self._received] if self._received else [])
        with answered(self._address):
            body = post(self._client, TAKE_PATH, request, request.SerializeToString(), hold_s, arriving)
            if not body:
                return None
            try:
                head, contents = unpack(body)
                answer = PullMessagesResponse.FromString(head)
                message, tree = message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]
            except (DecodeError, ValueError, IndexError) as error:
                raise LinkError(f"{self._address} does not answer as a coordinator does: {error}", gone=False) from None
        self._received = message.metadata.message_id
        return Incoming(message, tree, {**contents}, confirm=False)

    def fetch(self, incoming: Incoming) -> Message | None:
        with answered(self._address):
            return self._objects.fetch(incoming.message.metadata.run_id, incoming)

    def reply(self, message: Message) -> None:
        """Push a reply and its content."""
        with answered(self._address), no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
            objects = get_all_nested_objects(message)
            contents = bundled(objects)
            if contents is not None:
                post(self._client, GIVE_PATH, request, pack(request.SerializeToString(), contents))
                return
            answer = self._client.PushMessages(request)
            self._objects.store(message.metadata.run_id, answer.session_id, objects, answer.objects_to_push)

    def close(self) -> None:
        """Leave, so that nobody waits for this board, and close the connection. Never raises."""
        try:
            if self._node.node_id:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                if self._credentials is None:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError, PeerError):
            pass  # the SuperLink is gone, or not trusted any more, so there is nothing to leave
        self._client.close()


class Signature:
    """Signs the time of each request with a key pair (EC P-384) of its own.

    It writes what Flower's SuperNode writes into the head of each request, without importing half a
    web server to write it: Flower's own interceptors come with FastAPI, 19 MB on every board."""

    def __init__(self) -> None:
        self._private, public = generate_key_pairs()
        self.public = public_key_to_bytes(public)  # PEM
        self._always = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            FLWR_PACKAGE_NAME_METADATA_KEY: package_name,
            FLWR_PACKAGE_VERSION_METADATA_KEY: package_version,
            FLWR_COMPONENT_NAME_METADATA_KEY: "SuperNode",
        }

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        if BEAT_TOKEN_HEADER in context.request.headers:
            return call_next(context)
        timestamp = now().isoformat()
        signature = b64encode(sign_message(self._private, timestamp.encode())).decode()
        headers = {TIMESTAMP_HEADER: timestamp, FLEET_HTTP_SIGNATURE_HEADER: signature}
        context.request.headers.update(self._always | headers)
        return call_next(context)


# -- content of messages: a tree of objects


@dataclass(slots=True)
class Incoming:
    """Holds a message's metadata, the tree of the objects that its content is made of, and those
    that have been fetched."""

    message: Message
    tree: ObjectTree
    contents: dict[str, bytes] = field(default_factory=dict)  # by object id; grows until all are there
    confirm: bool = True  # whether the SuperLink waits to be told that all of it has come through
    chunks: Chunks | None = None  # of a large message; what is in it is empty in `contents`


class Chunks:
    """Keeps the data of chunks of arrays as they come, one after the other in one file.

    A sender's chunks come in the order of its arrays, so an array is a part of that file and need
    not be put together."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._places: dict[str, slice] = {}  # by object id
        self._whole: memoryview | None = None

    def take(self, object_id: str, content: bytes) -> bool:
        """Keep a chunk's data; return whether there was room. Raises ValueError when it is none."""
        data = _body(content)
        start = self._buffer.here_bytes
        if start + len(data) > self._buffer.size_bytes:
            return False
        self._buffer.put(data)
        self._places[object_id] = slice(start, start + len(data))
        return True

    def data(self, object_id: str) -> memoryview | None:
        """Return the data of one chunk, if it is here. Nothing is taken any more."""
        place = self._places.get(object_id)
        return None if place is None else self._all()[place]

    def run(self, object_ids: Sequence[str]) -> memoryview | None:
        """Return the data of these chunks where they lie one after the other here."""
        places = [self._places.get(object_id, slice(-1, -1)) for object_id in object_ids]
        if not places or places[0].start < 0 or any(a.stop != b.start for a, b in pairwise(places)):
            return None
        return self._all()[places[0].start : places[-1].stop]

    def _all(self) -> memoryview:
        if self._whole is None:
            self._whole = self._buffer.whole().toreadonly()
        return self._whole


def _arrays(incoming: Incoming, spool: Spool) -> tuple[dict[str, Any], dict[bytes, memoryview]]:
    """Return the arrays of a message, whose chunks leave its contents; and the data of those that
    are not in memory, by the bytes that stand in their place.

    Flower would hold their bytes three times on the way. Raises ValueError when chunks do not fit
    together."""
    found: dict[str, Any] = {}
    large: dict[bytes, memoryview] = {}
    chunks: set[str] = set()
    contents = incoming.contents
    for item in iterate_object_tree(incoming.tree):
        content = contents[item.object_id]
        if not content.startswith(b"Array "):
            continue
        try:
            names = get_object_children_ids_from_object_content(content)
            head = json.loads(get_object_body(content, Array))
            data = _joined(incoming, [names[k] for k in head["arraychunk_ids"]], spool)
            if not isinstance(data, bytes):
                large[item.object_id.encode()] = data
                data = item.object_id.encode()  # in its place: Flower takes nothing but bytes here
            found[item.object_id] = Array(head["dtype"], tuple(head["shape"]), head["stype"], data)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"an array and its chunks do not fit together: {error!r}") from None
        chunks.update(names)
    for name in chunks:
        contents.pop(name, None)
    return found, large


def _joined(incoming: Incoming, names: Sequence[str], spool: Spool) -> bytes | memoryview:
    """Return the data of these chunks as one, copied only where it has to be. Raises KeyError,
    ValueError."""
    chunks = incoming.chunks
    data = None if chunks is None else chunks.run(names)
    if data is not None:
        return data if len(data) > spool.above_bytes else bytes(data)
    parts = [None if chunks is None else chunks.data(name) for name in names]
    return spool.joined([_body(incoming.contents[n]) if p is None else p for n, p in zip(names, parts, strict=True)])


def _body(chunk: bytes) -> memoryview:
    head = chunk[:_CHUNKS_HEAD_BYTES]
    if not head.startswith(b"ArrayChunk ") or HEAD_BODY_DIVIDER not in head:
        raise ValueError("a chunk of an array is something else")
    return memoryview(chunk)[head.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) :]


class Objects:
    """Moves the content of messages through one API: each object is one request. The chunks of a
    large array lie in `spool`, and so does the array. `moved` counts the objects that went either
    way."""

    def __init__(self, client: Any, node: Node, spool: Spool) -> None:
        self._client, self._node, self._spool = client, node, spool
        self.moved = 0

    def fetch(self, run_id: int, incoming: Incoming) -> Message | None:
        """Return the whole message, or None while its sender has not pushed all of it; what is
        there is fetched only once, so that the first parts of a large message travel on while the
        last ones come in. Raises ValueError on a malformed one."""
        contents = incoming.contents
        for tree in iterate_object_tree(incoming.tree):
            if tree.object_id in contents:
                continue
            answer = self._client.PullObject(
                PullObjectRequest(node=self._node, run_id=run_id, object_id=tree.object_id)
            )
            if not answer.object_found:
                raise ValueError("its content is gone from the SuperLink")
            if not answer.object_available:
                return None
            self.moved += 1
            contents[tree.object_id] = b"" if self._took(incoming, tree.object_id, answer) else answer.object_content
        message_id = incoming.message.metadata.message_id
        if incoming.confirm:
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=message_id)
            )
        arrays, large = _arrays(incoming, self._spool)
        message = inflate_object_from_contents(message_id, dict(contents), objects=arrays)
        contents.clear()  # the message has its own copy
        incoming.chunks = None
        if not isinstance(message, Message):
            raise ValueError("it is not a message")
        for record in message.content.array_records.values() if large else ():
            for array in record.values():
                array.data = large.get(array.data, array.data)  # type: ignore[assignment]
        message.metadata.__dict__["_message_id"] = message_id
        return message

    def _took(self, incoming: Incoming, object_id: str, answer: PullObjectResponse) -> bool:
        """Return whether an object was taken for a chunk of a large message, into the file of its
        chunks."""
        if not answer.object_content.startswith(b"ArrayChunk "):
            return False
        if incoming.chunks is None:
            # Of the message's objects only the largest size is known.
            most_bytes = sum(1 for _ in iterate_object_tree(incoming.tree)) * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
            if not self._spool.keeps(most_bytes):
                return False
            incoming.chunks = Chunks(self._spool.buffer(most_bytes))
        return incoming.chunks.take(object_id, answer.object_content)

    def store(self, run_id: int, session: str, objects: Mapping[str, Any], wanted: Iterable[str]) -> None:
        """Push children before parents, so that a message whose root is there is whole."""
        missing = set(wanted)
        for object_id, item in objects.items():
            if object_id in missing:
                self._client.PushObject(
                    PushObjectRequest(
                        node=self._node,
                        run_id=run_id,
                        session_id=session,
                        object_id=object_id,
                        object_content=item.deflate(),
                    )
                )
                self.moved += 1


def bundled(objects: Mapping[str, Any]) -> dict[str, bytes] | None:
    """Return the objects' contents by id where all of them go into one request."""
    contents: dict[str, bytes] = {}
    left = BUNDLE_BYTES
    for object_id, item in objects.items():
        contents[object_id] = item.deflate()
        left -= len(contents[object_id])
        if left < 0:
            return None
    return contents


def is_whole(tree: ObjectTree, contents: Container[str]) -> bool:
    """Return whether all of a message is there."""
    return all(item.object_id in contents for item in iterate_object_tree(tree))


# -- a bundle: parts, each with its length before it

_LENGTH = struct.Struct("<I")


def pack(head: bytes, objects: Mapping[str, bytes]) -> bytes:
    """Return a bundle. `head` is one of Flower's protobuf messages, `objects` are by id."""
    parts = [head]
    for object_id, content in objects.items():
        parts += [object_id.encode(), content]
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return what `pack` was given. Raises ValueError."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        if at + _LENGTH.size > len(body) or len(parts) >= MAX_PARTS:
            raise ValueError("a malformed bundle")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise ValueError("a bundle that was cut off")
        parts.append(body[at : at + length])
        at += length
    if len(parts) % 2 == 0:
        raise ValueError("a malformed bundle")
    return parts[0], {parts[k].decode("ascii"): parts[k + 1] for k in range(1, len(parts), 2)}


# -- requests: how they are sent, and what their errors mean


def connect(kind: type[_Client], address: str, context: ssl.SSLContext | None, interceptors: Sequence[Any]) -> _Client:
    """Return one of Flower's clients; `context` None: without TLS.

    It goes straight to that address, whatever proxies the environment names, and nowhere else,
    whatever it is told there."""
    scheme = "http" if context is None else "https"
    client = kind(f"{scheme}://{address}", interceptors=interceptors, verify=False)
    client._client.close()
    client._client = httpx.Client(verify=context or False, timeout=REQUEST_S, trust_env=False)
    client._client.headers.clear()  # 0.1 kB in each request, of no use to a SuperLink
    return client


def post(
    client: ProtobufClient,
    path: str,
    message: ProtobufMessage,
    body: bytes,
    hold_s: float = 0.0,
    arriving: Callable[[], AbstractContextManager[object]] = nullcontext,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Send a request to a path of ours (superlink.py) with what Flower's own requests of that
    client carry; the answer's body. `message`: what the body is about. `arriving`: entered while
    the answer comes in, which is no time of waiting for it."""
    headers = headers or {"content-type": "application/octet-stream", HOLD_HEADER: f"{hold_s:g}"}
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
    """Free a response, once it is read: it and its stream refer to each other, and its body, which
    may be a model, would wait for the garbage collector."""
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


class ByteMeter:
    """Counts, as the innermost interceptor, what each request hands to the socket, headers as
    HTTP/1.1 writes them."""

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
        """Return the bytes sent since this object was made."""
        with self._lock:
            return self._sent_bytes
