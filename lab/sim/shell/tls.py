"""TLS between simulated boards. Certificates are real ones, in folders, and who may come in, with
which one-time token, and what is said of it is decided by the product's own `TlsSecurity`, front
end and admission. OpenSSL is imitated: each end shows its certificate, the dates count by virtual
time, and who does not like what it is shown says so with an alert."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from edgegossip.mesh.address import Address
from edgegossip.mesh.tls_security import TlsSecurity
from edgegossip.security import tls
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.certificates import Certificate
from edgegossip.security.front_end import FrontEnd, PendingHandshake
from edgegossip.security.handshake import OneTimeTokens
from edgegossip.security.identity import Identity
from edgegossip.security.limits import ConnectionLimits, RateLimitedLog, TokenBuckets
from lab.sim.shell.certificates import BEGIN, Handshakes
from lab.sim.shell.rpc import Accepted, Endpoint, Stack, address_of

PLAIN_HELLO = b"\x16\x03\x01\0\0"  # of a caller that names no token
EXPIRED, EXPIRED_CODE = "SSLV3_ALERT_CERTIFICATE_EXPIRED", 10  # X509_V_ERR_CERT_HAS_EXPIRED


class Security(TlsSecurity):
    """Secures one process. `handshakes` hears which ones fail."""

    def __init__(self, identity: Identity, stack: Stack, handshakes: Handshakes) -> None:
        super().__init__(identity, clock=lambda: BEGIN.timestamp() + stack.process.now(), monotonic=stack.process.now)
        self._stack, self._handshakes = stack, handshakes
        self._listening: _Simulated | None = None
        stack.secured, stack.process.dial = self, self._dial

    @property
    def certificate(self) -> Certificate:
        """What is shown to others."""
        return self._files.certificate

    @override
    def listen(self, where: Address) -> Address:
        self._listening = self._front_end = _Simulated(self, self._stack, self._limits, self.admission)
        return where

    def greeting(self, name: str) -> tuple[Any, ...]:
        """Return what opens a connection to this name: a ClientHello, and our certificate."""
        return client_hello(name), self.certificate

    def accept(self, caller: Endpoint, hello: bytes, shown: Certificate | None) -> None:
        """Take in a connection; `shown`: where both ends' messages need not be told apart."""
        if self._listening is not None:
            self._stack.process.do(False, self._listening.accept, Plug(self, caller, hello, shown))

    def refuses(self, shown: Certificate, there: int, caller: bool) -> bool:
        """Tell whether a certificate has ended, by the time here."""
        ended = shown.valid[1] < self._clock()
        listener, other = (self._stack.index, there) if caller else (there, self._stack.index)
        self._handshakes.made(listener, other, there, failed=ended)
        return ended

    async def _dial(self, host: str, protocol: asyncio.Protocol) -> asyncio.Transport:
        end = Dialled(self, self._stack, self._stack.host_of(Address(host, 0)), protocol)
        end.pipe_to(lambda *message: self._stack.of(end.there).connection(end, *message))
        end.send("connect", PLAIN_HELLO, None)
        try:
            shown = await end.opened
        except asyncio.CancelledError:
            end.shut("")
            raise
        if self.refuses(shown, end.there, caller=False):
            end.send("alert", EXPIRED)
            end.shut("")
            raise certificate_error()
        end.send("certificate", self.certificate)
        wire = Wire(end, shown)
        protocol.connection_made(wire)
        return wire


