"""One process of a measurement, with its end of a transport:
`python -m lab.bench.mesh_peers KIND NAME`. Orders come as JSON lines on its standard
input, each is answered by one JSON line; it ends when the input does.

Every kind of peer does the same work for the same orders: `send_frames` against `take_frames`,
`ping` against `pong`, `ring` on all.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from edgegossip.memory import enlarge_heap
from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import PeerUp, Received, SendFailed, SendReceipt, TransportEvent
from edgegossip.mesh.transport import KEPT_BYTES
from edgegossip.types import PeerError

PATIENCE_S = 60.0  # longest silence; bounds a measurement that hangs
RUN_ID = bytes(16)
_SAY_S = 5.0  # a node that waits wakes up this often, to say for whom


class Peer(Protocol):
    """Seconds are wall seconds of this process; sizes are bytes."""

    address: str  # host:port where the others reach it

    def connect(self, peers: Mapping[str, str]) -> None:
        """Be ready to send to each of `peers` (name -> address). Both ends are asked to connect."""

    def send_frames(self, to: str, frames: int, size: int) -> float:
        """Send all frames one after the other, until the other end is known to have the last;
        return the seconds for all."""

    def take_frames(self, sender: str, frames: int, size: int) -> None:
        """Be the other end of `send_frames`."""

    def ping(self, to: str, times: int, size: int) -> list[float]:
        """Send a frame and await one of the same size, one pair after the other; return the seconds
        for each pair."""

    def pong(self, sender: str, times: int, size: int) -> None:
        """Be the other end of `ping`."""

    def close(self) -> None:
        """Let go of sockets, channels and threads."""


class RingPeer(Peer, Protocol):
    """Is the mesh, or the rival that its rings are measured against."""

    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        """Exchange a frame with each neighbour a round, without computing; return the seconds at
        the end of each round."""


class MeshPeer(RingPeer):
    """Drives GrpcTransport as a node uses it: from another thread than its own. A RingPeer, which
    also idles."""

    def __init__(self, name: str, transport: GrpcTransport | None = None) -> None:
        self._transport = transport or GrpcTransport(name, RUN_ID, limits=MeshLimits(grace_s=30.0))
        self.address = self._transport.address
        self._frames: Counter[str] = Counter()  # taken from `incoming` and not asked for yet
        self._under_way: set[int] = set()  # numbers of frames whose receipts have not come

    @override
    def connect(self, peers: Mapping[str, str]) -> None:
        self._transport.connect(peers)
        waiting = set(peers)
        while waiting:
            event = self._next()
            if isinstance(event, PeerUp):
                waiting.discard(event.peer)

    @override
    def send_frames(self, to: str, frames: int, size: int) -> float:
        data = bytes(size)
        while self._under_way:  # receipts of an earlier order may come late
            self._take()
        began_s = time.perf_counter()
        for _ in range(frames):
            self._send(to, data)
        while self._under_way:
            self._take()
        return time.perf_counter() - began_s

    @override
    def take_frames(self, sender: str, frames: int, size: int) -> None:
        for _ in range(frames):
            self._frame(sender)

    @override
    def ping(self, to: str, times: int, size: int) -> list[float]:
        data, took_s = bytes(size), []
        for _ in range(times):
            began_s = time.perf_counter()
            self._send(to, data)
            self._frame(to)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    @override
    def pong(self, sender: str, times: int, size: int) -> None:
        data = bytes(size)
        for _ in range(times):
            self._frame(sender)
            self._send(sender, data)

    @override
    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        data, ends_s = bytes(size), []
        for _ in range(rounds):
            for peer in neighbours:
                self._send(peer, data)
            for peer in neighbours:
                self._frame(peer)
            ends_s.append(time.perf_counter())
        return ends_s

    def idle(self, seconds: float) -> float:
        """Wait for peers as a node does; CPU seconds of this process."""
        began_s, end_s = time.process_time(), time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self._note(self._transport.incoming(min(left_s, _SAY_S)))
        return time.process_time() - began_s

    @override
    def close(self) -> None:
        self._transport.close()

    def _send(self, to: str, data: bytes) -> None:
        self._under_way.add(self._transport.send(to, [data]))

    def _frame(self, sender: str) -> None:
        while not self._frames[sender]:
            self._take()
        self._frames[sender] -= 1

    def _take(self) -> None:
        self._note(self._next())

    def _note(self, event: TransportEvent | None) -> None:
        if isinstance(event, Received):
            self._frames[event.sender] += 1
        elif isinstance(event, SendReceipt):
            self._under_way.discard(event.frame_id)
        elif isinstance(event, SendFailed):
            raise PeerError(f"a frame to {event.to} failed: {event.reason}")

    def _next(self) -> TransportEvent:
        event = self._transport.incoming(PATIENCE_S)
        if event is None:
            raise PeerError(f"nothing happened for {PATIENCE_S:g} s")
        return event


_T = TypeVar("_T")
_SERVICE, _STREAM = "bare.Bytes", "Stream"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
# What who tunes gRPC for large messages sets: windows and frames of HTTP/2 that hold several
# messages, no pings that measure the link, reads of up to 4 MiB.
_TUNED_OPTIONS = (
    *_OPTIONS,
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.experimental.tcp_read_chunk_size", 1 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 1 << 16),
    ("grpc.experimental.tcp_max_read_chunk_size", 4 << 20),
)


class _BareService:
    """The receiving end: keeps each caller's stream, which opens with the caller's name, for
    whoever reads it."""

    def __init__(self) -> None:
        self.streams: dict[str, grpc.aio.ServicerContext] = {}
        self.came = asyncio.Event()
        self._ended = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return it as a server takes it, without serialisers."""
        return grpc.method_handlers_generic_handler(
            _SERVICE, {_STREAM: grpc.stream_stream_rpc_method_handler(self._stream)}
        )

    def end(self) -> None:
        """End all streams."""
        self._ended.set()

    async def _stream(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        self.streams[(await context.read()).decode()] = context
        self.came.set()
        await self._ended.wait()


class BareGrpcPeer(RingPeer):
    """Drives bare gRPC in its best form: raw bytes on one long-lived bidirectional call a directed
    edge, all in one asyncio loop, which runs only while an order is carried out.

    A frame goes out in messages of `message_bytes`; several sizes are measured and the fastest
    counts. Sync gRPC with threads measures like asyncio. As it comes, it sends the same bytes again
    and again, and drops what arrives: that is what gRPC alone costs. `tuned`: with wide windows,
    the heap that the mesh has, and what a user's program has to do: messages are made of memory
    that holds a model, and what arrives is put together in memory of its own.
    """

    def __init__(self, name: str, message_bytes: int, *, tuned: bool) -> None:
        self._name, self._message_bytes, self._tuned = name, message_bytes, tuned
        self._options = _TUNED_OPTIONS if tuned else _OPTIONS
        if tuned:
            enlarge_heap(KEPT_BYTES)
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._channels: list[grpc.aio.Channel] = []
        self._calls: dict[str, Any] = {}
        self._room: dict[int, bytearray] = {}  # of frames of that size: one at a time is read
        port = self._run(self._serve())
        self.address = f"127.0.0.1:{port}"

    @override
    def connect(self, peers: Mapping[str, str]) -> None:
        self._run(self._connect(peers))

    @override
    def send_frames(self, to: str, frames: int, size: int) -> float:
        return self._run(self._send_frames(self._calls[to], frames, size))

    @override
    def take_frames(self, sender: str, frames: int, size: int) -> None:
        self._run(self._take_frames(self._service.streams[sender], frames, size))

    @override
    def ping(self, to: str, times: int, size: int) -> list[float]:
        return self._run(self._ping(self._calls[to], times, size))

    @override
    def pong(self, sender: str, times: int, size: int) -> None:
        self._run(self._pong(self._service.streams[sender], times, size))

    @override
    def ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        return self._run(self._ring(neighbours, rounds, size))

    @override
    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    async def _serve(self) -> int:
        self._service = _BareService()
        self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def _connect(self, peers: Mapping[str, str]) -> None:
        for peer, address in peers.items():
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels.append(channel)
            self._calls[peer] = channel.stream_stream(f"/{_SERVICE}/{_STREAM}")()
            await self._calls[peer].write(self._name.encode())
        async with asyncio.timeout(PATIENCE_S):
            while not set(peers) <= set(self._service.streams):
                self._service.came.clear()
                await self._service.came.wait()

    def _messages(self, size: int) -> Callable[[], Iterable[bytes]]:
        """Return what makes the messages of the next frame. gRPC takes nothing but `bytes`."""
        starts = range(0, size, self._message_bytes)
        model = memoryview(bytearray(size))
        if self._tuned:
            return lambda: (bytes(model[at : at + self._message_bytes]) for at in starts)
        made = [bytes(model[at : at + self._message_bytes]) for at in starts]
        return lambda: made

    async def _read_all(self, stream: Any, size: int) -> None:
        """Read a frame; tuned gRPC then has it in one piece, in memory that is used again and
        again."""
        message = await stream.read()
        got = len(message)
        frame = memoryview(self._room.setdefault(size, bytearray(size))) if self._tuned and got < size else None
        if frame is not None:
            frame[:got] = message
        while got < size:
            message = await stream.read()
            if frame is not None:
                frame[got : got + len(message)] = message
            got += len(message)

    async def _send_frames(self, call: Any, frames: int, size: int) -> float:
        messages = self._messages(size)

        async def write() -> None:
            for _ in range(frames):
                for message in messages():
                    await call.write(message)

        began_s = time.perf_counter()
        writer = asyncio.ensure_future(write())
        for _ in range(frames):
            await call.read()  # one byte: the frame is there
        await writer
        return time.perf_counter() - began_s

    async def _take_frames(self, stream: Any, frames: int, size: int) -> None:
        for _ in range(frames):
            await self._read_all(stream, size)
            await stream.write(b"\0")

    async def _ping(self, call: Any, times: int, size: int) -> list[float]:
        messages, took_s = self._messages(size), []
        for _ in range(times):
            began_s = time.perf_counter()
            for message in messages():
                await call.write(message)
            await self._read_all(call, size)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    async def _pong(self, stream: Any, times: int, size: int) -> None:
        messages = self._messages(size)
        for _ in range(times):
            await self._read_all(stream, size)
            for message in messages():
                await stream.write(message)

    async def _ring(self, neighbours: Sequence[str], rounds: int, size: int) -> list[float]:
        messages, ends_s = self._messages(size), []

        async def write(call: Any) -> None:
            for message in messages():
                await call.write(message)

        for _ in range(rounds):
            reads = [self._read_all(self._service.streams[peer], size) for peer in neighbours]
            await asyncio.gather(*(write(self._calls[peer]) for peer in neighbours), *reads)
            ends_s.append(time.perf_counter())
        return ends_s

    async def _close(self) -> None:
        for call in self._calls.values():
            call.cancel()
        for channel in self._channels:
            await channel.close()
        self._service.end()
        await self._server.stop(0)


_BUFFER_BYTES = 1 << 20


class TcpPeer(Peer):
    """Drives a plain TCP socket a pair of processes: blocking, TCP_NODELAY, into one buffer again
    and again. The one whose name comes first in the alphabet connects to the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(PATIENCE_S)
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"

    @override
    def connect(self, peers: Mapping[str, str]) -> None:
        for peer, address in sorted(peers.items()):
            if self._name < peer:
                host, port = address.split(":")
                connected = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            else:
                connected, _ = self._server.accept()
                connected.settimeout(PATIENCE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[peer] = connected

    @override
    def send_frames(self, to: str, frames: int, size: int) -> float:
        data, link = bytes(size), self._sockets[to]
        began_s = time.perf_counter()
        for _ in range(frames):
            link.sendall(data)
        self._read(link, frames)  # one byte a frame
        return time.perf_counter() - began_s

    @override
    def take_frames(self, sender: str, frames: int, size: int) -> None:
        link = self._sockets[sender]
        for _ in range(frames):
            self._read(link, size)
            link.sendall(b"\0")

    @override
    def ping(self, to: str, times: int, size: int) -> list[float]:
        data, link, took_s = bytes(size), self._sockets[to], []
        for _ in range(times):
            began_s = time.perf_counter()
            link.sendall(data)
            self._read(link, size)
            took_s.append(time.perf_counter() - began_s)
        return took_s

    @override
    def pong(self, sender: str, times: int, size: int) -> None:
        data, link = bytes(size), self._sockets[sender]
        for _ in range(times):
            self._read(link, size)
            link.sendall(data)

    @override
    def close(self) -> None:
        for link in (*self._sockets.values(), self._server):
            link.close()

    def _read(self, link: socket.socket, size: int) -> None:
        while size:
            got = link.recv_into(self._buffer, min(size, len(self._buffer)))
            if not got:
                raise PeerError("the connection was closed")
            size -= got


class MemberPeer(MeshPeer):
    """Drives a peer that is a member of its run besides, as boards of a `node` with --members or
    --join are: streams to its neighbours, and the members' probes. The first of `members` founds
    the run, the others join through the one before them. What it needs is imported here, so that
    the memory of a `mesh` process is that of the transport."""

    def __init__(self, name: str, members: int) -> None:
        from edgegossip.mesh.membership import manifest as manifests
        from edgegossip.mesh.membership.agent import Agent

        names = tuple(f"p{k:02}" for k in range(members))
        self._me = names.index(name)
        manifest = manifests.make(RUN_ID, names[0], names, "", "")
        self._agent = Agent(manifest, name, lambda event: None, lambda kind, text, peer=None, **_: None)
        super().__init__(
            name,
            GrpcTransport(name, RUN_ID, limits=MeshLimits(grace_s=30.0), services=[self._agent.service]),
        )

    @override
    def connect(self, peers: Mapping[str, str]) -> None:
        self._agent.known = self._known(peers[f"p{self._me - 1:02}"]) if self._me else ()
        self._transport.submit(self._agent.start(self.address)).result(PATIENCE_S)
        super().connect(peers)

    @override
    def idle(self, seconds: float) -> float:
        cpu_s = super().idle(seconds)
        table = self._agent.detector.table if self._agent.detector else []
        if not table or not all(entry.here for entry in table):
            raise PeerError(f"only {sum(entry.here for entry in table)} members were here; is this machine busy?")
        return cpu_s

    @override
    def close(self) -> None:
        self._transport.submit(self._agent.stop()).result(PATIENCE_S)
        super().close()

    def _known(self, seed: str) -> Any:
        from edgegossip.mesh import address as addresses
        from edgegossip.mesh.base import Unreachable
        from edgegossip.mesh.membership.client import request_join

        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return request_join(addresses.parse(seed, "address"), f"p{self._me:02}", None, RUN_ID).rows
            except Unreachable:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)


def make_peer(kind: str, name: str) -> Peer:
    """Return a peer of a kind: mesh, member-N (of N), grpc (grpc-N: messages of N MiB), tuned-N
    (gRPC at its best: the mesh's poller and heap, wide windows) or tcp."""
    if kind == "mesh":
        return MeshPeer(name)
    if kind.startswith("member"):
        return MemberPeer(name, int(kind.partition("-")[2]))
    if kind.startswith(("grpc", "tuned")):
        _, _, message_mib = kind.partition("-")
        return BareGrpcPeer(name, int(message_mib or 1) << 20, tuned=kind.startswith("tuned"))
    return TcpPeer(name)


def usage() -> dict[str, int]:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return {"rss_bytes": int(statm.read().split()[1]) * resource.getpagesize()}


def main() -> None:
    """Carry out orders until the input ends."""
    peer = make_peer(sys.argv[1], sys.argv[2])
    print(json.dumps({"result": peer.address}), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        name = order.pop("do")
        try:
            answer = {"result": usage() if name == "usage" else getattr(peer, name)(**order)}
        except Exception as error:  # whatever it is, the one who ordered has to know
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
