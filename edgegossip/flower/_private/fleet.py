"""The Fleet API: the SuperLink as a board sees it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, TIMESTAMP_HEADER
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
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
)
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.version import package_name, package_version
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import DecodeError

from edgegossip.flower._private.link import ByteMeter, LinkError, answered, connect, post, speaks_tls, without_identity
from edgegossip.flower._private.objects import GIVE_PATH, TAKE_PATH, Incoming, Objects, bundled, pack, unpack
from edgegossip.flower.admission import JOIN_PATH
from edgegossip.flower.credentials import KEY_DOMAIN, BoardCredentials


class FleetLink:
    """A board's connection to a SuperLink: one process, one HTTP client, one key of its own.

    Thread-safe. Methods raise LinkError. With `credentials` over TLS; the key is then signed with
    the board's own, so that a process that was killed and the next one are two SuperNodes of one
    board."""

    def __init__(self, address: str, credentials: BoardCredentials | None = None) -> None:
        self._address, self._credentials = address, credentials
        signature = Signature()
        self._public = signature.public
        self.meter = ByteMeter()
        context = None if credentials is None else credentials.context
        self._client = connect(FleetHttpClient, address, context, [signature, self.meter])
        self._node = Node()
        self._received = ""  # id of the last message
        self._objects = Objects(self._client, self._node)

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
        """This key is online: because we have joined before (two signs of a restarted SuperLink,
        one after the other), or as a process that has just died, until its heartbeats are
        missed."""
        if self._node.node_id and self.beat():
            return int(self._node.node_id)
        raise LinkError(f"{self._address} still takes this board for online; it will miss it soon", gone=True)

    def beat(self) -> bool:
        """Whether the SuperLink still knows this board."""
        with answered(self._address):
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            return bool(self._client.SendNodeHeartbeat(request).success)

    def receive(
        self, hold_s: float, arriving: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Incoming | None:
        """The next message for this board, if one comes within `hold_s` seconds (MAX_HOLD_S at
        most). The one before counts as received. `arriving`: entered while the message comes in."""
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
        return Incoming(message, tree, contents, confirm=False)

    def fetch(self, incoming: Incoming) -> Message | None:
        with answered(self._address):
            return self._objects.fetch(incoming.message.metadata.run_id, incoming)

    def reply(self, message: Message, runtime_s: float) -> None:
        """Push a reply and its content."""
        with answered(self._address), no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[runtime_s],
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
        except (httpx.HTTPError, RuntimeError):
            pass  # the SuperLink is gone, so there is nothing to leave
        self._client.close()


class Signature:
    """A key pair (EC P-384) of its own, and an interceptor that signs the time with it.

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
        timestamp = now().isoformat()
        signature = b64encode(sign_message(self._private, timestamp.encode())).decode()
        headers = {TIMESTAMP_HEADER: timestamp, FLEET_HTTP_SIGNATURE_HEADER: signature}
        context.request.headers.update(self._always | headers)
        return call_next(context)
