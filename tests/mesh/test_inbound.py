"""Reading that may be cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from edgegossip.mesh import inbound


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
