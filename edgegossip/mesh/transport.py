"""`GrpcTransport`: the Transport of real boards. All network work is done in one asyncio loop in a
thread of its own.

The path of a frame out: `send` here, `OutgoingEdge` and `FrameStream` in outbound.py. In:
`Inbound`, `FrameAssembler` and `Inbox` in inbound.py, and `incoming` here.

asyncio and not a thread a stream: bare streams of both measure alike on two cores (8 MB in messages
of 1 MiB at 1.6 to 2.0 GB/s, 64 KiB there and back in 0.4 ms, the differences within the noise), but
one loop serves any number of peers and its state needs no locks. uvloop gains nothing that can be
measured (the time goes into gRPC and the copies) and takes 1.6 MiB. Shared memory between the
processes of one machine would be faster than any socket, but then a run on one machine would no
longer tell what boards send.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from edgegossip.agreement import Agreement
from edgegossip.memory import Spool, enlarge_heap
from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.base import Buffers, MeshLimits, Notice, Transport, TransportEvent, Woken
from edgegossip.mesh.connections import MACHINE, ChannelFactory, MeshMachine, serve
from edgegossip.mesh.inbound import Inbound, Inbox
from edgegossip.mesh.outbound import OutgoingEdge, QueuedFrame
from edgegossip.mesh.shelf import Shelf
from edgegossip.mesh.wire import PROTOCOL_VERSION
from edgegossip.types import ConfigError, NodeId, UsageError
from edgegossip.untrusted import Refusal

if TYPE_CHECKING:
    from edgegossip.mesh.tls_security import TlsSecurity

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Of free memory, for the next frames. glibc would give back what frames leave, page by page, and
# clear it for the next ones: a quarter of the processor time of a ring with frames of 1 MB. More
# than this is no quicker there, and grows for longer.
KEPT_BYTES = 8 << 20
_SLACK_S = 5.0  # beyond flush_s and linger_s, for what ends by itself


class GrpcTransport(Transport):
    """Moves frames between `node` and its peers over gRPC. Thread-safe. docs/mesh.md tells how it
    behaves.

    `listen` is host:port, port 0 takes any free one; without TLS only loopback is allowed unless
    `insecure` says otherwise. `before_disconnect` is called on the mesh's loop when a peer has said
    goodbye and the connections with it are still open: the time for a last look at their sockets.
    `security` brings TLS; `services` are further gRPC services of this node's server, whose methods
    are coroutines on the transport's loop (`submit` runs others there); their coroutine
    `on_revocations`, if any, is run when our revocation list is a newer one. `spool` is where
    frames lie that are large, or for which memory has no room (shelf.py). Raises ConfigError for a
    malformed value, UsageError for an exposed address, HostError when it cannot listen.
    """

    def __init__(
        self,
        node: NodeId,
        run_id: bytes,
        listen: str = "127.0.0.1:0",
        *,
        limits: MeshLimits | None = None,
        insecure: bool = False,
        before_disconnect: Callable[[], object] | None = None,
        security: TlsSecurity | None = None,
        services: Sequence[grpc.GenericRpcHandler] = (),
        spool: Spool | None = None,
        machine: MeshMachine = MACHINE,
    ) -> None:
        if len(run_id) != 16:
            raise ConfigError(f"run id has {len(run_id)} bytes, it must have 16")
        if not node or len(node) > 64 or not node.isprintable():
            raise ConfigError(f"node id {node!r} must be 1 to 64 printable characters, for example board-0")
        self._node, self._run_id = node, bytes(run_id)
        self._limits = limits or MeshLimits()
        self._before_disconnect = before_disconnect or (lambda: None)
        self._security, self._services, self._shelf = security, tuple(services), Shelf(spool or Spool())
        self._channels = ChannelFactory(self._limits, security, self._before_disconnect, machine)
        self._machine = machine
        self._session = machine.threads.random.getrandbits(63) + 1
        self._lock = threading.Lock()
        self._closed = False
        self._frame_ids = 0
        self._agreement: Agreement | None = None
        self._edges: dict[NodeId, OutgoingEdge] = {}
        self._frame_bytes: int | None = None  # of the largest frame of the run, once it is known
        self._spreading: set[asyncio.Task[None]] = set()
        where = machine.listen_address(listen, insecure=insecure or security is not None)
        enlarge_heap(KEPT_BYTES)
        self._thread = machine.threads.loop(f"mesh {node}", self._at_exit)
        self._loop = self._thread.loop
        self._loop.set_exception_handler(_log_quietly)
        try:
            self._address = self.call(self._start(where))
        except BaseException:
            self._thread.end()
            self._close_security()
            raise

    @property
    def address(self) -> str:
        """host:port that peers can connect to."""
        return str(self._address)

    def agree(self, agreement: Agreement) -> None:
        """Say what all must have alike, before `connect`: every peer hears it, and who differs is
        refused, here and there (PeerDown.disagrees). Raises UsageError after `connect`, or for what
        is too long to be sent."""
        agreement.to_json()
        if self._inbound.is_ready:
            raise UsageError(f"{self._node} must say what it agrees to before it connects to peers")
        self._agreement = self._inbound.agreement = agreement

    def connect(self, peers: Mapping[NodeId, str]) -> None:
        """Open a stream to each peer (name -> host:port) and let it open one to us. More peers may
        follow; a new address for a known peer is used from the next attempt on. Raises ConfigError
        for a bad address."""
        parsed = {peer: addresses.parse(text, f"address of {peer}") for peer, text in peers.items()}
        if self._node in parsed:
            raise ConfigError(f"{self._node} cannot be its own peer: list only the other boards")
        self._check_open()
        self.call(self._connect(parsed))

    def expect(self, peers: Iterable[NodeId]) -> None:
        """Let these open a stream to us, whose addresses are not known yet."""
        self._check_open()
        self.call(self._expect(tuple(peers)))

    def let_go(self, peers: Iterable[NodeId]) -> None:
        """End our streams to these without a word, and open no others: nothing is sent to them any
        more. They may still open theirs, and whether they agree with us is told as before."""
        with self._lock:
            self._check_open()
            for peer in peers:
                if peer in self._edges:
                    self._loop.call_soon_threadsafe(self._edges[peer].rest)

    @override
    def send(self, to: NodeId, frame: Buffers) -> int:
        views = tuple(memoryview(piece).cast("B") for piece in frame)
        size = sum(map(len, views))
        if to not in self._edges:
            known = ", ".join(sorted(self._edges)) or "none"
            raise UsageError(f"{to} is not a connected peer of {self._node}; connected peers: {known}")
        if not 0 < size <= self._limits.max_frame_bytes:
            raise UsageError(
                f"a frame of {size} bytes cannot be sent: it must have 1 to {self._limits.max_frame_bytes} bytes"
            )
        with self._lock:  # so that the ids of one peer are in the order of its queue
            self._check_open()
            self._frame_ids += 1
            outgoing = QueuedFrame(self._frame_ids, views, size, self._loop.time())
            self._loop.call_soon_threadsafe(self._edges[to].enqueue, outgoing)
            return outgoing.frame_id

    @override
    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        """Return the next event; None when none came in time, or when the transport is closed and
        all were taken."""
        return self._inbox.get(timeout_s)

    @override
    def wake(self) -> None:
        self._inbox.post(Woken())

    @override
    def close_peer(self, peer: NodeId, reason: str, *, disagrees: bool = False) -> None:
        """Refuse this peer from now on. Its queued frames fail and PeerDown follows."""
        if peer not in self._edges:
            raise UsageError(f"{peer} is not a connected peer of {self._node}")
        with self._lock:
            if not self._closed:
                self.call(self._close_peer(peer, reason, disagrees))

    @override
    def limit_frames(self, max_frame_bytes: int) -> None:
        # What this node sends stays bounded by its MeshLimits; how much of it may wait for a peer
        # follows the size.
        with self._lock:
            self._check_open()
            self._loop.call_soon_threadsafe(self._limit_frames, max_frame_bytes)

    @override
    def arriving(self) -> tuple[int, int]:
        return self._inbound.arriving()

    @override
    def close(self) -> None:
        """Flush what is queued for at most limits.flush_s, say goodbye, acknowledge what peers sent
        until they end their streams or limits.linger_s is over, free the port. Idempotent."""
        self._close(self._limits.flush_s, self._limits.linger_s)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the transport's loop, from any other thread."""
        self._check_open()
        return self._thread.submit(work)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        """Run a coroutine there and return what it does. Raises TimeoutError."""
        return self._thread.call(work, timeout_s)

    def post(self, event: TransportEvent) -> None:
        """Let another service's event come out of `incoming`. From any thread."""
        self._inbox.post(event)

    def tasks(self) -> int:
        """Return how many coroutines are under way on the loop, for whoever looks for leaks. From
        any thread."""
        return len(asyncio.all_tasks(self._loop))

    def __enter__(self) -> GrpcTransport:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- on the loop

    async def _start(self, where: addresses.Address) -> addresses.Address:
        limits, events = self._limits, self._machine.threads.queue()
        self._inbox = Inbox(self._loop, events, limits.max_inbox_bytes, limits.max_unmeasured_bytes)
        self._inbound = Inbound(
            self._node,
            self._run_id,
            self._session,
            self._limits,
            self._inbox,
            self._on_goodbye,
            self._on_fit,
            self._security,
            self._shelf,
        )
        # With security our server listens inside this machine; `serve` opens the way to it for
        # peers when it does.
        handlers, inside = (self._inbound, *self._services), ""
        if self._security is not None:
            inside = self._security.start(self._limits, self._tell, self._on_revocations, self._on_quarantine)
        self._server, address = await serve(where, handlers, self._limits, self._security, inside, self._machine)
        if self._security is not None:
            self._watch = self._loop.create_task(self._security.watch(), name="security")
        return address

    def _limit_frames(self, max_frame_bytes: int) -> None:
        self._frame_bytes = max_frame_bytes
        self._inbound.limit_frames(max_frame_bytes)
        for edge in self._edges.values():
            edge.limit_frames(max_frame_bytes)

    async def _expect(self, peers: tuple[NodeId, ...]) -> None:
        said = b"" if self._agreement is None else self._agreement.to_json().encode()
        for peer in peers:
            self._inbound.allow(peer)
            if peer in self._edges:
                continue
            hello = mesh_pb2.Hello(
                protocol_version=PROTOCOL_VERSION,
                run_id=self._run_id,
                sender=self._node,
                receiver=peer,
                session=self._session,
                agreement=said,
            )
            message = mesh_pb2.ExchangeRequest(hello=hello).SerializeToString()
            random = self._machine.threads.random
            edge = OutgoingEdge(peer, message, self._limits, self._channels, self._note, random, self._shelf)
            self._edges[peer] = edge
            if self._frame_bytes is not None:
                edge.limit_frames(self._frame_bytes)

    async def _connect(self, peers: Mapping[NodeId, addresses.Address]) -> None:
        await self._expect(tuple(peers))
        for peer, address in peers.items():
            self._edges[peer].connect(address)
        self._inbound.ready()

    def _note(self, event: TransportEvent) -> None:
        """Take what an edge says, on the loop, at the moment when it happens."""
        self._inbox.post(event)

    def _on_goodbye(self, peer: NodeId, session: int) -> None:
        self._before_disconnect()
        if peer in self._edges:
            self._edges[peer].peer_left(session)

    def _on_fit(self, peer: NodeId, differs: str) -> None:
        """Take in that a Hello of this peer was compared with what we agree to."""
        if differs:
            self._edges[peer].give_up(differs)
        else:
            self._edges[peer].reopen()

    def _tell(self, peer: NodeId | None, said: str | Refusal) -> None:
        """Post a line for the log. From any thread."""
        self._inbox.post(Notice.of(peer if peer in self._edges else None, said))

    def _on_revocations(self) -> None:
        """Take in that our revocation list is a newer one, from any thread. Who is revoked is let
        go; the others are told."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin_to_spread)

    def _on_quarantine(self, peer: NodeId, length_s: float) -> None:
        """Take in, from any thread, that nothing of this peer is let in for so long: nobody waits
        for it, nor sends to it."""
        if (edge := self._edges.get(peer)) is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(edge.pause, f"{peer} is in quarantine", length_s)

    def _begin_to_spread(self) -> None:
        task = self._loop.create_task(self._spread())
        self._spreading.add(task)  # the loop itself would not keep it
        task.add_done_callback(self._spreading.discard)

    async def _spread(self) -> None:
        assert self._security is not None
        for edge in list(self._edges.values()):
            if self._security.revoked(edge.peer):
                await edge.drop("its certificate was revoked")
        for service in self._services:
            if (on_revocations := getattr(service, "on_revocations", None)) is not None:
                await on_revocations()
        await asyncio.gather(*(edge.offer_revocations() for edge in list(self._edges.values())))

    async def _close_peer(self, peer: NodeId, reason: str, disagrees: bool) -> None:
        self._inbound.shut(peer, reason)
        await self._edges[peer].shut(reason, disagrees)

    async def _shutdown(self, flush_s: float, linger_s: float) -> None:
        """End our streams first, each with its goodbye; then those of the peers, who heard it and
        close their half. Only then does the server stop: stopping cancels what is still open, and
        with it acknowledgements on their way."""
        # What is queued is flushed and a goodbye said behind it, as far as flush_s allows.
        leaving = {peer: asyncio.ensure_future(edge.leave()) for peer, edge in self._edges.items()}
        if leaving and flush_s:
            await asyncio.wait(leaving.values(), timeout=flush_s)
        told = [peer for peer, task in leaving.items() if task.done() and task.result()]
        for edge in self._edges.values():
            await edge.finish()
        # Whoever was told closes its stream to us once it has our acknowledgements; the other
        # streams end now.
        self._inbound.end(told)
        await self._server.stop(linger_s or None)  # None does not wait for anybody
        if self._security is not None:
            self._watch.cancel()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:  # streams and gRPC's own tasks end by themselves; cancelling those makes gRPC print a traceback
            await asyncio.wait(rest, timeout=1.0)
        await self._loop.shutdown_default_executor()

    # -- threads

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the transport of {self._node} is closed")

    def _close(self, flush_s: float, linger_s: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.call(self._shutdown(flush_s, linger_s), flush_s + linger_s + _SLACK_S)
        except TimeoutError:
            _log.debug("the mesh of %s did not end in time", self._node)
        finally:
            self._thread.end()
            self._close_security()
            self._inbox.close()

    def _close_security(self) -> None:
        """Close the security in this thread: at the end of a program there are no new ones."""
        if self._security is not None:
            self._security.close()

    def _at_exit(self) -> None:
        self._close(0.0, 0.0)  # a program that ends without `close` does not wait for the network


def _log_quietly(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """gRPC's poller wakes every loop of a process for each event and lets the late ones fail to
    read; that and streams that end while the loop does are no news for a user."""
    _log.debug("%s", context.get("message"), exc_info=context.get("exception"))
