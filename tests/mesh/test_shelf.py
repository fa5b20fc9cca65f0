"""Where frames that peers have kept here lie: whatever they send, little of it is memory, and
nothing of an honest board's is lost."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import LEAST_FRAME_BYTES
from edgegossip.memory import Spool
from edgegossip.mesh import GrpcTransport, shelf
from edgegossip.mesh.base import Notice, Received, SendReceipt
from edgegossip.mesh.inbound import FrameAssembler, SenderState
from edgegossip.mesh.shelf import Shelf, Views
from edgegossip.mesh.wire import ChunkView
from tests.mesh.support import QUICK, RUN, connect_all, until, wait_for

FRAME, SPARE, SMALL, SMALL_ROOM = 100_000, 400_000, 5_000, 80_000
MOST = 2 * FRAME + SPARE + SMALL_ROOM


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_SPARE_BYTES", SPARE)
    monkeypatch.setattr(shelf, "_SMALL_BYTES", SMALL)
    monkeypatch.setattr(shelf, "_SMALL_ROOM_BYTES", SMALL_ROOM)
    monkeypatch.setattr(shelf, "_MOST_FILES", 60)


def lies_in_file(data: memoryview) -> bool:
    holder: Any = data
    while holder is not None and not isinstance(holder, mmap.mmap):
        holder = holder.obj if isinstance(holder, memoryview) else getattr(holder, "base", None)
    return holder is not None


class Board:
    """Takes frames in as a board does, and keeps what `frames` says."""

    def __init__(self, spool: Spool, senders: int = 6) -> None:
        self.spool, self.shelf = spool, Shelf(spool)
        self.shelf.bound(FRAME, senders)
        self.assembler = FrameAssembler("here", self, 10 * FRAME, 60.0, self.shelf)  # type: ignore[arg-type]
        self.sources: dict[str, SenderState] = {}
        self.frames: list[Received] = []
        self.said: list[str] = []
        self.room = 0

    async def reserve(self, size: int) -> bool:
        self.room += size
        return True

    def release(self, size: int) -> None:
        self.room -= size

    def post(self, event: Received | Notice) -> None:
        if isinstance(event, Notice):
            self.said.append(event.text)
        else:
            self.release(len(event.data))
            self.frames.append(event)

    def get(self, sender: str, data: bytes, chunks: int = 1, all_of_it: bool = True) -> None:
        """A frame comes, or its first chunks."""
        source = self.sources.setdefault(sender, SenderState())
        step = -(-len(data) // chunks)

        async def come() -> None:
            number = source.completed + 1
            for at in list(range(0, len(data), step))[: None if all_of_it else -1]:
                view = ChunkView(number, at, len(data), False, memoryview(data)[at : at + step])
                await self.assembler.take(sender, source, view, "stream")

        asyncio.run(come())

    @property
    def memory_bytes(self) -> int:
        return sum(max(len(f.data), LEAST_FRAME_BYTES) for f in self.frames if not lies_in_file(f.data))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_kept_little_of_it_is_memory(tmp_path: Path, seed: int) -> None:
    random, board = Random(seed), Board(Spool(tmp_path))
    sizes = ((1, 1), (SMALL - 1, 1), (FRAME, 1), (FRAME, 3), (FRAME // 3, 2), (SMALL, 1))
    for k in range(600):
        size, chunks = random.choice(sizes)
        data = bytes([k % 251]) * size
        count = len(board.frames)
        board.get(f"s{random.randrange(6)}", data, chunks)
        assert board.frames[count:] == [] or bytes(board.frames[-1].data) == data
        assert board.memory_bytes <= MOST and board.room == 0
        while board.frames and random.random() < 0.3:
            del board.frames[random.randrange(len(board.frames))]
    assert any(lies_in_file(f.data) for f in board.frames) and not list(tmp_path.iterdir())  # type: ignore[arg-type]


def test_what_goes_makes_room_wherever_it_was(tmp_path: Path) -> None:
    board = Board(Spool(tmp_path))
    for _ in range(3):
        for k in range(14):
            board.get(f"s{k % 6}", bytes(FRAME), 2)
            board.get(f"s{k % 6}", bytes(FRAME), 2, all_of_it=False)  # and is given up
            board.assembler.drop(board.sources[f"s{k % 6}"])
        assert [lies_in_file(f.data) for f in board.frames] == [False] * 6 + [True] * 8  # type: ignore[arg-type]
        views = [f.data[5:50] for f in board.frames]  # whoever keeps a part keeps it all
        board.frames.clear()
        board.get("s0", bytes(FRAME))
        assert lies_in_file(board.frames.pop().data) and len(views) == 14  # type: ignore[arg-type]
        views.clear()


def test_a_first_frame_that_is_larger_than_a_share_is_memory(tmp_path: Path) -> None:
    """Where models are large, each frame is: the card would get all of them."""
    its = Shelf(Spool(tmp_path))
    its.bound(FRAME, 8)
    first, second = its.take("a", FRAME), its.take("a", FRAME)
    assert FRAME > (2 * FRAME + SPARE) // 8
    assert first is not None and not first.in_file and second is not None and second.in_file


def flooded(size: int) -> Callable[[Board], None]:
    def flood(board: Board) -> None:
        for _ in range(300):
            board.get("evil", bytes(size))

    return flood


@pytest.mark.parametrize("flood", [flooded(1), flooded(SMALL), flooded(FRAME)], ids=["tiny", "small", "large"])
def test_a_flood_takes_nothing_of_what_another_needs(tmp_path: Path, flood: Callable[[Board], None]) -> None:
    """Neither of large frames nor of the small ones that go with them."""
    board, before = Board(Spool(tmp_path)), len(os.listdir("/proc/self/fd"))
    flood(board)
    assert len(os.listdir("/proc/self/fd")) < before + 150
    count = len(board.frames)
    for k in range(8):
        for sender in range(5):
            board.get(f"s{sender}", bytes([k]) * FRAME, 2)
            board.get(f"s{sender}", bytes([k]) * 100)
    assert [bytes(f.data[:1])[0] for f in board.frames[count:]] == [k for k in range(8) for _ in range(10)]
    assert board.memory_bytes <= MOST


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_what_a_full_disk_does_not_take_is_lost_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full)
    board = Board(Spool(tmp_path))
    for k in range(4):
        for sender in range(6):
            board.get(f"s{sender}", bytes([k]) * FRAME, 2)
    assert [bytes(f.data[:1]) for f in board.frames] == [b"\0"] * 6 and board.memory_bytes <= MOST
    assert board.room == 0 and len(board.said) == 1 and "here had no room for a message" in board.said[0]
    board.frames.clear()
    board.get("s0", bytes(FRAME), 2)
    assert len(board.frames) == 1  # what is there in its time is taken all the same


def test_without_a_folder_nothing_is_lost() -> None:
    board = Board(Spool())
    for _ in range(100):
        board.get("s0", bytes(FRAME))
    assert len(board.frames) == 100


def test_pages_that_were_read_are_given_back_and_come_again(tmp_path: Path) -> None:
    def resident() -> int:
        found = Path("/proc/self/smaps").read_text().split(str(tmp_path))[1:]
        return sum(int(part.split("Rss:")[1].split()[0]) for part in found)

    board = Board(Spool(tmp_path), senders=1)
    data = np.random.default_rng(0).bytes(FRAME)
    for _ in range(9):
        board.get("s0", data)
    kept = [f.data for f in board.frames if lies_in_file(f.data)]  # type: ignore[arg-type]
    assert len(kept) == 3 and all(bytes(view) == data for view in kept)
    assert resident() >= 3 * FRAME // 1024
    board.spool.settle()
    assert resident() == 0 and bytes(kept[1]) == data


class Waiting:
    """Frames that wait for peers, as a transport has them."""

    def __init__(self, spool: Spool) -> None:
        self.shelf, self.queues = Shelf(spool), list[Views]()
        self.shelf.bound(FRAME, 3)

    def send(self, body: bytes) -> Views:
        views = self.shelf.lend((memoryview(b"head"), memoryview(body)))
        self.queues.append(views)
        assert b"".join(views) == b"head" + body
        return views

    @property
    def memory_bytes(self) -> int:
        large = [views[-1] for views in self.queues if len(views) > 1 and len(views[-1]) >= SMALL]
        bodies = {(len(body), body[0]): len(body) for body in large}  # no two have the same
        return sum(bodies.values())


def test_what_waits_for_peers_that_take_nothing_is_hardly_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_SPARE_TO_SEND_BYTES", FRAME // 2)
    waiting, random = Waiting(Spool(tmp_path)), Random(1)
    for k in range(200):
        body = bytes([k]) * FRAME
        for _ in range(3):  # neighbours
            waiting.send(body)
        waiting.send(bytes([k]) * (FRAME // 4))  # and what is for one alone
        waiting.send(b"hello")
        assert waiting.memory_bytes <= 2 * FRAME
        while waiting.queues and random.random() < 0.8:
            del waiting.queues[random.randrange(len(waiting.queues))]
    waiting.queues.clear()
    body = bytes(FRAME)
    assert [lies_in_file(waiting.send(body)[-1]) for _ in range(9)] == [False] * 9
    assert lies_in_file(waiting.send(bytes(FRAME))[-1])
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        waiting.send(bytes(FRAME))
    assert not lies_in_file(waiting.send(body)[-1])


@pytest.mark.parametrize("senders", [1, 2, 7, 63])
def test_what_plan_and_doctor_say_that_messages_take_is_what_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, senders: int
) -> None:
    """Both ways at once, with all that members can send and nothing that they take."""
    monkeypatch.setattr(shelf, "_SPARE_TO_SEND_BYTES", FRAME // 2)
    board, waiting = Board(Spool(tmp_path), senders), Waiting(Spool(tmp_path))
    for size in (FRAME, SMALL - 1, 1):
        for k in range(senders):
            count = -1
            while count < len(board.frames):
                count = len(board.frames)
                if count < 2000:
                    board.get(f"s{k}", bytes(size))
    for k in range(20):
        waiting.send(bytes([k]) * (FRAME // 2))
    taken, most = board.memory_bytes + waiting.memory_bytes, shelf.most_bytes(FRAME) - SMALL_ROOM  # of what waits small
    assert 0.8 * most < taken <= most


def test_frames_for_a_peer_that_takes_nothing_arrive_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_SPARE_TO_SEND_BYTES", FRAME // 2)
    stuck = replace(QUICK, max_inbox_bytes=1_000)
    with (
        GrpcTransport("a", RUN, limits=QUICK, spool=Spool(tmp_path)) as a,
        GrpcTransport("b", RUN, limits=stuck) as b,
    ):
        connect_all([a, b], ["a", "b"])
        a.limit_frames(FRAME)
        for k in range(9):
            a.send("b", [bytes([k]), bytes([k]) * (FRAME - 1)])
        until(lambda: str(tmp_path) in Path("/proc/self/maps").read_text(), "some wait in files")
        for k in range(9):
            assert bytes(wait_for(b, Received).data) == bytes([k]) * FRAME
        for _ in range(9):
            wait_for(a, SendReceipt)
        until(lambda: str(tmp_path) not in Path("/proc/self/maps").read_text(), "and are let go")


def test_a_sender_has_its_share_of_files_to_the_last_and_again_once_they_are_gone(tmp_path: Path) -> None:
    its = Shelf(Spool(tmp_path, 0))
    its.bound(FRAME, 6)
    for _ in range(2):
        kept = [place for _ in range(12) if (place := its.take("a", 7 * FRAME)) is not None]
        assert len(kept) == 60 // 6 and all(place.in_file for place in kept)
        for place in kept:
            its.drop(place)


def test_who_sends_much_takes_the_memory_of_nobody_else(tmp_path: Path) -> None:
    board = Board(Spool(tmp_path))
    for _ in range(5):
        board.get("greedy", bytes(FRAME))
    for k in range(4):
        board.get(f"honest-{k}", bytes(FRAME))
    in_memory = [frame.sender for frame in board.frames if not lies_in_file(frame.data)]
    assert in_memory == ["greedy", *(f"honest-{k}" for k in range(4))]
