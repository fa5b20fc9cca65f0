"""Everything of Flower 1.41 that is not its public API. The only module that may import it.

Flower's public API serves apps that Flower starts itself: a new process a message on the board, one for the server, each behind
fixed polls of seconds. To speak to its SuperLink directly we use the HTTP clients that Flower's own processes use: the Fleet API
as a board (`FleetLink`), the Runtime API as a server app (`RunLink`) and the Control API to start a run (`start_run`).
`tests/flower/test_private.py` says by name what is gone when another Flower version moves something.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, HEARTBEAT_PATIENCE, TIMESTAMP_TOLERANCE, ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.fleet_pb2 import PullMessagesRequest as FleetPullRequest
from flwr.proto.fleet_pb2 import PushMessagesRequest as FleetPushRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from edgegossip.types import PeerError

SERVER_NODE_ID = 1  # the SuperLink's own address in every run
_CHAIN = (
    5  # Message -> RecordDict -> ArrayRecord -> Array -> ArrayChunk, when a message holds one array and nothing else
)
IDLE_MIDDLEWARE = (
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
    "RuntimeTracingMiddleware",
)
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class LinkError(PeerError):
    """A request to the SuperLink failed. `gone`: nobody answered; otherwise it answered with a refusal."""

    def __init__(self, text: str, gone: bool) -> None:
        super().__init__(text)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message's metadata, and the tree of the objects that its content is made of."""

    message: Message
    tree: ObjectTree


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A board as the SuperLink sees it."""

    node_id: int
    silent_s: float  # since its last heartbeat, by the SuperLink's clock and ours, which are one machine's
    beats_fast: bool  # whether it beats as FleetLink does; a stock SuperNode only every 20 s or so


@contextmanager
def _answered(address: str) -> Iterator[None]:
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


def _is_chain(tree: ObjectTree) -> bool:
    depth = 1
    while len(tree.children) == 1:
        tree, depth = tree.children[0], depth + 1
    return depth == _CHAIN and not tree.children


def _one_array(message: Message, chunk: bytes) -> Message:
    """The message whose only content is an array of one chunk, from that chunk alone: four requests fewer.

    What the skipped objects would say (names, dtype, shape) nobody trusts anyway: the frame inside says it, checked.
    """
    data = ArrayChunk.inflate(chunk).data
    array = Array(dtype="float32", shape=(0,), stype="", data=bytes(data))
    return make_message(metadata=message.metadata, content=RecordDict({"arrays": ArrayRecord({"edgegossip": array})}))


class _Objects:
    """Content of messages through one API: each object is one request."""

    def __init__(self, client: Any, node: Node) -> None:
        self._client, self._node = client, node

    def fetch(self, run_id: int, incoming: Incoming) -> Message | None:
        """The whole message, or None while its sender has not pushed all of it. Raises ValueError on a malformed one."""
        chain = _is_chain(incoming.tree)
        contents: dict[str, bytes] = {}
        for tree in iterate_object_tree(incoming.tree):
            answer = self._client.PullObject(
                PullObjectRequest(node=self._node, run_id=run_id, object_id=tree.object_id)
            )
            if not answer.object_found:
                raise ValueError("its content is gone from the SuperLink")
            if not answer.object_available:
                return None
            contents[tree.object_id] = answer.object_content
            if chain and answer.object_content.startswith(b"ArrayChunk "):
                break
        message_id = incoming.message.metadata.message_id
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=message_id)
        )
        if message_id not in contents:
            return _one_array(incoming.message, next(iter(contents.values())))
        message = inflate_object_from_contents(message_id, contents)
        if not isinstance(message, Message):
            raise ValueError("it is not a message")
        message.metadata.__dict__["_message_id"] = message_id
        return message

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


class FleetLink:
    """A board's connection to a SuperLink: one process, one HTTP client. Thread-safe. Methods raise LinkError."""

    def __init__(
        self, address: str, root_certificates: bytes | None = None, keys: tuple[Any, Any] | None = None
    ) -> None:
        self._address = address
        self._own_keys = keys is None
        private, public = keys or generate_key_pairs()
        self._public = public_key_to_bytes(public)
        self.meter = ByteMeter()
        self._client = FleetHttpClient.from_server_address(
            address,
            root_certificates is None,
            root_certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
                self.meter,
            ],
        )
        self._node = Node()
        self._objects = _Objects(self._client, self._node)

    def join(self) -> int:
        """Register and go online; this board's id in Flower."""
        with _answered(self._address):
            if self._own_keys:
                try:
                    self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
                except httpx.HTTPStatusError as error:
                    if error.response.status_code == 401:
                        raise  # anything else: it knows this key from before
            answer = self._client.ActivateNode(
                ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            )
        self._node.node_id = answer.node_id
        return int(answer.node_id)

    def beat(self) -> bool:
        """Whether the SuperLink still knows this board."""
        with _answered(self._address):
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            return bool(self._client.SendNodeHeartbeat(request).success)

    def receive(self) -> Incoming | None:
        """The next message for this board, if there is one."""
        with _answered(self._address):
            answer = self._client.PullMessages(FleetPullRequest(node=self._node))
        if not answer.messages_list:
            return None
        return Incoming(message_from_proto(answer.messages_list[0]), answer.message_object_trees[0])

    def fetch(self, incoming: Incoming) -> Message | None:
        with _answered(self._address):
            return self._objects.fetch(incoming.message.metadata.run_id, incoming)

    def reply(self, message: Message, runtime_s: float) -> None:
        """Push a reply and its content."""
        run_id = message.metadata.run_id
        with _answered(self._address), no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            answer = self._client.PushMessages(
                FleetPushRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(message))],
                    message_object_trees=[get_object_tree(message)],
                    clientapp_runtime_list=[runtime_s],
                )
            )
            self._objects.store(run_id, answer.session_id, get_all_nested_objects(message), answer.objects_to_push)

    def close(self) -> None:
        """Leave, so that nobody waits for this board, and close the connection. Never raises."""
        try:
            if self._node.node_id:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                if self._own_keys:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass  # the SuperLink is gone, so there is nothing to leave
        self._client.close()


