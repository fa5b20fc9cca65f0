"""The SuperLink's objects that lie on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from flwr.proto.message_pb2 import ObjectTree

from edgegossip.flower._private import superlink
from edgegossip.flower._private.superlink import ObjectsOnDisk


def test_an_object_that_a_board_sends_once_more_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost on the way, and it tries again."""
    monkeypatch.setattr(superlink, "MEMORY_BYTES", 0)
    monkeypatch.setattr(superlink, "LARGE_BYTES", 1)
    monkeypatch.setattr(ObjectsOnDisk, "folder", tmp_path / "objects", raising=False)
    store, content = ObjectsOnDisk(verify=False), b"a model"
    name = hashlib.sha256(content).hexdigest()
    store.preregister(1, ObjectTree(object_id=name))
    for _ in range(2):
        store.put(name, content)
        assert store.get(name) == content and (tmp_path / "objects" / name).is_file()
    store.delete(name)
    assert list((tmp_path / "objects").iterdir()) == []
