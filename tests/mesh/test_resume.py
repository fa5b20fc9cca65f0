"""A transfer that breaks goes on in the middle of its frame, as long as the receiver has the
part."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest

from edgegossip.memory import Spool
from edgegossip.mesh import GrpcTransport, outbound
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import Notice, PeerUp, Received, SendReceipt
from edgegossip.mesh.congestion import MAX_BYTES
from edgegossip.mesh.inbound import FrameAssembler, Refused, SenderState
from edgegossip.mesh.outbound import FrameQueue, OutgoingEdge, QueuedFrame
from edgegossip.mesh.shelf import Shelf
from edgegossip.mesh.wire import METHOD, ChunkView, chunk_message
from edgegossip.types import PeerError
from tests.mesh.relay import Cut
from tests.mesh.support import PATIENCE_S, QUICK, RUN, wait_for
from tests.mesh.test_refusals import hello

SIZE = 40_000_000


def test_a_broken_transfer_goes_on_where_it_was():
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        relay = Cut(b.address, 30_000_000)
        try:
            a.connect({"b": relay.address})
            b.connect({"a": a.address})
            wait_for(a, PeerUp)
            data = os.urandom(SIZE)
            a.send("b", [data])
            assert bytes(wait_for(b, Received).data) == data
            receipt = wait_for(a, SendReceipt)
            assert relay.cuts == 1
            assert receipt.frame_bytes == SIZE
            # What was under way is lost, with a little that Python had not seen yet; anew it would
            # be 70 MB.
            assert SIZE < receipt.message_bytes < SIZE + MAX_BYTES + 4_000_000
        finally:
            relay.close()


def test_breaks_lose_and_repeat_nothing_and_each_is_told_with_its_cause_and_its_end():
    with GrpcTransport("a", RUN, limits=QUICK) as a, GrpcTransport("b", RUN, limits=QUICK) as b:
        relay = Cut(b.address, 1_000_000, times=4)
        try:
            a.connect({"b": relay.address})
            b.connect({"a": a.address})
            wait_for(a, PeerUp)
            for i in range(400):
                a.send("b", [i.to_bytes(4, "big"), bytes(20_000)])
            for _ in range(4):  # of fewer causes than that
                assert wait_for(a, Notice).text.startswith(f"lost b at {relay.address}: ")
                assert wait_for(a, Notice).text == "b is back"
            assert [int.from_bytes(wait_for(b, Received).data[:4], "big") for _ in range(400)] == list(range(400))
        finally:
            relay.close()


class Room:
    """An inbox with all the room in the world that counts what is reserved."""

    def __init__(self) -> None:
        self.used = 0
        self.posted: list[Received] = []

    async def reserve(self, size: int) -> bool:
        self.used += size
        return True

    def release(self, size: int) -> None:
        self.used -= size

    def post(self, event: Received) -> None:
        self.posted.append(event)


def chunk(transfer: int, offset: int, total: int, data: bytes) -> ChunkView:
    return ChunkView(transfer, offset, total, False, memoryview(data))


def play(steps, keep_s: float = 60.0):
    """Steps are chunks with their stream's name, ("end", stream, keep) or a number of seconds to
    wait."""
    room, source = Room(), SenderState()

    async def run() -> None:
        intake = FrameAssembler("b", room, 100, keep_s, Shelf(Spool()))
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif step[0] == "end":
                intake.leave(source, step[1], keep=step[2])
            else:
                await intake.take("a", source, chunk(*step[1:]), step[0])

    asyncio.run(run())
    return room, source


@pytest.mark.parametrize(
    ("steps", "frames"),
    [
        ([("s", 1, 0, 4, b"ab"), ("s", 1, 2, 4, b"cd")], [b"abcd"]),
        ([("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 1, 2, 4, b"cd")], [b"abcd"]),
        ([("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 1, 0, 4, b"abcd")], [b"abcd"]),
        ([("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 3, 0, 2, b"xy")], [b"xy"]),
        ([("s", 1, 0, 4, b"ab"), ("end", "s", False), ("t", 1, 0, 2, b"xy")], [b"xy"]),
        ([("s", 1, 0, 4, b"ab"), ("t", 1, 2, 4, b"cd"), ("end", "s", False)], [b"abcd"]),  # the older one ends later
    ],
)
def test_chunks_over_streams(steps, frames):
    room, source = play(steps)
    assert [bytes(event.data) for event in room.posted] == frames
    assert room.used == sum(map(len, frames))
    assert source.part is None


@pytest.mark.parametrize(
    "steps",
    [
        [("s", 1, 2, 4, b"cd")],
        [("s", 1, 0, 4, b"ab"), ("end", "s", False), ("t", 1, 2, 4, b"cd")],
        [("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 2, 2, 4, b"cd")],
        [("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 1, 2, 5, b"cd")],
        [("s", 1, 0, 4, b"ab"), ("s", 1, 0, 4, b"ab")],
        [("s", 1, 0, 4, b"abcd"), ("t", 1, 0, 4, b"abcd")],
        [("s", 1, 0, 101, b"abcd")],
    ],
)
def test_chunks_that_do_not_follow(steps):
    with pytest.raises(Refused):
        play(steps)


def test_a_part_is_let_go_after_a_while():
    room, source = play([("s", 1, 0, 4, b"ab"), ("end", "s", True), 0.05], keep_s=0.01)
    assert (room.used, source.part) == (0, None)
    room, source = play([("s", 1, 0, 4, b"ab"), ("end", "s", True), ("t", 1, 2, 4, b"c"), 0.05], keep_s=0.01)
    assert room.used == 4  # a stream has taken it up
    assert source.part is not None


def test_a_part_stays_while_the_stream_that_was_told_of_it_is_served():
    """The first chunk of that stream may be longer on its way than a part is kept."""
    room, source = Room(), SenderState()

    async def run() -> None:
        intake = FrameAssembler("b", room, 100, 0.01, Shelf(Spool()))
        await intake.take("a", source, chunk(1, 0, 4, b"ab"), "s")
        intake.leave(source, "s", keep=True)
        source.task = asyncio.current_task()
        await asyncio.sleep(0.05)
        await intake.take("a", source, chunk(1, 2, 4, b"cd"), "t")
        assert [bytes(event.data) for event in room.posted] == [b"abcd"]
        await intake.take("a", source, chunk(2, 0, 4, b"ab"), "t")
        intake.leave(source, "t", keep=True)
        source.task = None
        await asyncio.sleep(0.05)
        assert source.part is None

    asyncio.run(run())


def test_another_process_goes_on_with_no_part_of_the_one_before():
    with GrpcTransport("b", RUN, limits=QUICK) as b, grpc.insecure_channel(b.address) as channel:
        b.connect({"a": "127.0.0.1:1"})
        begun = chunk_message(1, 0, 4, False, [memoryview(b"ab")])
        for session, partial_received, chunks in ((1, 0, [begun]), (1, 2, []), (2, 0, [])):
            call = channel.stream_stream(METHOD)(iter([hello(session=session), *chunks]), timeout=PATIENCE_S)
            [welcome] = [pb.ExchangeResponse.FromString(message).welcome for message in call]
            assert welcome.partial_received == partial_received


class Tried(OutgoingEdge):
    """An edge whose streams are scripted: each comes up, or does not, and ends after so long."""

    def __init__(self, script: list[tuple[bool, float]]) -> None:
        self.ceilings_s: list[float] = []
        random = SimpleNamespace(uniform=lambda _least_s, most_s: self.ceilings_s.append(most_s) or 0.0)
        super().__init__("b", b"", QUICK, None, lambda _event: None, random, None)
        self.script, self.now_s = script, 0.0

    async def _try_stream(self, _attempt: int) -> None:
        up, lasts_s = self.script.pop(0)
        if up:
            self._came_up()
        self.now_s += lasts_s
        self._leaving = not self.script
        raise PeerError("it ended")


AWAY, COMES = (False, 0.0), (True, 0.0)


@pytest.mark.parametrize(
    ("script", "ceilings_s", "waits_s"),
    [
        ([AWAY] * 3 + [(True, 99.0)] + [AWAY] * 3, [1, 2, 4, 0.5, 1, 2], 0.0),
        ([COMES] + [AWAY] * 40, [1, 2, 4, *[4] * 37], 0.0),
        ([COMES] * 34, [1, 2, 4, *[4] * 30], 4.0),  # the 33rd is taken back after a while
        ([COMES] * 99, [1, 2, 4, *[4] * 30], 0.2),  # we leave meanwhile
    ],
)
def test_a_peer_is_tried_less_often_until_a_stream_lives_and_taken_back_now_and_then(
    monkeypatch, script, ceilings_s, waits_s
):
    edge, waited_s = Tried(script), []

    async def sleep(seconds: float) -> None:
        edge.now_s += seconds
        waited_s.append(seconds)
        edge._leaving |= seconds > 0.0 and len(edge.script) > 60

    monkeypatch.setattr(outbound, "loop_s", lambda: edge.now_s)
    monkeypatch.setattr(outbound.asyncio, "sleep", sleep)
    asyncio.run(edge._run(None))
    most_s, least_s = QUICK.backoff_max_s, QUICK.backoff_min_s
    assert edge.ceilings_s == [min(most_s, least_s * times) for times in ceilings_s]
    assert sum(waited_s) == pytest.approx(waits_s, abs=0.01)


def test_why_we_ended_a_connection_is_said_of_that_one_alone():
    async def run() -> None:
        async def nothing(*_: object) -> None: ...

        async def read() -> bytes:
            if drops:
                await edge.drop(drops.pop())
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, None, "Connection refused")

        @asynccontextmanager
        async def open_channel(*_: object):
            call = SimpleNamespace(write=nothing, read=read, cancel=lambda: None)
            yield SimpleNamespace(stream_stream=lambda _method: lambda: call, close=nothing)

        channels, drops = SimpleNamespace(check=nothing, open=open_channel), ["its certificate was revoked"]
        edge = OutgoingEdge("b", b"", QUICK, channels, lambda _event: None, None, None)
        edge.address = Address("127.0.0.1", 1)
        for why in ("its certificate was revoked", "connection refused"):
            with pytest.raises(PeerError, match=why):
                await edge._try_stream(0)

    asyncio.run(run())


def frame(transfer_of: FrameQueue, size: int) -> QueuedFrame:
    made = QueuedFrame(1, (memoryview(bytes(size)),), size, 0.0)
    transfer_of.add(made)
    return made


@pytest.mark.parametrize(
    ("partial", "received", "resumed"), [(1, 5, [5, 0]), (2, 5, [0, 0]), (1, 10, [0, 0]), (9, 3, [0, 0])]
)
def test_what_a_new_stream_begins_with(partial, received, resumed):
    async def run() -> None:
        queue = FrameQueue()
        frames = [frame(queue, 10), frame(queue, 10)]
        queue.start_next()
        assert queue.restart(0, partial, received) == []
        assert [f.resume_bytes for f in frames] == resumed
        assert queue.restart(1, partial, received) == frames[:1]
        assert queue.restart(1) == []
        assert frames[1].resume_bytes == 0

    asyncio.run(run())
