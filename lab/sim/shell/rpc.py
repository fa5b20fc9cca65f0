"""gRPC between simulated processes: what the mesh uses of `grpc.aio`, on the simulator's network.

A connection is what TCP makes of a network that loses, repeats and reorders: every message arrives
once and in order, or late, or not before the link is mended; the kernel of a board that stands
still takes it. Either end asks after a silence whether the other is there, as gRPC's core does, and
ends the connection without an answer. A process that ends resets its connections, where the network
lets that through; nobody listens where no process is."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from typing_extensions import override

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.address import Address, parse
from edgegossip.mesh.connections import MeshMachine
from lab.sim.network import Clock, Lost, Network
from lab.sim.shell.process import Process

RETRANSMIT_S, MOST_RETRANSMIT_S = 0.2, 3.0  # until what was lost is sent again; twice as long each time
PORT = 7700
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def address_of(index: int) -> Address:
    """Return where a board listens."""
    return Address(f"10.0.0.{index + 1}", PORT)


@dataclass(frozen=True, slots=True)
class Segment:
    """Is a part of what one end of a connection sends."""

    pipe: Pipe
    number: int
    message: tuple[Any, ...]


class Pipe:
    """Carries messages one way, each once and in order. `take` gets them as they come out."""

    def __init__(self, clock: Clock, network: Network, edge: tuple[int, int], take: Callable[..., None]) -> None:
        self._clock, self._network, self._edge, self.take = clock, network, edge, take
        self._sent = self._next = 0
        self._early: dict[int, tuple[Any, ...]] = {}

    def send(self, *message: Any) -> None:
        """Send a message; it is sent again until it arrives."""
        self._try(Segment(self, self._sent, message), RETRANSMIT_S)
        self._sent += 1

    def _try(self, segment: Segment, again_s: float) -> None:
        if isinstance(self._network.send(*self._edge, segment), Lost):
            self._clock.after(again_s, self._try, segment, min(2 * again_s, MOST_RETRANSMIT_S))

    def arrived(self, segment: Segment) -> None:
        """Take in what the network brings."""
        if segment.number < self._next:
            return
        self._early[segment.number] = segment.message
        while (message := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self.take(*message)


class Endpoint(ABC):
    """Is one end of a connection. `other` is set once there is one."""

    def __init__(self, stack: Stack, there: int, keepalive: tuple[float, float]) -> None:
        self.stack, self.process, self.clock = stack, stack.process, stack.process.clock
        self.there = there
        self.pipe: Pipe | None = None  # to the other end
        self.closed = ""  # why
        self._keepalive_s, self._timeout_s = keepalive
        self._heard_s, self._asked = self.clock.now, False
        stack.ends.append(self)

    def pipe_to(self, take: Callable[..., None]) -> None:
        """Open the way to the other end, which takes what comes."""
        self.pipe = Pipe(self.clock, self.stack.network, (self.stack.index, self.there), take)

    def meet(self, caller: Endpoint) -> None:
        """Become the listening end of who has called."""
        assert caller.pipe is not None
        self.pipe_to(caller.take)
        caller.pipe.take = self.take

    def send(self, *message: Any) -> None:
        """Send a message, unless the connection has ended."""
        if self.pipe is not None and not self.closed and self.process.alive:
            self.pipe.send(*message)

    def take(self, kind: str, *rest: Any) -> None:
        """Take in a message: the kernel has it, the process when it runs."""
        self.stack.heard(self.there, kind, *rest)
        self.process.do(False, self._take, kind, *rest)

    def _take(self, kind: str, *rest: Any) -> None:
        if self.closed:
            return
        self._heard_s, self._asked = self.clock.now, False
        if kind == "ping":
            self.send("pong")
        elif kind == "close":
            self.shut("Connection reset by peer", tell=False)
        elif kind != "pong":
            self.handle(kind, *rest)

    @abstractmethod
    def handle(self, kind: str, *rest: Any) -> None:
        """Take in what concerns a call."""

    def shut(self, why: str, *, tell: bool = True) -> None:
        """End the connection; `tell`: the other end hears of it, when it can."""
        if self.closed:
            return
        if tell:
            self.send("close")
        self.closed = why
        if self in self.stack.ends:
            self.stack.ends.remove(self)

    def watch(self) -> None:
        """Begin to ask after silences."""
        self._watch_later(self._keepalive_s)

    def _watch_later(self, after_s: float) -> None:
        self.clock.after(after_s, self.process.do, True, self._watch)

    def _watch(self) -> None:
        if self.closed:
            return
        silent_s = self.clock.now - self._heard_s
        if silent_s < self._keepalive_s - 1e-9:
            self._watch_later(self._keepalive_s - silent_s)
        elif not self._asked:
            self._asked = True
            self.send("ping")
            self._watch_later(self._timeout_s)
        else:
            self.shut("keepalive watchdog timeout")


class Channel(Endpoint):
    """Is the calling end, as `grpc.aio.Channel`: it connects with the first call. `greeting` goes
    with that, of one that is secured."""

    def __init__(
        self, stack: Stack, target: str, options: Sequence[tuple[str, Any]], greeting: tuple[Any, ...] = ()
    ) -> None:
        self._greeting = greeting
        self._wanted = parse(target.partition(":")[2], "target")
        super().__init__(stack, stack.host_of(self._wanted), _keepalive(options))
        self._calls: dict[int, Call] = {}
        self._open: asyncio.Future[None] | None = None
        self._numbers = 0

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.shut("Channel closed!")

    async def close(self) -> None:
        """End the connection and all calls."""
        self.shut("Channel closed!")

    @override
    def shut(self, why: str, *, tell: bool = True) -> None:
        super().shut(why, tell=tell)
        if self._open is not None and not self._open.done():
            self._open.set_exception(_error(UNAVAILABLE, why))
            self._open.exception()  # nobody need wait for it
        for call in list(self._calls.values()):
            call.end(UNAVAILABLE, why)

    @override
    def handle(self, kind: str, *rest: Any) -> None:
        if kind == "opened":
            if self._open is not None and not self._open.done():
                self._open.set_result(None)
                self.watch()
        elif kind == "refused":
            self.shut("Connection refused", tell=False)
        elif (call := self._calls.get(rest[0])) is not None:
            if kind == "message":
                call.came(rest[1])
            else:
                call.end(rest[1], rest[2])

    async def connected(self, method: str) -> None:
        """Wait until the other end is there, for a call. Raises AioRpcError."""
        if self.closed:
            raise _error(UNAVAILABLE, self.closed)
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            self.pipe_to(lambda *message: self.stack.of(self.there).connection(self, *message))
            self.stack.heard(self.there, "connect", method)
            self.send("connect", *self._greeting)
        await asyncio.shield(self._open)

    def begin(self, method: str) -> Call:
        """Begin a call."""
        self._numbers += 1
        call = self._calls[self._numbers] = Call(self, self._numbers, method)
        return call

    def forget(self, number: int) -> None:
        """Forget a call that is over."""
        self._calls.pop(number, None)

    def stream_stream(self, method: str) -> Callable[[], Call]:
        """Return what begins a call with messages both ways."""
        return lambda: self.begin(method)

    def unary_unary(self, method: str) -> Callable[..., Any]:
        """Return what asks one question."""

        async def ask(request: bytes, timeout: float | None = None) -> bytes:
            call = self.begin(method)
            try:
                async with asyncio.timeout(timeout):
                    await call.write(self.stack.says(method, request))
                    answer: Any = await call.read()
            except TimeoutError:
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
            finally:
                call.cancel()
            return bytes(answer)

        return ask


class Call:
    """Is one call at its caller, as `grpc.aio.StreamStreamCall`."""

    def __init__(self, channel: Channel, number: int, method: str) -> None:
        self._channel, self._number, self._method = channel, number, method
        self._inbox = _Inbox()
        self._begun = self._cancelled = False
        self._status: tuple[Any, str] | None = None

    async def write(self, data: bytes) -> None:
        """Send a message."""
        await self._begin()
        self._channel.send("message", self._number, bytes(data))

    async def done_writing(self) -> None:
        """Say that no more messages come."""
        await self._begin()
        self._channel.send("half", self._number)

    async def _begin(self) -> None:
        if self._status is not None or self._cancelled:
            raise asyncio.InvalidStateError("RPC already finished.")
        await self._channel.connected(self._method)
        if not self._begun:
            self._begun = True
            self._channel.send("call", self._number, self._method)

    async def read(self) -> Any:
        """Return the next message; EOF at a good end. Raises AioRpcError at another."""
        if (message := await self._inbox.get()) is not None:
            return message
        if self._cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        if self._status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise _error(*self._status)

    def cancel(self) -> None:
        """End the call."""
        if self._status is None and not self._cancelled:
            self._cancelled = True
            if self._begun:
                self._channel.send("cancel", self._number)
            self._over()

    def came(self, data: bytes) -> None:
        """Take in a message."""
        self._inbox.put(data)

    def end(self, code: Any, details: str) -> None:
        """Take in how the call ended."""
        if self._status is None and not self._cancelled:
            self._status = code, details
            self._over()

    def _over(self) -> None:
        self._channel.forget(self._number)
        self._inbox.end()


class Accepted(Endpoint):
    """Is the listening end of a connection."""

    def __init__(self, stack: Stack, caller: Endpoint, server: Server) -> None:
        super().__init__(stack, caller.stack.index, server.keepalive)
        self._server = server
        self._contexts: dict[int, Context] = {}
        self.secured = "", list[bytes]()  # what the front end calls it, and the names in its certificate
        self.on_end: Callable[[], None] = lambda: None
        self.meet(caller)
        self.watch()

    @override
    def handle(self, kind: str, *rest: Any) -> None:
        number = rest[0]
        if kind == "call":
            self._contexts[number] = context = Context(self, number)
            self._server.serve(context, rest[1])
        elif (context := self._contexts.get(number)) is None:  # type: ignore[assignment]
            pass
        elif kind == "message":
            context.inbox.put(rest[1])
        elif kind == "half":
            context.inbox.end()
        else:
            context.cancel()

    @override
    def shut(self, why: str, *, tell: bool = True) -> None:
        super().shut(why, tell=tell)
        self.on_end()
        for context in list(self._contexts.values()):
            context.cancel()

    def ended(self, number: int, code: Any, details: str) -> None:
        """Tell the caller how its call ended."""
        if self._contexts.pop(number, None) is not None:
            self.send("status", number, code, details)


class Context:
    """Is one call at its server, as `grpc.aio.ServicerContext`."""

    def __init__(self, end: Accepted, number: int) -> None:
        self.end, self.number = end, number
        self.inbox = _Inbox()
        self.task: asyncio.Task[None] | None = None
        self.status: tuple[Any, str] = grpc.StatusCode.OK, ""
        self._cancelled = False

    async def read(self) -> Any:
        """Return the next message; EOF once the caller sends no more."""
        message = await self.inbox.get()
        return grpc.aio.EOF if message is None else message

    async def write(self, data: bytes) -> None:
        """Send a message."""
        if self._cancelled:
            raise asyncio.CancelledError
        self.end.send("message", self.number, bytes(data))

    async def abort(self, code: Any, details: str) -> None:
        """End the call with an error."""
        self.status = code, details
        raise grpc.aio.AbortError

    def cancel(self) -> None:
        """Take in that the caller is gone."""
        self._cancelled = True
        if self.task is not None:
            self.task.cancel()

    def cancelled(self) -> bool:
        """Tell whether the caller is gone."""
        return self._cancelled

    def peer(self) -> str:
        """Return who calls, as gRPC names it."""
        return self.end.secured[0] or f"ipv4:{address_of(self.end.there)}"

    def auth_context(self) -> dict[str, Any]:
        """Return what the caller's certificate says, where there is one."""
        return {"x509_subject_alternative_name": self.end.secured[1]}


