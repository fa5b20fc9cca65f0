"""The SuperLink's store of objects, Flower's own, with bounds: how much of it lies in memory, and
how much one board may have in it.

A board answers a question with one message, whose content is a tree of objects. Flower takes any
tree, keeps what was never asked for, and believes of an object that is there whatever children a
second tree gives it. Here a reply is as large as the run's model allows and no larger, an object
keeps its children, and of a board that answers without being read the oldest reply goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from starlette.exceptions import HTTPException

from edgegossip.types import NodeId

MEMORY_BYTES = 64 << 20  # of objects that the store keeps in memory; what is more lies on the disk
LARGE_BYTES = 1 << 20  # of an object that may
SLACK_BYTES = 1 << 20  # of a reply besides the model: names, figures, what boards must have alike
REPLIES = 2  # of a board, unread: the present one and one that came too late
_SPARE_OBJECTS, _OBJECT_BYTES = 256, 1 << 20  # Flower cuts arrays into pieces of 5 MiB


class BoardUsage:
    """Counts what one board has in the store. `refused` hears what was not taken."""

    def __init__(self, name: NodeId, refused: Callable[[str], None] = lambda why: None) -> None:
        self.name, self.refused = name, refused
        self.most_bytes = SLACK_BYTES  # of a reply
        self.replies: dict[str, dict[str, int]] = {}  # bytes of their objects, by root and object; the oldest first

    @property
    def kept_bytes(self) -> int:
        """How much of it lies in the store."""
        return sum(sum(reply.values()) for reply in self.replies.values())


asking: ContextVar[BoardUsage | None] = ContextVar("asking", default=None)  # whose request is answered; None: ours


class ObjectsOnDisk(InMemoryObjectStore):
    """Has no more than MEMORY_BYTES of large objects in memory: models of many boards may wait here
    at a time. A file goes with its object. What a board (`asking`) puts here is bounded."""

    folder: Path

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._owners: dict[str, tuple[BoardUsage, str]] = {}  # and the root of its reply, by object

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        board = asking.get()
        if board is None:
            return super().preregister(run_id, object_tree)
        with self.lock_store:
            nodes = list(iterate_object_tree(object_tree))
            if len(nodes) > _SPARE_OBJECTS + board.most_bytes // _OBJECT_BYTES:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a reply of more objects than a model has")
            self._check_children(nodes)
            new = [node.object_id for node in nodes if node.object_id not in self.store]
            missing = super().preregister(run_id, object_tree)
            for object_id in new:
                board.replies.setdefault(object_tree.object_id, {})[object_id] = 0
                self._owners[object_id] = board, object_tree.object_id
            return missing

    def _check_children(self, nodes: Sequence[ObjectTree]) -> None:
        """Raise HTTPException where an object has other children than before: a few such trees
        would stand for millions of objects."""
        known: dict[str, list[str]] = {}
        for node in nodes:
            children = [child.object_id for child in node.children]
            there = self.store.get(node.object_id)
            if children != known.setdefault(node.object_id, children if there is None else there.child_object_ids):
                raise HTTPException(HTTPStatus.BAD_REQUEST, "a reply with an object that has two kinds of children")

    def put(self, object_id: str, object_content: bytes) -> None:
        if asking.get() is not None:
            self._charge(object_id, len(object_content))
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

    def _charge(self, object_id: str, size_bytes: int) -> None:
        """Count an object as part of the reply that named it first; for its sake older ones may
        have to go. Raises ValueError."""
        with self.lock_store:
            if object_id not in self._owners:  # the coordinator's, or nobody's
                return
            board, root = self._owners[object_id]
            reply = board.replies[root]
            if sum(reply.values()) - reply[object_id] + size_bytes > board.most_bytes:
                board.refused("a reply of more bytes than a model of this run has")
                raise ValueError("a reply that is too large")
            reply[object_id] = size_bytes
            for older in list(board.replies):
                if board.kept_bytes <= REPLIES * board.most_bytes or older == root:
                    break
                self.delete(older)

    def get(self, object_id: str) -> bytes | None:
        content: Any = super().get(object_id)
        return content.read() if isinstance(content, _OnDisk) else content

    def delete(self, object_id: str) -> None:
        super().delete(object_id)
        with self.lock_store:
            if object_id in self.store or object_id not in self._owners:
                return
            board, root = self._owners.pop(object_id)
            del board.replies[root][object_id]
            if not board.replies[root]:
                del board.replies[root]


class _OnDisk:
    """Keeps the content of an object in a file of its own, which goes when nobody refers to
    this."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        weakref.finalize(self, path.unlink, missing_ok=True)

    def read(self) -> bytes:
        return self._path.read_bytes()
