"""Large buffers: the same bytes from memory and from a file, which leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgegossip.memory import Spool

PIECES = [bytes([k]) * 1000 for k in range(50)]


@pytest.mark.parametrize("above_bytes", [10**9, 10], ids=["memory", "file"])
def test_pieces_come_back_as_one(tmp_path: Path, above_bytes: int) -> None:
    spool = Spool(tmp_path, above_bytes)
    buffer = spool.buffer(50_000)
    for piece in PIECES:
        buffer.put(piece)
    assert bytes(buffer.whole()) == b"".join(PIECES) == bytes(spool.joined(PIECES))
    assert list(tmp_path.iterdir()) == []


def test_a_large_buffer_is_mapped_and_goes_with_its_last_reference(tmp_path: Path) -> None:
    def mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    whole = Spool(tmp_path, 10).joined(PIECES)
    assert mapped() and isinstance(whole, memoryview) and whole.readonly
    descriptors = len(os.listdir("/proc/self/fd"))
    del whole
    assert not mapped() and len(os.listdir("/proc/self/fd")) < descriptors + 1


def test_a_disk_that_fills_up_on_the_way_costs_memory_and_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = Spool(tmp_path, 10).buffer(50_000)
    for piece in PIECES[:30]:
        buffer.put(piece)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for piece in PIECES[30:]:
        buffer.put(piece)
    assert bytes(buffer.whole()) == b"".join(PIECES)


def test_a_folder_that_is_not_there_is_memory(tmp_path: Path) -> None:
    assert bytes(Spool(tmp_path / "none", 10).joined(PIECES)) == b"".join(PIECES)


@pytest.mark.parametrize("full", [False, True], ids=["room", "full disk"])
def test_room_to_write_to_is_a_file_where_the_disk_has_room(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if full:
        monkeypatch.setattr(os, "posix_fallocate", none)
    room = Spool(tmp_path, 10).room(50_000)
    assert (str(tmp_path) in Path("/proc/self/maps").read_text()) != full
    assert (room is None) == full and Spool(tmp_path).room(50_000) is None
    if room is not None:
        room[:] = np.frombuffer(b"".join(PIECES), np.uint8)
        assert bytes(room) == b"".join(PIECES) and not list(tmp_path.iterdir())


FRAMES_TO_AND_FRO = """
import resource
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import PeerUp, Received

a, b = GrpcTransport("a", bytes(16)), GrpcTransport("b", bytes(16))
a.connect({"b": b.address}), b.connect({"a": a.address})

def wait(node, kind):
    while not isinstance(node.incoming(10.0), kind):
        pass

def rounds(count):
    for _ in range(count):
        for node, peer in ((a, "b"), (b, "a")):
            node.send(peer, [frame])
        for node in (a, b):
            wait(node, Received)

frame = bytes(1_000_000)
wait(a, PeerUp), wait(b, PeerUp)
rounds(20)  # chunks get larger, and with them what is kept
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds(50)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 100)
a.close(), b.close()
"""


def test_frames_find_the_memory_of_those_before_them() -> None:
    done = subprocess.run([sys.executable, "-c", FRAMES_TO_AND_FRO], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60  # of the 244 pages of a frame, which are several times in memory