class RunLink:
    """The server's side of one run, in this process instead of one that Flower starts. Methods raise LinkError."""

    def __init__(self, address: str, root_certificates: bytes | None, secret: bytes) -> None:
        self._address, self._certificates = address, root_certificates
        self._client = self._connect(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE}))
        self._node = Node(node_id=SERVER_NODE_ID)
        self._objects = _Objects(self._client, self._node)
        self._arriving: dict[str, Incoming] = {}  # by the id of the message that they answer
        self.run_id = 0

    def _connect(self, credentials: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        return RuntimeHttpClient.from_server_address(
            self._address, self._certificates is None, self._certificates, interceptors=[version, credentials]
        )

    def claim(self, timeout_s: float) -> int:
        """Take over the run that `start_run` made; its id."""
        deadline = time.monotonic() + timeout_s
        with _answered(self._address):
            while True:
                answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if answer.token:
                    break
                if time.monotonic() > deadline:
                    raise LinkError(f"{self._address} has not handed out the run for {timeout_s:g} s", gone=False)
                time.sleep(0.05)
            self._client.close()
            self._client = self._connect(RuntimeTokenHttpInterceptor(answer.token))
            self._objects = _Objects(self._client, self._node)
            task = self._client.PullTaskInput(PullTaskInputRequest())
            # Flower's own process-wide record of which run this process serves; its Message constructor reads it.
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = SERVER_NODE_ID
            self.run_id = int(task.run.run_id)
        return self.run_id

    def beat(self) -> bool:
        with _answered(self._address):
            return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)

    def nodes(self) -> list[NodeSeen]:
        """Boards that are online."""
        with _answered(self._address):
            infos = self._client.GetNodes(GetNodesRequest()).nodes
        now = time.time()
        return [
            NodeSeen(
                node.node_id,
                silent_s=now - (node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval),
                beats_fast=node.heartbeat_interval <= HEARTBEAT_MIN_INTERVAL,
            )
            for node in infos
        ]

    def push(self, messages: list[Message]) -> list[str]:
        """Send; the ids under which `pull` finds the replies. Content that messages share travels once."""
        if not messages:
            return []
        objects: dict[str, Any] = {}
        with _answered(self._address), no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                objects.update(get_all_nested_objects(message))
            answer = self._client.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(m)) for m in messages],
                    message_object_trees=[get_object_tree(m) for m in messages],
                )
            )
            self._objects.store(self.run_id, answer.session_id, objects, answer.objects_to_push)
        return list(answer.message_ids)

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """Whole replies that have come in. One whose content is still on its way is kept and tried again next time."""
        wanted = [i for i in message_ids if i not in self._arriving]
        whole: list[Message] = []
        with _answered(self._address):
            if wanted:
                answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
                for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                    message = message_from_proto(proto)
                    self._arriving[message.metadata.reply_to_message_id] = Incoming(message, tree)
            for reply_to, incoming in list(self._arriving.items()):
                try:
                    message_or_none = self._objects.fetch(self.run_id, incoming)
                except Exception as error:  # noqa: BLE001 - whatever a board sent must not end the run
                    if isinstance(error, httpx.HTTPError):
                        raise
                    reason = Error(ErrorCode.MESSAGE_UNAVAILABLE, f"unreadable reply: {error}")
                    message_or_none = make_message(metadata=incoming.message.metadata, error=reason)
                if message_or_none is not None:
                    whole.append(message_or_none)
                    del self._arriving[reply_to]
        return whole

    def forget(self, message_id: str) -> None:
        """Wait no longer for a reply."""
        self._arriving.pop(message_id, None)

    def finish(self, error: str | None) -> None:
        """Tell the SuperLink how the run ended, and close. Never raises."""
        status = SubStatus.COMPLETED if error is None else SubStatus.FAILED
        try:
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=error or ""))
        except (httpx.HTTPError, ValueError):
            pass  # the SuperLink is gone and nobody will read it
        self._client.close()


