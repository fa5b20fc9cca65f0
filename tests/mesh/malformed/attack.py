"""Sends what messages.py makes to a live board, as a board of its fleet that was taken over, and as
a stranger.

A conversation counts as delivered when the board answered it: with a refusal, an acknowledgement,
or an error of its own. One that was cut off with its connection (quarantine) is tried again.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from edgegossip.mesh import MeshLimits
from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.connections import ChannelFactory
from edgegossip.mesh.tls_security import TlsSecurity
from edgegossip.mesh.wire import METHOD
from edgegossip.security.tls import ADMISSION, H2
from edgegossip.types import PeerError
from tests.mesh.malformed.messages import Maker, Target

BATCH = 256  # messages
STREAMS = ("frames",) * 14 + ("streams",)  # kinds of batches that need the sender's one stream
CALLS = ("probe",) * 27 + ("join",) * 11 + ("standard",) * 8 + ("admission", "admission", "http2", "stranger")
SHARE_OF_STREAMS = 0.86
ATTEMPTS = 8
_CALL_S = 20.0
_AT_ONCE = 16  # of 64 streams that a connection may have
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
UNARY = {
    "probe": ("/edgegossip.v1.Membership/Probe",),
    "join": ("/edgegossip.v1.Membership/Join",),
    "standard": (
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/edgegossip.v1.Mesh/Nothing",
        "/edgegossip.v1.Membership/Exchange",
    ),
}


@dataclass
class Tally:
    """Messages by kind: delivered, and lost with their connection; what the board answered."""

    delivered: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


class Attacker:
    """One identity and one connection at a time."""

    def __init__(self, security: TlsSecurity, maker: Maker, target: Target, tally: Tally) -> None:
        self._security, self._maker, self._target, self._tally = security, maker, target, tally
        self._channels = ChannelFactory(MeshLimits(), security)
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()

    async def batch(self, kind: str, rng: Random) -> None:
        """BATCH messages of one kind."""
        match kind:
            case "frames":
                await self._frames(rng)
            case "streams":
                for _ in range(BATCH):
                    await self._stream(rng)
            case "admission":
                await self._admission_handshakes(rng)
            case "http2":
                await self._http2(rng)
            case "stranger":
                await self._stranger(rng)
            case _:
                make: Callable[[Random], bytes] = getattr(self._maker, kind)
                messages = [(rng.choice(UNARY[kind]), make(rng)) for _ in range(BATCH)]
                for k in range(0, BATCH, _AT_ONCE):
                    await asyncio.gather(*(self._call(kind, *m) for m in messages[k : k + _AT_ONCE]))

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    # -- connections

    async def _connected(self, broken: grpc.aio.Channel | None = None) -> grpc.aio.Channel:
        """The connection; a new one in place of `broken`."""
        async with self._opening:
            if self._channel is not None and self._channel is not broken:
                return self._channel
            if self._channel is not None:
                await self._channel.close()
                self._channel = None
            where = addresses.parse(self._target.address, "target")
            for attempt in range(200):
                try:
                    await self._channels.check(self._target.board, where)
                    break
                except PeerError as error:
                    self._tally.answers[f"admission: {str(error)[:40]}"] += 1
                    await asyncio.sleep(0.05 * min(attempt + 1, 20))
            else:
                raise RuntimeError("the board does not let us in any more")
            self._channel = self._channels.open(self._target.board, where)
            return self._channel

    # -- conversations

    async def _frames(self, rng: Random) -> None:
        """Frames in one stream. Those that were not taken before the stream ended come again in the
        next one."""
        left = self._maker.frames(rng, BATCH)
        for _ in range(ATTEMPTS):
            answers, whole, channel = await self._converse(self._maker.framed(rng, left))
            taken = max((a.ack.transfer for a in answers if a.WhichOneof("kind") == "ack"), default=0)
            self._tally.delivered["frames"] += min(taken, len(left))
            left = left[taken:]
            if not left:
                return
            if not whole:
                await self._connected(channel)
        self._tally.lost["frames"] += len(left)

    async def _stream(self, rng: Random) -> None:
        messages = self._maker.stream(rng)
        for _ in range(ATTEMPTS):
            answers, whole, channel = await self._converse(messages)
            if whole:
                kind = answers[-1].WhichOneof("kind") if answers else "nothing"
                self._tally.answers[f"streams: {kind}"] += 1
                self._tally.delivered["streams"] += 1
                return
            await self._connected(channel)
        self._tally.lost["streams"] += 1

    async def _converse(self, messages: list[bytes]) -> tuple[list[pb.ExchangeResponse], bool, grpc.aio.Channel]:
        """What the board answered, whether it ended the stream itself, and the connection that this
        was on."""
        channel = await self._connected()
        answers: list[pb.ExchangeResponse] = []
        with _broken():
            call = channel.stream_stream(METHOD)(iter(messages), timeout=_CALL_S)
            async for data in call:  # what came before an error counts
                answers.append(pb.ExchangeResponse.FromString(data))  # noqa: PERF401
            return answers, await call.code() is grpc.StatusCode.OK, channel
        return answers, False, channel

    async def _call(self, kind: str, method: str, message: bytes) -> None:
        for _ in range(ATTEMPTS):
            channel = await self._connected()
            said = ""
            with _broken():
                try:
                    answer = await channel.unary_unary(method)(message, timeout=_CALL_S)
                    said = "answered" if answer else "nothing"
                except grpc.aio.AioRpcError as error:
                    said = "" if error.code() in _GONE else error.code().name
            if said:
                self._tally.answers[f"{kind}: {said}"] += 1
                self._tally.delivered[kind] += 1
                return
            await self._connected(channel)
        self._tally.lost[kind] += 1

    # -- below gRPC

    async def _admission_handshakes(self, rng: Random) -> None:
        for _ in range(BATCH):
            context = context_of(self._security, ADMISSION)
            said = await say(self._target.address, context, None, self._maker.admission(rng))
            self._tally.delivered["admission"] += 1
            self._tally.answers[f"admission: {said}"] += 1

    async def _http2(self, rng: Random) -> None:
        """Through the front end with a token, then frames of HTTP/2 that are none, eight a
        connection."""
        where = addresses.parse(self._target.address, "target")
        for _ in range(BATCH // 8):
            with suppress(PeerError):
                await self._channels.check(self._target.board, where)
                [(_, name)] = self._security.channel_options(self._target.board)
                frames = b"".join(http2_frame(rng) for _ in range(8))
                preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
                said = await say(self._target.address, context_of(self._security, H2), str(name), preface + frames)
                self._tally.answers[f"http2: {said}"] += 1
                self._tally.delivered["http2"] += 8

    async def _stranger(self, rng: Random) -> None:
        """No certificate: bytes on the port, or TLS without one."""
        for _ in range(BATCH):
            bare = rng.randrange(2) == 0
            context = None if bare else context_of(None, rng.choice((ADMISSION, H2)))
            hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)
            data = rng.choice((hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"")) + rng.randbytes(rng.randrange(2000))
            said = await say(self._target.address, context, None, data)
            self._tally.delivered["stranger"] += 1
            self._tally.answers[f"stranger: {said}"] += 1


@contextmanager
def _broken() -> Iterator[None]:
    """Takes what gRPC raises when a connection ends, its own idea of cancelling among it."""
    try:
        yield
    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def http2_frame(rng: Random) -> bytes:
    body = rng.randbytes(rng.choice((0, 4, 8, 9, 100, 1000)))
    length = rng.choice((len(body), len(body), rng.randrange(1 << 24)))
    stream = rng.choice((0, 1, 2, 3, 2**31 - 1, 2**32 - 1))
    return (
        struct.pack(">I", length)[1:]
        + bytes((rng.randrange(12), rng.randrange(256)))
        + struct.pack(">I", stream)
        + body
    )


def context_of(security: TlsSecurity | None, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if security is not None:
        folder = security.identity.folder
        context.load_cert_chain(folder / "identity.pem", folder / "identity.key")
    context.set_alpn_protocols([protocol])
    return context


async def say(address: str, context: ssl.SSLContext | None, name: str | None, data: bytes) -> str:
    """Connect, say this, and wait for the end; what came of it in a word."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(5.0):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=name or (context and host)
            )
    except (OSError, TimeoutError):
        return "not let in"
    try:
        async with asyncio.timeout(5.0):
            writer.write(data)
            if writer.can_write_eof():
                writer.write_eof()
            answer = await reader.read(1 << 16)
        return "answered" if answer else "closed"
    except (OSError, TimeoutError):
        return "cut"
    finally:
        writer.transport.abort()