def certificate_error() -> ssl.SSLCertVerificationError:
    """Return what OpenSSL raises for a certificate that has ended."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
    error.verify_code, error.verify_message = EXPIRED_CODE, "certificate has expired"
    return error


def alert_error(reason: str) -> ssl.SSLError:
    """Return what OpenSSL raises at an alert."""
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@lru_cache(maxsize=1)
def _client() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_hello(name: str) -> bytes:
    """Return what asks for this name, as OpenSSL writes it."""
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        _client().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def peer_certificate(shown: Certificate) -> dict[str, Any]:
    """Return it as `getpeercert` does."""
    names = tuple(("DNS", name) for name in shown.dns_names)
    return {"subjectAltName": names, "serialNumber": f"{shown.serial:X}"}


class Dialled(Endpoint):
    """Is the calling end of an admission handshake."""

    def __init__(self, security: Security, stack: Stack, there: int, protocol: asyncio.Protocol) -> None:
        super().__init__(stack, there, (0.0, 0.0))
        self._protocol = protocol
        self.opened: asyncio.Future[Certificate] = asyncio.get_running_loop().create_future()

    @override
    def handle(self, kind: str, *rest: Any) -> None:
        if kind == "opened" and not self.opened.done():
            self.opened.set_result(rest[0])
        elif kind == "data":
            self._protocol.data_received(rest[0])
        elif kind == "alert":
            self._end(alert_error(rest[0]))
            self.shut("")
        elif kind == "refused":
            self._end(ConnectionRefusedError(111, "Connection refused"))
            self.shut("", tell=False)

    def _end(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionResetError(104, "Connection reset by peer"))
            self.opened.exception()  # nobody need wait for it
        else:
            self._protocol.connection_lost(error)

    @override
    def shut(self, why: str, *, tell: bool = True) -> None:
        if not self.closed:
            super().shut(why or "it is over", tell=tell)
            if why:
                self._end(None)


class Wire(asyncio.Transport):
    """Is what asyncio makes of a connection with TLS."""

    def __init__(self, end: Dialled, shown: Certificate) -> None:
        session = SimpleNamespace(
            selected_alpn_protocol=lambda: tls.ADMISSION, getpeercert=lambda: peer_certificate(shown)
        )
        super().__init__({"ssl_object": session})
        self._end = end

    @override
    def write(self, data: Any) -> None:
        self._end.send("data", bytes(data))

    @override
    def abort(self) -> None:
        self._end.shut("")

    close = abort

    @override
    def is_closing(self) -> bool:
        return bool(self._end.closed)


class Plug(Endpoint):
    """Is the listening end of a connection until gRPC has it: socket and TLS session in one."""

    def __init__(self, security: Security, caller: Endpoint, hello: bytes, shown: Certificate | None) -> None:
        super().__init__(security._stack, caller.stack.index, (0.0, 0.0))
        self.security, self.caller, self.hello, self.shown = security, caller, hello, shown
        self.serve: Callable[[], None] = lambda: None
        self._alert, self._came = "", b""
        self.meet(caller)

    @override
    def handle(self, kind: str, *rest: Any) -> None:
        if kind == "certificate":
            self.shown = rest[0]
        elif kind == "alert":
            self._alert = rest[0]
        elif kind == "data":
            self._came += rest[0]
        self.serve()

    @override
    def shut(self, why: str, *, tell: bool = True) -> None:
        if not self.closed:
            super().shut(why, tell=tell)
            self.serve()

    # -- what the front end asks of it

    def recv(self, most: int, flags: int = 0) -> bytes:
        """Return what has come."""
        if flags:  # to peek
            return self.hello
        if not self._came and not self.closed:
            raise ssl.SSLWantReadError
        data, self._came = self._came[:most], self._came[most:]
        return data

    def do_handshake(self) -> None:
        """Look at the certificate, once it is here."""
        if self._alert:
            raise alert_error(self._alert)
        if self.closed:
            raise ConnectionResetError
        if self.shown is None:
            raise ssl.SSLWantReadError
        if self.security.refuses(self.shown, self.there, caller=True):
            super().send("alert", EXPIRED)
            raise certificate_error()

    def getpeercert(self) -> dict[str, Any]:
        """Return whom the caller showed to be."""
        assert self.shown is not None
        return peer_certificate(self.shown)

    def selected_alpn_protocol(self) -> str:
        """Return what the caller is up to."""
        return tls.ADMISSION if self.hello == PLAIN_HELLO else tls.H2

    def send(self, *message: Any) -> Any:
        """Send bytes, as a socket does; or a message, as an endpoint does."""
        if len(message) > 1 or isinstance(message[0], str):
            super().send(*message)
            return None
        super().send("data", bytes(message[0]))
        return len(message[0])

    def setsockopt(self, *_options: Any) -> None:
        """Take an option."""

    def shutdown(self, _how: int) -> None:
        """End our half."""

    def close(self) -> None:
        """End the connection."""
        self.shut("closed")


class _Simulated(FrontEnd):
    """Is a front end whose connections are simulated, and which is called when something comes."""

    def __init__(self, security: Security, stack: Stack, limits: ConnectionLimits, admission: Admission) -> None:
        self._stack, self.limits, self._admission = stack, limits, admission
        self.fleet, self.clock = admission.identity.fleet, admission.clock
        self.context = lambda: SimpleNamespace(wrap_socket=lambda plug, **_: plug)  # type: ignore[assignment, return-value]
        self._look = security.look_at_file
        self._on_list = lambda caller, crl, told: security._offered(caller.subject, crl, told)
        self._tell = lambda caller, said: security._tell(caller.subject.name if caller else None, said)
        self._callers, self._relayed, self._pending = {}, {}, {}
        self._tokens = OneTimeTokens[Caller](lambda caller: caller.serial)
        self._handshakes = TokenBuckets(limits.admissions_per_s, limits.admission_burst)
        self._lines = RateLimitedLog()
        self._paused_until_s = None
        self._inside: dict[int, Accepted] = {}
        self._handed_on = 0
        self._relay: Any = SimpleNamespace(cut=lambda id: self._inside[id].shut("it was cut off"))

    @property
    @override
    def alive(self) -> bool:
        return True

    def accept(self, plug: Plug) -> None:
        """Begin with a connection."""
        if plug.hello == PLAIN_HELLO:
            plug.send("opened", plug.security.certificate)
        pending = PendingHandshake(plug, str(address_of(plug.there)), self, self._now())  # type: ignore[arg-type]
        self._pending[pending] = 0

        def serve() -> None:
            if pending in self._pending:
                self._serve(pending)

        plug.serve = serve
        serve()
        self._look_again(pending)

    def _look_again(self, pending: PendingHandshake) -> None:
        process = self._stack.process
        process.clock.at(pending.deadline_s + 1e-3, process.do, True, self._expire)

    @override
    def _watch(self, pending: PendingHandshake) -> None:
        if pending.refused:
            self._look_again(pending)

    @override
    def _leave(self, pending: PendingHandshake) -> None:
        self._pending.pop(pending, None)

    @override
    def _hand_on(self, pending: PendingHandshake, caller: Caller) -> None:
        self._leave(pending)
        plug: Any = pending.socket
        server, security = self._stack.server, plug.security
        if server is None or security.refuses(plug.shown, plug.there, caller=True):
            plug.close()
            return
        self._handed_on += 1
        id, key = self._handed_on, f"unix-abstract:{self._handed_on}"
        self._stack.ends.remove(plug)
        end = self._inside[id] = Accepted(self._stack, plug.caller, server)
        end.secured = key, [name.encode() for name in plug.shown.dns_names]

        def gone() -> None:
            self._callers.pop(self._relayed.pop(id, ""), None)
            self._inside.pop(id, None)

        end.on_end = gone
        self._callers[key], self._relayed[id] = caller, key
        end.send("opened")

    @override
    def _do(self, what: Any) -> None:
        what()

    @override
    def undisturbed(self, what: Any) -> None:
        what()

    @override
    def close(self, timeout_s: float = 2.0) -> None:
        self._ending = True
