"""Bare gRPC in its best form: raw bytes on one long-lived bidirectional call a directed edge, all
in one asyncio loop.

A frame goes out in messages of `message_bytes`; several sizes are measured and the fastest counts.
Sync gRPC with threads measures like asyncio. What arrives is counted and dropped, which the mesh
cannot do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from edgegossip.lab.bench.mesh.peers import PATIENCE_S
from edgegossip.mesh._grpc import grpc

T = TypeVar("T")
METHOD = "/bare.Bytes/Stream"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class BareHandler(grpc.GenericRpcHandler):
    """Keeps each caller's stream, which opens with the caller's name, for whoever reads it."""

    def __init__(self) -> None:
        self.streams: dict[str, grpc.aio.ServicerContext] = {}
        self.came = asyncio.Event()
        self._ended = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(self._stream)

    def end(self) -> None:
        self._ended.set()

    async def _stream(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        self.streams[(await context.read()).decode()] = context
        self.came.set()
        await self._ended.wait()


class BareGrpcPeer:
    """The loop runs only while an order is carried out."""

    def __init__(self, name: str, message_bytes: int) -> None:
        self._name, self._message_bytes = name, message_bytes
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._channels: list[grpc.aio.Channel] = []
        self._calls: dict[str, Any] = {}
        port = self._run(self._serve())
        self.address = f"127.0.0.1:{port}"

    def connect(self, peers: Mapping[str, str]) -> None:
        self._run(self._connect(peers))

    def send_frames(self, to: str, frames: int, size: int) -> float:
        return self._run(self._send_frames(self._calls[to], frames, self._messages(size)))

    def take_frames(self, sender: str, frames: int, size: int) -> None:
        self._run(self._take_frames(self._handler.streams[sender], frames, size))

    def ping(self, to: str, times: int, size: int) -> list[float]:
        return self._run(self._ping(self._calls[to], times, size))

    def pong(self, sender: str, times: int, size: int) -> None:
        self._run(self._pong(self._handler.streams[sender], times, size))

    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        return self._run(self._ring(neighbours, rounds, size))

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    # -- on the loop
    # -----------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _serve(self) -> int:
        self._handler = BareHandler()
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self._handler,))
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def _connect(self, peers: Mapping[str, str]) -> None:
        for peer, address in peers.items():
            channel = grpc.aio.insecure_channel(address, options=OPTIONS)
            self._channels.append(channel)
            self._calls[peer] = channel.stream_stream(METHOD)()
            await self._calls[peer].write(self._name.encode())
        async with asyncio.timeout(PATIENCE_S):
            while not set(peers) <= set(self._handler.streams):
                self._handler.came.clear()
                await self._handler.came.wait()

    def _messages(self, size: int) -> list[bytes]:
        full, rest = divmod(size, self._message_bytes)
        return [bytes(self._message_bytes)] * full + ([bytes(rest)] if rest else [])

    async def _send_frames(self, call: Any, frames: int, messages: Sequence[bytes]) -> float:
        async def write() -> None:
            for _ in range(frames):
                for message in messages:
                    await call.write(message)

        began_s = time.perf_counter()
        writer = asyncio.ensure_future(write())
        for _ in range(frames):
            await call.read()  # one byte: the frame is there
        await writer
        return time.perf_counter() - began_s

    async def _take_frames(self, stream: Any, frames: int, size: int) -> None:
        for _ in range(frames):
            await _read(stream, size)
            await stream.write(b"\0")

    async def _ping(self, call: Any, times: int, size: int) -> list[float]:
        messages, took_s = self._messages(size), []
        for _ in range(times):
            began_s = time.perf_counter()
            for message in messages:
                await call.write(message)
            await _read(call, size)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    async def _pong(self, stream: Any, times: int, size: int) -> None:
        messages = self._messages(size)
        for _ in range(times):
            await _read(stream, size)
            for message in messages:
                await stream.write(message)

    async def _ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        messages, ends_s = self._messages(size), []

        async def write(call: Any) -> None:
            for message in messages:
                await call.write(message)

        for _ in range(rounds):
            reads = [_read(self._handler.streams[peer], size) for peer in neighbours]
            await asyncio.gather(*(write(self._calls[peer]) for peer in neighbours), *reads)
            ends_s.append(time.perf_counter())
        return ends_s

    async def _close(self) -> None:
        for call in self._calls.values():
            call.cancel()
        for channel in self._channels:
            await channel.close()
        self._handler.end()
        await self._server.stop(0)


async def _read(stream: Any, size: int) -> None:
    got = 0
    while got < size:
        got += len(await stream.read())
