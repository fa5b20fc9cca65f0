"""The SuperLink as the server of a run sees it: the Control API starts a run, the Runtime API plays
it."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, HEARTBEAT_PATIENCE, ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
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
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from edgegossip.engine.server_boards import BoardPresence
from edgegossip.flower._private.link import (
    RUN_GIVE_PATH,
    RUN_TAKE_PATH,
    Incoming,
    Objects,
    TokenInterceptor,
    bundled,
    connect,
    is_whole,
    pack,
    post,
    unpack,
)
from edgegossip.flower.connection import LinkError, answered
from edgegossip.memory import Spool
from edgegossip.types import NodeId, PeerError

BEAT_S = 4.0  # between heartbeats; without one for 60 s Flower ends the run
SERVER_NODE_ID = 1  # the SuperLink's own address in every run
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def is_away(reply: Message) -> bool:
    """Return whether this is no answer, but Flower's word that the board has given no sign of life
    for too long."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


class RunLink:
    """Is the server's side of one run, in this process instead of one that Flower starts.

    From `claim` to `finish` a thread gives the run's signs of life: a large model takes longer to
    move, to average and to keep than one of them may fail. Methods raise LinkError."""

    def __init__(
        self, address: str, context: ssl.SSLContext | None, secret: bytes, token: str = "", spool: Spool = Spool()
    ) -> None:
        self._address, self._context, self._token, self._spool = address, context, token, spool
        self._client = self._connect(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE}))
        self._node = Node(node_id=SERVER_NODE_ID)
        self._objects = Objects(self._client, self._node, spool)
        self._arriving: dict[str, Incoming] = {}  # by the id of the message that they answer
        self._arrived: dict[str, int] = {}  # objects of each, when that was asked last
        # Set by the AdmissionController's thread, as coordinator.py has tied it: a board has sent
        # something; a board has taken in more of a large message.
        self.news, self.taken = threading.Event(), threading.Event()
        self.run_id = 0
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True, name="run heartbeat")

    def _connect(self, credentials: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        interceptors = [version, credentials, TokenInterceptor(self._token)]
        return connect(RuntimeHttpClient, self._address, self._context, interceptors)

    def claim(self, timeout_s: float) -> int:
        """Take over the run that `start_run` made; its id."""
        deadline = time.monotonic() + timeout_s
        with answered(self._address):
            while True:
                answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if answer.token:
                    break
                if time.monotonic() > deadline:
                    raise LinkError(f"{self._address} has not handed out the run for {timeout_s:g} s", gone=False)
                time.sleep(0.05)
            self._client.close()
            self._client = self._connect(RuntimeTokenHttpInterceptor(answer.token))
            self._objects = Objects(self._client, self._node, self._spool)
            task = self._client.PullTaskInput(PullTaskInputRequest())
            serve_run(task.task_id, task.run.run_id)
            self.run_id = int(task.run.run_id)
        self._beats.start()
        return self.run_id

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                with answered(self._address):
                    self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except LinkError:
                pass  # whoever asks for something hears of it, too

    def nodes(self) -> list[BoardPresence]:
        """Return the boards that are online.

        A heartbeat's age is by the SuperLink's clock and ours, which are one machine's."""
        with answered(self._address):
            infos = self._client.GetNodes(GetNodesRequest()).nodes
        now = time.time()
        return [
            BoardPresence(
                node.node_id,
                silent_s=now - (node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval),
                beats_fast=node.heartbeat_interval <= HEARTBEAT_MIN_INTERVAL,
            )
            for node in infos
        ]

    def push(self, messages: list[Message]) -> list[str]:
        """Send; the ids under which `pull` finds the replies.

        Content that messages share travels once."""
        if not messages:
            return []
        objects: dict[str, Any] = {}
        with answered(self._address), no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                objects.update(get_all_nested_objects(message))
            request = PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(m)) for m in messages],
                message_object_trees=[get_object_tree(m) for m in messages],
            )
            contents = bundled(objects)
            if contents is not None:
                body = post(self._client, RUN_GIVE_PATH, request, pack(request.SerializeToString(), contents))
                return list(PushAppMessagesResponse.FromString(body).message_ids)
            answer = self._client.PushMessages(request)
            self._objects.store(self.run_id, answer.session_id, objects, answer.objects_to_push)
            self.taken.set()  # nobody could be at work before all of it was there
        return list(answer.message_ids)

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """Return whole replies that have come in.

        One whose content is still on its way is kept and tried again next time."""
        wanted = [i for i in message_ids if i not in self._arriving]
        whole: list[Message] = []
        with answered(self._address):
            if wanted:
                request = PullAppMessagesRequest(message_ids=wanted)
                head, contents = unpack(post(self._client, RUN_TAKE_PATH, request, request.SerializeToString()))
                answer = PullAppMessagesResponse.FromString(head)
                for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                    message = message_from_proto(proto)
                    here = {
                        i.object_id: contents[i.object_id] for i in iterate_object_tree(tree) if i.object_id in contents
                    }
                    arriving = Incoming(message, tree, here, confirm=not is_whole(tree, here))
                    self._arriving[message.metadata.reply_to_message_id] = arriving
            for reply_to, incoming in list(self._arriving.items()):
                try:
                    message_or_none = self._objects.fetch(self.run_id, incoming)
                except Exception as error:
                    if isinstance(error, httpx.HTTPError):
                        raise
                    reason = Error(ErrorCode.MESSAGE_UNAVAILABLE, f"unreadable reply: {error}")
                    message_or_none = make_message(metadata=incoming.message.metadata, error=reason)
                if message_or_none is not None:
                    whole.append(message_or_none)
                    del self._arriving[reply_to]
        return whole

    def arriving(self) -> frozenset[str]:
        """Return the messages of whose replies more has come since the last time, and not all."""
        here = {i: len(incoming.contents) for i, incoming in self._arriving.items()}
        moved = frozenset(i for i, count in here.items() if count > self._arrived.get(i, 0))
        self._arrived = here
        return moved

    def delivering(self) -> bool:
        """Return whether boards have taken in more of large messages since the last time."""
        taken = self.taken.is_set()
        self.taken.clear()
        return taken

    def wait(self, timeout_s: float) -> None:
        """Wait until a board has sent something, `timeout_s` at most."""
        self.news.wait(timeout_s)
        self.news.clear()

    def forget(self, message_id: str) -> None:
        """Wait for this reply no longer."""
        self._arriving.pop(message_id, None)

    def finish(self, error: str | None) -> None:
        """Tell the SuperLink how the run ended, and close. Never raises."""
        self._over.set()
        if self._beats.is_alive():
            self._beats.join(BEAT_S)
        status = SubStatus.COMPLETED if error is None else SubStatus.FAILED
        with suppress(httpx.HTTPError, ValueError, PeerError):  # nobody will read it any more
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=error or ""))
        self._client.close()


