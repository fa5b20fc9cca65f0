"""What becomes of connections that asked before: over TLS on one event loop."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.flower import superlink
from edgegossip.flower._private import arrivals
from edgegossip.security import tls
from edgegossip.security.identity import Identity
from edgegossip.security.limits import endpoint

PATIENCE_S = 60.0  # only bounds a failing test


class Port:
    """Is a TLS port whose connections `there` watches; what it refused is in `refused`, whose
    handshake failed in `failed`. Its time goes on by `later`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet = Fleet.create(folder / "fleet", "test", 20).add("a", "board", 20)
        self.serves, self.board = (
            Identity.load(place) for place in (coordinator_of(fleet.folder), fleet.folder / "boards/a")
        )
        self.refused: list[str] = []
        self.failed: list[str] = []
        self.now_s = 0.0
        monkeypatch.setattr(arrivals, "time", self)
        monkeypatch.setattr(asyncio.sslproto, "SSLProtocol", asyncio.sslproto.SSLProtocol)  # is put back

    def monotonic(self) -> float:
        self.now_s += 0.001  # no two moments are the same
        return self.now_s

    def later(self) -> None:
        """Let the time of all be over that have some."""
        self.now_s += 2 * arrivals.HANDSHAKE_S  # bytes give some more
        for connection in [*self.there._there.values()]:
            if connection.timer is not None and not connection.timer.cancelled():
                self.there._look(connection)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
        """Give the caller's end of a connection, and its address."""
        self.there = arrivals.Arrivals(lambda why, address: self.refused.append(why))
        arrivals.watch(self.there, lambda why, address: self.failed.append(why))
        secure, shaken = tls.server_context(self.serves), asyncio.Event()
        server = await asyncio.start_server(lambda r, w: shaken.set(), "127.0.0.1", 0, ssl=secure)
        async with server:
            context, self.address = tls.caller_context(self.board, "coordinator"), server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*self.address, ssl=context)
            await shaken.wait()
            yield reader, writer.get_extra_info("sockname")
            writer.transport.abort()


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Port:
    return Port(tmp_path, monkeypatch)


async def _is_open(reader: asyncio.StreamReader, for_s: float = PATIENCE_S) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), for_s)
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


def test_what_connections_that_are_over_hang_in_is_given_back(port: Port) -> None:
    async def come_and_go() -> None:
        async with port.connected():
            held = weakref.WeakSet[arrivals.Connection]()
            context = tls.caller_context(port.board, "coordinator")
            for _ in range(4 * arrivals.TOGETHER):
                reader, writer = await asyncio.open_connection(*port.address, ssl=context)
                connection = port.there._there[endpoint(*writer.get_extra_info("sockname"))]
                connection.frames = connection  # type: ignore[attr-defined]  # as of a request that was cancelled
                held.add(connection)
                del connection
                writer.transport.abort()
                await _is_open(reader)
                while len(port.there._there) > 1:
                    await asyncio.sleep(0.001)
            assert len(held) <= 2 * arrivals.TOGETHER

    gc.disable()
    try:
        asyncio.run(come_and_go())
    finally:
        gc.enable()


def test_a_request_whose_forerunner_ends_later_has_its_time(port: Port) -> None:
    async def ask() -> None:
        async with port.connected() as (reader, client):
            first = port.there.asking(client)
            first.__enter__()
            with port.there.asking(client):
                first.__exit__(None, None, None)
                port.later()
                assert await _is_open(reader, 0.2)
            port.later()
            assert not await _is_open(reader)

    asyncio.run(ask())


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("secure", [True, False])
def test_whether_a_coordinator_is_up_is_asked_as_it_speaks(
    port: Port, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    monkeypatch.setattr(superlink, "READY_S", PATIENCE_S)
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        if secure:
            server.socket = tls.server_context(port.serves).wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = tls.caller_context(port.board, "coordinator") if secure else None
        assert superlink.answers(f"127.0.0.1:{server.server_port}", lambda: None, context)
        server.shutdown()


def test_handshake_and_request_have_their_whole_time_each(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    begin = arrivals.Connection.begin
    monkeypatch.setattr(arrivals.Connection, "begin", lambda self: (begin(self), given.append(self.since_s)))

    async def ask() -> None:
        async with port.connected() as (reader, _):
            port.later()
            assert not await _is_open(reader)

    asyncio.run(ask())
    assert len(given) == 2 and given[0] < given[1]


@pytest.mark.parametrize("admitted", [True, False])
def test_only_a_stranger_makes_room_and_is_said_to_be_refused(
    port: Port, admitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that trains leaves connections behind, until they have been silent for long."""
    monkeypatch.setattr(arrivals, "LIMITS", replace(arrivals.LIMITS, max_pending_handshakes=1))

    async def ask() -> None:
        async with port.connected() as (reader, client):
            with port.there.asking(client):
                if admitted:
                    port.there.admit(client)
            newcomer = await asyncio.open_connection(*port.address)
            if admitted:
                while len(port.there._there) < 2:
                    await asyncio.sleep(0.01)
                assert await _is_open(reader, 0.2)
                newcomer[1].transport.abort()
                while len(port.there._there) > 1:
                    await asyncio.sleep(0.01)
                port.later()
            assert not await _is_open(reader)
            newcomer[1].transport.abort()

    asyncio.run(ask())
    assert len(port.refused) == (not admitted)


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00" + bytes(20), b"GET / HTTP/1.1\r\n\r\n"])
def test_who_only_ends_its_connection_in_the_handshake_is_no_news(port: Port, hello: bytes) -> None:
    async def ask() -> None:
        async with port.connected():
            reader, writer = await asyncio.open_connection(*port.address)
            writer.write(hello)
            writer.write_eof()
            await reader.read()

    asyncio.run(ask())
    assert port.failed == (["HTTP_REQUEST"] if hello[:3] == b"GET" else [])
