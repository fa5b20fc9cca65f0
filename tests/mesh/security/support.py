"""Two boards that know each other, and what an attacker says to one of them."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice, PeerDown, Received
from edgegossip.mesh.wire import METHOD, chunk_message
from edgegossip.security import handshake
from edgegossip.security.limits import endpoint
from edgegossip.security.names import serial_name
from edgegossip.security.tls import ADMISSION
from tests.mesh.fleet import TestFleet
from tests.mesh.support import PATIENCE_S, QUICK, RUN, connect_all, until, wait_for

# Nobody here is late, on however busy a machine: who is to be late has a `Clock`.
LIMITS = replace(QUICK, handshake_s=PATIENCE_S, hello_s=PATIENCE_S, keepalive_s=PATIENCE_S, max_frame_bytes=1 << 20)
BAD = ["other fleet", "expired", "not yet valid", "wrong usage", "self-signed"]
WORDS = {
    "none": "it has no certificate",
    "other fleet": "its certificate is of another fleet|is forged",
    "expired": "its certificate has expired",
    "not yet valid": "its certificate is not valid yet",
    "wrong usage": "its certificate is for another use",
    "self-signed": "its certificate is self-signed",
    "as b": "its certificate is for another name",
}


class Clock:
    """Takes the place of `time` in front ends: it goes on when the test says so."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def monotonic(self) -> float:
        return self.now_s

    def too_late_for(self, s: socket.socket, b: GrpcTransport, doing: str) -> None:
        """Let the time of a caller of b be over that has come to this."""
        front_end, address = b._security._front_end, endpoint(*s.getsockname())

        def came() -> bool:
            return any(p.address == address and p.doing == doing for p in list(front_end._pending))

        until(came, f"it is at {doing}")
        self.now_s += LIMITS.handshake_s
        front_end._do(lambda: None)  # wakes it


def pair(fleet: TestFleet) -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    """Boards a and b, connected; b also expects c, which never comes by itself."""
    a, b = (GrpcTransport(name, RUN, limits=LIMITS, security=fleet.security(name)) for name in "ab")
    connect_all([a, b], ["a", "b"])
    b.connect({"c": "127.0.0.1:1"})
    wait_for(b, Notice, lambda n: n.text.startswith("cannot reach c"))
    yield a, b
    others(a, b)
    assert not [e for e in left(a) if isinstance(e, PeerDown) and e.peer == "b"]
    for t in (a, b):
        t.close()


def left(t: GrpcTransport) -> list:
    return list(iter(lambda: t.incoming(0), None))


def others(a: GrpcTransport, b: GrpcTransport) -> None:
    """The bystanders still reach each other, both ways."""
    for source, target, sink in ((a, "b", b), (b, "a", a)):
        source.send(target, [b"still here"])
        assert bytes(wait_for(sink, Received).data) == b"still here"


def told(b: GrpcTransport, words: str, source: str = "127.0.0.1") -> str:
    """b says in its log that it refused somebody, and why."""
    notice = wait_for(b, Notice, lambda n: n.text.startswith("refused") and any(w in n.text for w in words.split("|")))
    assert source in notice.text and notice.text.isprintable()
    return notice.text


def dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def is_refused(context: ssl.SSLContext, address: str, server_name: str | None = None) -> None:
    """The connection does not get through the handshake, or is ended before it may say anything."""

    def answers() -> bool:
        with dial(address) as plain, context.wrap_socket(plain, server_hostname=server_name) as s:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            return bool(s.recv(1))

    with suppress(OSError):  # SSLError is one
        assert not answers()


def admission_handshake(
    fleet: TestFleet, files: tuple[Path, Path], address: str, source: str = "127.0.0.1"
) -> handshake.Answer:
    """Return what the front end of a board answers."""
    with dial(address, source) as plain, fleet.client_context(files, ADMISSION).wrap_socket(plain) as s:
        s.sendall(handshake.hello(1))
        data = b""
        while (answer := handshake.parse_answer(data)) is None:
            if not (more := s.recv(4096)):
                raise ConnectionError("it ended the connection without a word")
            data += more
        s.sendall(handshake.blob(b""))
        assert s.recv(1) == b""
        return answer


def channel_to_b(fleet: TestFleet, files: tuple[Path, Path], address: str, token: str = "") -> grpc.Channel:
    """As a board opens it, but with whatever certificate."""
    token = token or admission_handshake(fleet, files, address).text
    certificate, key = (path.read_bytes() for path in files)
    credentials = grpc.ssl_channel_credentials((fleet.folder("b") / "ca.pem").read_bytes(), key, certificate)
    name = serial_name(fleet.security("b").identity.certificate.serial, fleet.ca.fleet_id, token)
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, credentials, options)


def converse(fleet: TestFleet, name: str, address: str, *messages: bytes, token: str = "") -> list[pb.ExchangeResponse]:
    """What a board answers to these messages of the certified board `name`, until it ends the
    stream."""
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        yield from messages
        done.wait(PATIENCE_S)

    answers: list[pb.ExchangeResponse] = []
    with channel_to_b(fleet, fleet.of(name), address, token) as channel:
        call = channel.stream_stream(METHOD)(requests(), timeout=PATIENCE_S)
        try:
            answers.extend(pb.ExchangeResponse.FromString(message) for message in call)
        except grpc.RpcError as error:
            if not answers:
                raise AssertionError(error.details()) from error
        finally:
            done.set()
    return answers


def hello(**changes: object) -> bytes:
    fields = {"protocol_version": 1, "run_id": RUN, "sender": "c", "receiver": "b", "session": 99, **changes}
    return pb.ExchangeRequest(hello=pb.Hello(**fields)).SerializeToString()


def chunk(transfer: int, offset: int, total: int, data: bytes) -> bytes:
    return chunk_message(transfer, offset, total, False, [memoryview(data)])


def in_quarantine(b: GrpcTransport) -> None:
    assert wait_for(b, Notice, lambda n: "c is in quarantine for" in n.text).peer == "c"


def ended(s: socket.socket) -> bool:
    try:
        while s.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