def _control(address: str, context: ssl.SSLContext | None, token: str) -> ControlHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    return connect(ControlHttpClient, address, context, [version, TokenInterceptor(token)])


def register_key(address: str, context: ssl.SSLContext | None, token: str, key: bytes, name: NodeId) -> int:
    """Let a board with this public key (PEM) in; its id in Flower. Raises LinkError."""
    client = _control(address, context, token)
    try:
        with answered(address):
            return int(client.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)
    finally:
        client.close()


def start_run(
    address: str,
    context: ssl.SSLContext | None,
    config: Mapping[str, str | int | float | bool],
    app: bytes = b"",
    token: str = "",
) -> int:
    """Start a run of the app whose app.py this is, with its `server` and `client`; by default one
    that has no code of its own (the server is RunLink in this process). The run's id."""
    from flwr.cli.build import build_fab_from_files  # drags in the whole command line; a board never needs it

    defaults = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    content, _ = build_fab_from_files({"pyproject.toml": _PYPROJECT.format(defaults=defaults).encode(), "app.py": app})
    client = _control(address, context, token)
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    try:
        with answered(address):
            answer = client.StartRun(StartRunRequest(fab=fab, override_config=user_config_to_proto({})))
    finally:
        client.close()
    return int(answer.run_id)


def serve_run(task_id: int, run_id: int) -> None:
    """Write Flower's own process-wide record of which run this process serves; its Message
    constructor reads it."""
    TaskIdentity.task_id, TaskIdentity.run_id = task_id, run_id
    TaskIdentity.node_id = SERVER_NODE_ID


_PYPROJECT = """\
[project]
name = "edgegossip-run"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "edgegossip"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
{defaults}
"""