def start_run(address: str, root_certificates: bytes | None, config: Mapping[str, str | int | float | bool]) -> int:
    """Start a run of an app that has no code of its own (the server is RunLink in this process). Its id."""
    from flwr.cli.build import build_fab_from_files  # drags in the whole command line; a board never needs it

    defaults = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    content, _ = build_fab_from_files({"pyproject.toml": _PYPROJECT.format(defaults=defaults).encode(), "app.py": b""})
    client = ControlHttpClient.from_server_address(
        address,
        root_certificates is None,
        root_certificates,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    try:
        with _answered(address):
            answer = client.StartRun(StartRunRequest(fab=fab, override_config=user_config_to_proto({})))
    finally:
        client.close()
    return int(answer.run_id)


def flower_superlink() -> None:
    """Be the `flower-superlink` command: reads sys.argv and serves until a signal ends it.

    Middlewares of features that are off here (event logs, licences, traces of a paid service) cost every request half of
    its time and are left out; those that check signatures, tokens and accounts stay.
    """
    from flwr.superlink import main as app
    from flwr.superlink.cli.flower_superlink import flower_superlink as main

    every = app._get_middleware
    app._get_middleware = lambda: [m for m in every() if getattr(m.cls, "__name__", "") not in IDLE_MIDDLEWARE]
    main()


_PYPROJECT = """\
[project]
name = "edgegossip-run"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "edgegossip"

[tool.flwr.app.components]
serverapp = "app:app"
clientapp = "app:app"

[tool.flwr.app.config]
{defaults}
"""
