"""Content of messages: a tree of objects, of which each travels in a request of its own."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    HEAD_BODY_DIVIDER,
    get_object_body,
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

# Message -> RecordDict -> ArrayRecord -> Array -> ArrayChunk, when a message holds one array and
# nothing else
_CHAIN = 5

BUNDLE_BYTES = 8 << 20  # of content in one request; what is larger travels object by object, as Flower sends it
RUN_BUNDLE_BYTES = 32 << 20  # of replies to the coordinator, which is on the same machine
TAKE_PATH, GIVE_PATH = "/edgegossip/take", "/edgegossip/give"  # of boards
RUN_TAKE_PATH, RUN_GIVE_PATH = "/edgegossip/run/take", "/edgegossip/run/give"  # of the coordinator
MAX_HOLD_S = 10.0
MAX_PARTS = 100_000


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message's metadata, the tree of the objects that its content is made of, and those that
    have been fetched."""

    message: Message
    tree: ObjectTree
    contents: dict[str, bytes] = field(default_factory=dict)  # by object id; grows until all are there
    confirm: bool = True  # whether the SuperLink waits to be told that all of it has come through


def _is_chain(tree: ObjectTree) -> bool:
    depth = 1
    while len(tree.children) == 1:
        tree, depth = tree.children[0], depth + 1
    return depth == _CHAIN and not tree.children


def _one_array(message: Message, chunk: bytes) -> Message:
    """The message whose only content is an array of one chunk, from that chunk alone: four requests
    fewer.

    What the skipped objects would say (names, dtype, shape) nobody trusts anyway: the frame inside
    says it, checked.
    """
    array = Array(dtype="float32", shape=(0,), stype="", data=bytes(_body(chunk)))
    return make_message(metadata=message.metadata, content=RecordDict({"arrays": ArrayRecord({"edgegossip": array})}))


def _arrays(tree: ObjectTree, contents: dict[str, bytes]) -> dict[str, Any]:
    """The arrays of a message, whose chunks leave `contents`:

    Flower would hold their bytes three times on the way. Raises ValueError when chunks do not fit
    together."""
    found: dict[str, Any] = {}
    chunks: set[str] = set()
    for item in iterate_object_tree(tree):
        content = contents[item.object_id]
        if not content.startswith(b"Array "):
            continue
        try:
            names = get_object_children_ids_from_object_content(content)
            head = json.loads(get_object_body(content, Array))
            data = b"".join([_body(contents[names[k]]) for k in head["arraychunk_ids"]])
            found[item.object_id] = Array(head["dtype"], tuple(head["shape"]), head["stype"], data)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"an array and its chunks do not fit together: {error!r}") from None
        chunks.update(names)
    for name in chunks:
        contents.pop(name, None)
    return found


def _body(chunk: bytes) -> memoryview:
    if not chunk.startswith(b"ArrayChunk "):
        raise ValueError("a chunk of an array is something else")
    return memoryview(chunk)[chunk.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) :]


class Objects:
    """Content of messages through one API: each object is one request."""

    def __init__(self, client: Any, node: Node) -> None:
        self._client, self._node = client, node

    def fetch(self, run_id: int, incoming: Incoming) -> Message | None:
        """The whole message, or None while its sender has not pushed all of it; what is there is
        fetched only once, so that the first parts of a large message travel on while the last ones
        come in. Raises ValueError on a malformed one."""
        chain = _is_chain(incoming.tree)
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
            contents[tree.object_id] = answer.object_content
            if chain and answer.object_content.startswith(b"ArrayChunk "):
                break
        message_id = incoming.message.metadata.message_id
        if incoming.confirm:
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=message_id)
            )
        if message_id not in contents:
            return _one_array(incoming.message, next(iter(contents.values())))
        message = inflate_object_from_contents(message_id, contents, objects=_arrays(incoming.tree, contents))
        contents.clear()  # the message has its own copy
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


def bundled(objects: Mapping[str, Any]) -> dict[str, bytes] | None:
    """Their contents by id where all of them go into one request."""
    contents: dict[str, bytes] = {}
    left = BUNDLE_BYTES
    for object_id, item in objects.items():
        contents[object_id] = item.deflate()
        left -= len(contents[object_id])
        if left < 0:
            return None
    return contents


def is_whole(tree: ObjectTree, contents: Mapping[str, bytes]) -> bool:
    """Whether all of a message is there."""
    return all(item.object_id in contents for item in iterate_object_tree(tree))


# A message and its content in one body: parts, each with its length before it. Flower's own way is
# a request an object.

_LENGTH = struct.Struct("<I")


def pack(head: bytes, objects: Mapping[str, bytes]) -> bytes:
    """`head` is one of Flower's protobuf messages, `objects` are by id."""
    parts = [head]
    for object_id, content in objects.items():
        parts += [object_id.encode(), content]
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """What `pack` was given. Raises ValueError."""
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
