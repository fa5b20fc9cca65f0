"""A board of the fleet that was taken over sends nothing but valid messages, of rounds that are far
away: what a board keeps of them is not in its memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import psutil

from edgegossip import codecs, frame
from edgegossip import recipe as recipes
from edgegossip.layout import Layout
from edgegossip.mesh import MeshLimits
from edgegossip.mesh import address as addresses
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.connections import ChannelFactory
from edgegossip.mesh.membership.client import request_join
from edgegossip.mesh.tls_security import TlsSecurity
from edgegossip.mesh.wire import METHOD, chunk_message
from edgegossip.training import build_workload
from lab.soak.boards import fleet

EVIL = "evil"
PATIENCE_S = 90.0
CHUNK_BYTES = 1 << 21
HOARD = 70  # messages: 31 rounds may pass without news, in a graph of four boards
SETTINGS = (
    *("model.name=lab.soak.slow_mlp:slow_mlp", "model.params.hidden=[7000]", "model.params.pause_s=0.4"),
    *("training.local_steps=1", "run.rounds=1000000", "gossip.topology=complete", "gossip.params.staleness=30"),
)


class Watch(threading.Thread):
    """Sees how much memory a process takes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._over = psutil.Process(pid), threading.Event()
        self.idle_bytes = self.peak_bytes = self._process.memory_info().rss

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def until(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def layout_of(settings: Sequence[str]) -> Layout:
    values = {key: recipes.parse_value(text) for key, _, text in (s.partition("=") for s in settings)}
    return build_workload(recipes.with_settings(recipes.load("quickstart-gossip"), values), 0).layout


async def hoard(security: TlsSecurity, where: addresses.Address, run_id: bytes, layout: Layout) -> int:
    """Say to board a what a neighbour says in each of HOARD rounds to come; how much it took."""
    body, codec = np.full(layout.size, 1e-3, "<f4").tobytes(), codecs.get("fp32")
    channels = ChannelFactory(MeshLimits(), security)
    await channels.check("a", where)

    async def said() -> AsyncIterator[bytes]:
        hello = pb.Hello(protocol_version=1, run_id=run_id, sender=EVIL, receiver="a", session=7)
        yield pb.ExchangeRequest(hello=hello).SerializeToString()
        for k in range(1, HOARD + 1):
            message = frame.Frame(frame.Kind.MODEL, codec.wire_id, b"", layout.hash, run_id, 10_000 + k, k, 0, body)
            data = memoryview(b"".join(frame.build(message)))
            for at in range(0, len(data), CHUNK_BYTES):
                yield chunk_message(k, at, len(data), True, [data[at : at + CHUNK_BYTES]])

    taken = 0
    channel = channels.open("a", where)
    while not taken:  # on a busy machine a caller comes too late with its hello, and calls again, as boards do
        async for answer in channel.stream_stream(METHOD)(said(), timeout=PATIENCE_S):
            told = pb.ExchangeResponse.FromString(answer)
            assert not told.HasField("refusal") or "said nothing for" in told.refusal.reason, told.refusal
            taken = max(taken, told.ack.transfer)
            if taken == HOARD:
                break
    await channel.close()
    return taken


def test_what_a_member_has_boards_keep_is_not_in_their_memory() -> None:
    with fleet(("a", "b", "c", EVIL), SETTINGS) as boards:
        stolen = boards.processes.pop(EVIL)
        stolen.kill()
        stolen.wait()
        security = TlsSecurity.load(boards.identity(EVIL))
        where = addresses.parse(boards.address("a"), "target")
        manifest: Any = request_join(where, EVIL, security).manifest
        layout = layout_of(SETTINGS)

        def step() -> int:
            return int(boards.last("a")["step"])

        with Watch(boards.processes["a"].pid) as watch:
            taken = asyncio.run(hoard(security, where, manifest.run_id, layout))
            after = step() + 3
            until(lambda: step() >= after)
        [files] = [p for p in boards.sample().values() if p["round"] >= after][:1]
        assert taken == HOARD and not [e for e in boards.events("a") if e["event"] == "refused"]
    grew = watch.peak_bytes - watch.idle_bytes
    assert grew < 3 * 4 * layout.size + (64 << 20), f"{watch.idle_bytes >> 20} MiB idle, {grew >> 20} more then"
    assert files["descriptors"] > HOARD // 2  # they are kept, for all that