class Server:
    """Is a board's server, as `grpc.aio.Server`."""

    def __init__(self, stack: Stack, options: Sequence[tuple[str, Any]]) -> None:
        self.keepalive = _keepalive(options)
        self._stack, self._handlers = stack, list[Any]()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Serve these, too."""
        self._handlers += handlers

    def add_insecure_port(self, where: str) -> int:
        """Take an address to listen on."""
        return parse(where, "listen address").port

    def add_secure_port(self, where: str, credentials: object) -> int:
        """Take a name to listen on, behind a front end."""
        return 1

    async def start(self) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        self._stack.server = self

    async def stop(self, grace: float | None) -> None:
        """Take no more calls, wait for those that there are, and end the rest."""
        self._stack.server = None
        if grace and self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace)
        for end in [end for end in self._stack.ends if isinstance(end, Accepted)]:
            end.shut("Server stopped")
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def serve(self, context: Context, method: str) -> None:
        """Begin to answer a call."""
        asked = SimpleNamespace(method=method, invocation_metadata=())
        found = next((f for h in self._handlers if (f := h.service(asked)) is not None), None)
        if found is None or self._stack.server is not self:
            code = grpc.StatusCode.UNIMPLEMENTED if found is None else UNAVAILABLE
            context.end.ended(context.number, code, "Method not found!" if found is None else "GOAWAY received")
            return
        task = context.task = self._loop.create_task(self._answer(context, found))
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _answer(self, context: Context, found: Any) -> None:
        try:
            if found.stream_stream is not None:
                await found.stream_stream(None, context)
            else:
                await context.write(await found.unary_unary(await context.read(), context))
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            context.status = grpc.StatusCode.CANCELLED, ""
        except Exception as error:
            self._stack.process.crashed(error)
        context.end.ended(context.number, *context.status)


class Stack:
    """Is what a board's machine has of the network, in one process's life: its connections, and
    who listens. `heard` hears what arrives; `says` makes of a question what goes out."""

    def __init__(
        self,
        index: int,
        process: Process,
        network: Network,
        of: Callable[[int], Stack],
        heard: Callable[..., None] = lambda *_: None,
        says: Callable[[str, bytes], bytes] = lambda _, question: question,
    ) -> None:
        self.index, self.process, self.network, self.of = index, process, network, of
        self.heard, self.says = heard, says
        self.server: Server | None = None
        self.secured: Secured | None = None  # how it secures connections, if it does
        self.ends: list[Endpoint] = []

    def host_of(self, where: Address) -> int:
        """Return whose address it is."""
        return int(where.host.rpartition(".")[2]) - 1

    def connection(self, caller: Endpoint, kind: str, *greeting: Any) -> None:
        """Take in the first message of a connection: somebody listens, or not."""
        if kind != "connect":
            return
        if self.server is None or not self.process.alive:
            Pipe(self.process.clock, self.network, (self.index, caller.stack.index), caller.take).send("refused")
        elif self.secured is not None:
            self.secured.accept(caller, *greeting)
        else:
            self.process.do(False, Accepted(self, caller, self.server).send, "opened")

    def end(self) -> None:
        """End every connection: the process is gone, and the kernel says so."""
        self.server = None
        for end in self.ends:
            if end.pipe is not None:
                end.pipe.send("close")
        self.ends.clear()

    def _greeting(self, options: Sequence[tuple[str, Any]]) -> tuple[Any, ...]:
        assert self.secured is not None
        return self.secured.greeting(dict(options)["grpc.ssl_target_name_override"])

    def machine(self) -> MeshMachine:
        """Return what the mesh runs on."""
        aio = SimpleNamespace(
            insecure_channel=lambda target, options: Channel(self, target, options),
            secure_channel=lambda target, _, options: Channel(self, target, options, self._greeting(options)),
            server=lambda options: Server(self, options),
        )
        return MeshMachine(self.process, aio, lambda text, *, insecure: parse(text, "listen address"))


class Secured(Protocol):
    """Secures the connections of a board (tls.py)."""

    def greeting(self, name: str) -> tuple[Any, ...]:
        """Return what opens a connection to whoever has this name."""

    def accept(self, caller: Endpoint, *greeting: Any) -> None:
        """Take in a connection, or refuse it."""


class _Inbox:
    """Has messages for one reader, and an end, which is None."""

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: bytes) -> None:
        self._items.append(item)
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> bytes | None:
        while not self._items and not self._ended:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._items.popleft() if self._items else None


def _keepalive(options: Sequence[tuple[str, Any]]) -> tuple[float, float]:
    """What the options say of silences, in seconds."""
    known = dict(options)
    return known["grpc.keepalive_time_ms"] / 1000, known["grpc.keepalive_timeout_ms"] / 1000


def _error(code: Any, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
