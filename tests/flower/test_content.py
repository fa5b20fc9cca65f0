"""Content of messages on its way: in one body, and in the SuperLink's objects on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from flwr.proto.message_pb2 import ObjectTree
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.flower._private import objects
from edgegossip.flower._private.link import pack, unpack
from edgegossip.flower._private.objects import ObjectsOnDisk

OBJECTS = st.dictionaries(st.text("0123456789abcdef", min_size=1, max_size=64), st.binary(max_size=200), max_size=8)


@given(st.binary(max_size=100), OBJECTS)
def test_what_goes_in_comes_out(head: bytes, objects: dict[str, bytes]) -> None:
    assert unpack(pack(head, objects)) == (head, objects)


@given(st.binary(max_size=300))
def test_nothing_but_a_value_error_comes_of_anything_else(body: bytes) -> None:
    try:
        head, objects = unpack(body)
    except ValueError:
        return
    assert pack(head, objects) == body or len(objects) < body.count(b"\x00")  # an id may come twice


@given(st.binary(min_size=1, max_size=50), OBJECTS, st.data())
def test_a_body_that_was_cut_off_is_refused(head: bytes, objects: dict[str, bytes], data: st.DataObject) -> None:
    body = pack(head, objects)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        found, some = unpack(cut)
    except ValueError:
        return
    assert found == head and len(some) < len(objects)  # cut between two objects; whoever wanted the others misses them


def test_a_bundle_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed"):
        unpack(bytes(4 * 100_002))


def test_an_object_that_a_board_sends_once_more_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost on the way, and it tries again."""
    monkeypatch.setattr(objects, "MEMORY_BYTES", 0)
    monkeypatch.setattr(objects, "LARGE_BYTES", 1)
    monkeypatch.setattr(ObjectsOnDisk, "folder", tmp_path / "objects", raising=False)
    store, content = ObjectsOnDisk(verify=False), b"a model"
    name = hashlib.sha256(content).hexdigest()
    store.preregister(1, ObjectTree(object_id=name))
    for _ in range(2):
        store.put(name, content)
        assert store.get(name) == content and (tmp_path / "objects" / name).is_file()
    store.delete(name)
    assert list((tmp_path / "objects").iterdir()) == []
