"""What one board may have in the SuperLink's store of objects, whatever it says of its replies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from starlette.exceptions import HTTPException

from edgegossip.flower._private import superlink
from edgegossip.flower._private.objects import BoardUsage, ObjectsOnDisk, asking

MOST = 1000


@contextmanager
def asks(board: BoardUsage) -> Iterator[None]:
    token = asking.set(board)
    try:
        yield
    finally:
        asking.reset(token)


class Store:
    """A store, and two boards of a run whose replies have at most MOST bytes."""

    def __init__(self) -> None:
        self.objects, self.told = ObjectsOnDisk(verify=False), list[str]()
        self.a, self.b = (BoardUsage(name, self.told.append) for name in "ab")
        self.a.most_bytes = self.b.most_bytes = MOST

    def reply(self, board: BoardUsage, name: str, *parts: int, children: tuple[str, ...] = ()) -> bool:
        """Store a reply whose parts have so many bytes; return whether all of it was taken."""
        with asks(board):
            names = [f"{name}.{k}" for k in range(len(parts))]
            self.objects.preregister(1, tree(name, *map(tree, [*names, *children])))
            try:
                for part, size in zip(names, parts, strict=True):
                    self.objects.put(object_id(part), bytes(size))
            except ValueError:
                return False
        return True

    def has(self, name: str) -> bool:
        return object_id(name) in self.objects


def object_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def tree(name: str, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=object_id(name), children=children)


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_reply_is_no_larger_than_the_model_allows(store: Store) -> None:
    assert not store.reply(store.a, "r", 400, 600, 1)
    assert store.a.kept_bytes == MOST
    assert store.told == ["a reply of more bytes than a model of this run has"]
    assert store.reply(store.b, "s", 1000)


def test_of_a_board_that_is_not_read_the_oldest_reply_goes_and_no_other_boards(store: Store) -> None:
    assert store.reply(store.b, "other", 1000)
    for k in range(4):
        assert store.reply(store.a, f"r{k}", 500, 500)
    assert [store.has(f"r{k}") for k in range(4)] == [False, False, True, True] and store.has("other")
    for k in range(4):
        store.objects.delete(object_id(f"r{k}"))
    assert store.a.kept_bytes == 0 and not store.a.replies
    assert store.reply(store.a, "again", 1000)


def test_a_few_small_trees_do_not_stand_for_a_large_one(store: Store) -> None:
    """Flower keeps the children that an object had at first, and lists all of them when somebody
    asks for the reply: 100 x 100 x 100 here."""
    assert store.reply(store.a, "leaf")
    assert store.reply(store.a, "m1", children=("leaf",) * 100)
    with pytest.raises(HTTPException, match="two kinds of children"):
        store.reply(store.a, "m2", children=("m1",) * 100)
    inner = tree("n1", *[tree("leaf")] * 100)
    with asks(store.a), pytest.raises(HTTPException, match="two kinds of children"):
        store.objects.preregister(1, tree("n2", inner, *[tree("n1")] * 100))
    assert not store.has("n2") and not store.has("n1")


def test_a_reply_has_few_objects(store: Store) -> None:
    with pytest.raises(HTTPException, match="more objects"):
        store.reply(store.a, "r", *[0] * 300)
    assert not len(store.objects) and not store.a.replies


def test_what_two_boards_say_alike_is_kept_for_both(store: Store) -> None:
    """Such as the same figures."""
    same = tree("same")
    for board, name in ((store.a, "r"), (store.b, "s")):
        with asks(board):
            store.objects.preregister(1, tree(name, same))
            store.objects.put(object_id("same"), bytes(900))
    store.objects.delete(object_id("r"))
    assert store.objects.get(object_id("same")) == bytes(900)
    store.objects.delete(object_id("s"))
    assert not len(store.objects) and not store.a.replies and not store.b.replies


def test_the_coordinators_own_messages_have_no_bounds_here(store: Store) -> None:
    names = [f"c.{k}" for k in range(300)]
    store.objects.preregister(1, tree("c", *map(tree, names)))
    for name in names:
        store.objects.put(object_id(name), bytes(MOST))
    assert len(store.objects) == 301


def _given(**changes: Any) -> PushMessagesRequest:
    fields = {"src_node_id": 5, "message_id": "m", "reply_to_message_id": "q", **changes}
    root = fields.pop("root", "m")
    message = Message(metadata=Metadata(**fields))
    return PushMessagesRequest(
        node=Node(node_id=5), messages_list=[message], message_object_trees=[ObjectTree(object_id=root)]
    )


def test_only_what_a_board_was_asked_is_an_answer() -> None:
    state: Any = InMemoryLinkState(SimpleNamespace(), ObjectsOnDisk(verify=False))
    state.message_ins_store = {
        name: SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node)) for name, node in (("q", 5), ("others", 6))
    }
    assert superlink._is_asked(state, _given())
    assert not superlink._is_asked(state, _given(reply_to_message_id="others"))
    assert not superlink._is_asked(state, _given(reply_to_message_id="gone"))
    state.message_ins_id_to_message_res_id["q"] = "another"
    assert not superlink._is_asked(state, _given())
    for wrong in ({"src_node_id": 6}, {"src_node_id": 1}, {"root": "x"}):
        with pytest.raises(ValueError, match="of another"):
            superlink._is_asked(state, _given(**wrong))
    with pytest.raises(ValueError, match="unpack"):
        superlink._is_asked(state, PushMessagesRequest())
