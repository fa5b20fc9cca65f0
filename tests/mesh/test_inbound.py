"""Reading that may be cancelled, and acknowledgements that wait for one another."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from edgegossip.mesh import inbound
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.inbound import ACK_INTERVAL_S, AckWriter


def test_a_read_that_is_cancelled_ends_in_its_own_time() -> None:
    """Or grpc.aio would keep what it allocated for it."""

    async def run() -> None:
        ended: list[str] = []
        message = asyncio.get_running_loop().create_future()

        async def read() -> bytes:
            try:
                return await message
            finally:
                ended.append("cancelled" if message.cancelled() else "went on")

        context = SimpleNamespace(read=read)
        task = asyncio.ensure_future(_await(inbound._read(context)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ended
        message.set_result(b"late")
        for _ in range(4):
            await asyncio.sleep(0)
        assert ended == ["went on"]

    asyncio.run(run())


async def _await(operation):
    return await operation


class Written:
    """Stands in for a call: keeps what is written, and when."""

    def __init__(self) -> None:
        self.acks: list[mesh_pb2.Ack] = []

    async def write(self, data: bytes) -> None:
        self.acks.append(mesh_pb2.ExchangeResponse.FromString(data).ack)


def acknowledge(*steps: tuple[int, int, bool] | float) -> list[mesh_pb2.Ack]:
    """Steps are (transfer, received, at once) or seconds to wait."""

    async def run() -> list[mesh_pb2.Ack]:
        written = Written()
        acks = AckWriter(written)
        acks.start()
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                acks.acknowledge(step[0], step[1], at_once=step[2])
        await acks.stop()
        return written.acks

    return asyncio.run(run())


def test_the_first_acknowledgement_goes_out_at_once_and_one_speaks_for_many():
    acks = acknowledge((1, 10, False), 0.0, *((i, 10, False) for i in range(2, 9)), 5 * ACK_INTERVAL_S)
    assert [ack.transfer for ack in acks] == [1, 8]
    assert acks[0].held_us < acks[1].held_us <= 5 * ACK_INTERVAL_S * 1e6


def test_what_was_asked_for_does_not_wait():
    acks = acknowledge((1, 10, False), 0.0, (2, 5, True), 0.0, 0.0, (2, 10, True), 0.0, 0.0)
    assert [(ack.transfer, ack.received) for ack in acks] == [(1, 10), (2, 5), (2, 10)]


def test_nothing_is_left_unsaid_at_the_end():
    assert [ack.transfer for ack in acknowledge((1, 10, False), 0.0, (2, 10, False))] == [1, 2]
    assert acknowledge() == []
