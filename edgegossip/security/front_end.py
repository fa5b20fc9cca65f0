"""The TLS front end: the port that everybody can reach. A thread of its own accepts, speaks TLS and
lets in.

gRPC's server listens behind it on a socket that has a name inside this machine only. The front end
is there because gRPC for Python neither tells why a handshake failed nor bounds who connects how
often, has no revocation list and cannot cut a connection off (lab/decisions/tls-front-end.md has
what was measured). So a caller comes twice:

1. For the admission handshake (handshake.py), in TLS with us. It hears what we think of it, and
   gets a one-time token.
2. With the token as part of the server name, which is in the clear. That connection is handed on to
   gRPC as it is, and gRPC checks certificates by itself. The bytes pass through a relay outside
   Python, because a board that imports torch, for seconds under the interpreter's lock, has to
   answer its peers all the same.

A pending handshake goes this way, and never waits for one caller:

    peeking --a token in the server name--> handed on to our gRPC server, which speaks TLS with it
       |
    TLS handshake --ALPN "edgegossip-knock/1"--> hello, answer, perhaps a revocation list --> closed
       '------------ALPN "h2"------------------> refused: it has no token
"""

from __future__ import annotations

import errno
import functools
import logging
import re
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from edgegossip.native import _native
from edgegossip.security import handshake, tls
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.handshake import OneTimeTokens
from edgegossip.security.limits import (
    ConnectionLimiter,
    ConnectionLimits,
    RateLimitedLog,
    TokenBuckets,
    cannot_listen,
    endpoint,
    host_of,
    network_of,
)
from edgegossip.security.names import token_in
from edgegossip.types import DecodeError, EdgegossipError, PeerError
from edgegossip.untrusted import Refusal, printable

_log = logging.getLogger(__name__)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_ACCEPTS = 64  # at a time, before others have their turn
_PAUSE_S = 0.2  # after trouble that would come again at once
# Between a connection to our gRPC server and the beginning of its handshake there, which takes
# microseconds.
_ON_ITS_WAY_S = 0.25
# For who is refused to hear why, and to end its side.
_LAST_WORDS_S, _LAST_BYTES = 1.0, 1 << 17
_RESET = b"\x01\0\0\0\0\0\0\0"  # struct linger: close at once
_HANDSHAKE, _HEAD_BYTES = b"\x16", 5  # of a TLS record (RFC 8446, 5.1)
_MAX_PEEK_BYTES = _HEAD_BYTES + (1 << 14)  # one record: a ClientHello that is longer is none of ours
_TOKEN = re.compile(rb"([0-9a-f]{32})\.[0-9a-f]{1,40}\.serial\.")  # in a name of names.serial_name


# Passes bytes between pairs of sockets, on a thread that never waits for Python
# (native/src/net/relay.cpp; Linux only; thread-safe):
#
#     add(outside, inside)  takes over two connected sockets by their descriptors (`socket.detach`);
#                           returns an id that is never used again
#     cut(id)               closes a pair, if it is still there
#     fileno()              a descriptor that is readable while `ended` has something to tell
#     ended()               pairs that have ended since the last call: id, bytes from outside to
#                           inside, and back
#     close()               ends every pair and the thread
#
# Memory is bounded: what one side cannot take yet is kept, at most 256 KiB a way, and the other
# side is not read meanwhile. The end of one way is passed on; a pair whose other way does not end
# within 5 s of that is closed. It raises OSError when the system has no more descriptors,
# RuntimeError elsewhere than on Linux and after `close`.
Relay = _native.Relay


class _NameOnly(ssl.SSLObject):
    """Is a TLS session that goes no further than the server name."""

    asked = ""


def _note(session: _NameOnly, name: str | None, _context: ssl.SSLContext) -> int:
    session.asked = (name or "").lower()
    return ssl.ALERT_DESCRIPTION_USER_CANCELLED  # any alert ends it; nobody hears this one


@functools.cache
def _context_for_names() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _NameOnly
    context.sni_callback = _note  # type: ignore[assignment]
    # gRPC for Python cannot be told to refuse an older TLS, and its server takes the newest that a
    # caller offers. So who does not offer 1.3 has no name here: it meets our own TLS, which refuses
    # it with the reason.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_name_of(hello: bytes) -> str:
    """Return the server name (SNI) that a TLS ClientHello asks for, in lower case, read by OpenSSL:
    a server that never answers is fed the bytes and notes the name. Empty for who asks for none,
    does not speak TLS 1.3, or sends something else. Nothing is believed here: the TLS library that
    gets the connection reads it again."""
    received = ssl.MemoryBIO()
    received.write(hello)
    session = _context_for_names().wrap_bio(received, ssl.MemoryBIO(), server_side=True)
    assert isinstance(session, _NameOnly)
    with suppress(ssl.SSLError):
        session.do_handshake()
    return session.asked


class _Closed(Exception):
    """Raised when the connection is over and nothing is wrong."""


class _HandOn(Exception):
    """Raised for one with a token: `caller` is to be handed on to gRPC."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class PendingHandshake:
    """Takes one connection from accept until it is refused or handed on. Never blocks; lives on the
    front end's thread.

    `step` after every event, then `wants` tells what to wait for."""

    def __init__(self, connection: socket.socket, address: str, front_end: FrontEnd, now_s: float) -> None:
        self.socket, self.address, self._front_end, self.since_s = connection, address, front_end, now_s
        self.deadline_s = now_s + front_end.limits.handshake_s
        self.caller: Caller | None = None
        self.doing = "the TLS handshake"
        self.refused, self._drained = False, 0
        self._tls: ssl.SSLSocket | None = None
        self._handshake_done = self._answered = self._tls_writes = False
        self._late = False  # its token is used, too old, or an earlier process of ours gave it
        self._told = 0  # number of our revocation list
        self._needed = 0  # bytes of its ClientHello that we wait for
        self._read, self._written = b"", b""

    @property
    def who(self) -> str:
        """Its name, as far as it is known, and address."""
        return f"{self.caller.subject.name} at {self.address}" if self.caller else self.address

    def refusal(self, why: str) -> Refusal:
        """Return what the log says when it is refused."""
        return Refusal(self.caller.subject.name if self.caller else "", self.address, printable(why, 400))

    @property
    def silent(self) -> bool:
        """Whether its ClientHello has not come yet, or not as a whole."""
        return self._tls is None

    @property
    def wants(self) -> int:
        """The event of its socket that would let us go on."""
        return _WRITE if not self.refused and (self._tls_writes or self._written) else _READ

    def step(self) -> None:
        """Do what can be done now. Raises _HandOn when it is to be handed on, _Closed at the end,
        PeerError with the reason when it is refused, OSError."""
        if self.refused:
            self._drain()
            return
        self._tls_writes = False
        try:
            if self._tls is None:
                self._tls = self.socket = self._peek()
            if not self._handshake_done:
                self._do_handshake(self._tls)
            self._exchange(self._tls)
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except ssl.SSLWantWriteError:
            self._tls_writes = True
        except OSError as error:
            if tls.went_away(error):
                raise _Closed from error
            if isinstance(error, ssl.SSLError):
                raise PeerError(tls.words(error, self._front_end.clock())) from error
            raise

    def refuse(self, now_s: float) -> None:
        """End our side, and read on until the other has ended its own, which is to hear why: who
        closes with bytes unread resets the connection, and TLS's last word may be lost with it.
        Raises OSError when it is gone."""
        self.refused = True
        self.socket.shutdown(socket.SHUT_WR)
        self.deadline_s = now_s + _LAST_WORDS_S

    def _drain(self) -> None:
        """Raises _Closed at the end of what comes, or of our patience."""
        with suppress(BlockingIOError):
            while self._drained < _LAST_BYTES and (data := self.socket.recv(65_536)):
                self._drained += len(data)
            raise _Closed

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _peek(self) -> ssl.SSLSocket:
        """Look at its ClientHello without taking it. Raises BlockingIOError while it is not all
        there."""
        hello = self.socket.recv(_MAX_PEEK_BYTES, socket.MSG_PEEK)
        # The head of a TLS record, 5 bytes, says how long the rest is. What was peeked at stays in
        # the socket, which counts as readable all the time: it is to wake us when everything is
        # there. If it wakes us with less, the other side has ended, which TLS will see.
        is_tls = hello[:1] == _HANDSHAKE and len(hello) >= _HEAD_BYTES
        needed = min(_MAX_PEEK_BYTES, _HEAD_BYTES + int.from_bytes(hello[3:5], "big")) if is_tls else _HEAD_BYTES
        if len(hello) < needed and needed > self._needed:
            self._needed = needed
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)
            raise BlockingIOError
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        caller = self._front_end.redeem(hello, self)
        if caller is not None:
            raise _HandOn(caller)
        self._late = _TOKEN.search(hello) is not None
        return self._front_end.context().wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def _do_handshake(self, connection: ssl.SSLSocket) -> None:
        connection.do_handshake()
        self._handshake_done = True
        # Who it is is known before it is judged, so that a refusal can name it.
        self.caller = Caller(*tls.peer_of(connection.getpeercert(), self._front_end.fleet), self.address)
        self._front_end.admit(self.caller)
        protocol = connection.selected_alpn_protocol()
        if protocol == tls.H2 and self._late:
            raise _Closed  # gRPC came back by itself: its board asks for a new token
        if protocol == tls.H2:
            raise PeerError("it comes in without the admission handshake")
        if protocol != tls.ADMISSION:
            raise PeerError("it speaks another kind of TLS")
        self.doing = "the admission handshake"

    def _exchange(self, connection: ssl.SSLSocket) -> None:
        """Go through hello, answer and perhaps a list; see handshake.py."""
        assert self.caller is not None
        while True:
            while self._written:
                self._written = self._written[connection.send(self._written) :]
            if not (data := connection.recv(65_536)):
                raise _Closed
            self._read += data
            try:
                self._take_message(self.caller)
            except DecodeError as error:
                raise PeerError(str(error)) from error

    def _take_message(self, caller: Caller) -> None:
        if self._answered:
            crl = handshake.parse_blob(self._read)
            if crl is not None:
                if crl:
                    self._front_end.take_list(caller, crl, self._told)
                raise _Closed
        elif len(self._read) >= handshake.HELLO_BYTES:
            number = handshake.parse_hello(self._read[: handshake.HELLO_BYTES])
            self._read = self._read[handshake.HELLO_BYTES :]
            answer = self._front_end.answer(caller, number)
            self._written, self._told = handshake.answer(answer), answer.number
            self._answered = True


class FrontEnd:
    """Listens from construction, and answers from `start` until `close`.

    `admission` says who may come in. `context` gives the TLS context for each new connection,
    `look` is called before our revocation list is shown, and `on_list` with one that a caller
    brings: its caller, the list (DER), and the number of ours that the caller was told; it raises
    PeerError for a list that is damaged, not newer or not our authority's. `tell` takes lines for
    the log. All of these are called on the front end's thread."""

    def __init__(
        self,
        host: str,
        port: int,
        upstream: str,
        limits: ConnectionLimits,
        admission: Admission,
        context: Callable[[], ssl.SSLContext],
        look: Callable[[], None],
        on_list: Callable[[Caller, bytes, int], None],
        tell: Callable[[Caller | None, str | Refusal], None],
    ) -> None:
        self._listener = listen(host, port)  # first: what fails here leaves nothing open
        self._upstream, self.limits, self._admission = upstream, limits, admission
        self.fleet, self.clock = admission.identity.fleet, admission.clock
        self.context, self._look, self._on_list, self._tell = context, look, on_list, tell
        self._callers: dict[str, Caller] = {}  # by the local address that our gRPC server sees
        self._relayed: dict[int, str] = {}  # that address, by the relay's number; the oldest first
        self._pending: dict[PendingHandshake, int] = {}  # and the events that are waited for
        self._tokens = OneTimeTokens[Caller](lambda caller: caller.serial)
        self._relay = Relay()
        self._limiter = ConnectionLimiter(
            limits.connections_per_s,
            limits.connection_burst,
            limits.max_pending_handshakes,
            limits.max_pending_handshakes_per_address,
        )
        self._handshakes = TokenBuckets(limits.admissions_per_s, limits.admission_burst)  # by certificate
        self._lines = RateLimitedLog()
        self._selector = selectors.DefaultSelector()
        self.address = host, int(self._listener.getsockname()[1])
        self._jobs: deque[Callable[[], None]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._paused_until_s: float | None = None
        self._ending = False
        for source in (self._listener, self._wakes, self._relay):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"front end {endpoint(*self.address)}", daemon=True)

    def _now(self) -> float:
        return self._admission.monotonic()

    def start(self) -> None:
        """Answer callers, on a thread of its own. Apart from construction: what is called for them
        may need this front end."""
        self._thread.start()

    def caller(self, local: str) -> Caller | None:
        """Return who is at the other end of the connection that our gRPC server knows by this name.
        From any thread."""
        return self._callers.get(local)

    @property
    def alive(self) -> bool:
        """Whether it still does its work, or was told to end. From any thread."""
        return self._ending or self._thread.is_alive()

    def cut(self, which: Callable[[Caller], bool], why: str) -> None:
        """End connections, and take back one-time tokens. From any thread."""
        self._do(lambda: self._cut(which, why))

    def undisturbed(self, what: Callable[[], None]) -> None:
        """Do this on the front end's thread, while none of its callers' connections is on its way
        into our gRPC server. Callers wait meanwhile. From any thread."""

        def quietly() -> None:
            time.sleep(_ON_ITS_WAY_S)
            what()
            time.sleep(_ON_ITS_WAY_S)

        self._do(quietly)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop listening and end what is left. Idempotent."""
        self._ending = True
        self._do(lambda: None)
        self._thread.join(timeout_s)

    # -- the thread

    def _do(self, what: Callable[[], None]) -> None:
        self._jobs.append(what)
        with suppress(OSError):  # closed, or it will wake up already
            self._waker.send(b"!")

    def _run(self) -> None:
        try:
            while not self._ending:
                try:
                    self._turn()
                except Exception as error:  # whatever it is, peers need this port
                    self._failed(error)
                    time.sleep(_PAUSE_S)
        finally:
            for pending in list(self._pending):
                self._forget(pending)
            self._relay.close()
            for s in (self._listener, self._wakes, self._waker):
                s.close()
            self._selector.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience_s()):
            if key.fileobj is self._wakes:
                self._wakes.recv(4096)
                while self._jobs:
                    self._carry_out(self._jobs.popleft())
            elif key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._relay:
                for id, _, _ in self._relay.ended():
                    self._callers.pop(self._relayed.pop(id, ""), None)
            elif key.data in self._pending:
                self._serve(key.data)
        self._expire()

    def _carry_out(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._failed(error)

    def _serve(self, pending: PendingHandshake) -> None:
        """Take one step; nothing that goes wrong with one of them may harm the others."""
        try:
            self._step(pending)
        except Exception as error:
            self._failed(error, pending)
            with suppress(Exception):
                self._forget(pending)

    def _failed(self, error: Exception, pending: PendingHandshake | None = None) -> None:
        """Say what failed of ours, or of this machine: no descriptor left, for example."""
        about = f"the connection of {pending.who}" if pending else "connections"
        reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__} {error}".strip()
        key = network_of(pending.address) if pending else "", reason
        with suppress(Exception):
            if self._lines.worth(key, self._now()):
                if not isinstance(error, OSError):  # a defect
                    _log.error("%s", about, exc_info=error)
                text = printable(f"trouble of this board with {about}: {reason.lower()}", 400)
                self._tell(pending.caller if pending else None, text)

    def _patience_s(self) -> float | None:
        deadlines = [v.deadline_s for v in self._pending]
        if self._paused_until_s is not None:
            deadlines.append(self._paused_until_s)
        return max(0.0, min(deadlines) - self._now()) + 0.001 if deadlines else None

    def _expire(self) -> None:
        """Refuse who is late, after whatever has come was looked at: our own lateness is nobody's
        fault."""
        now_s = self._now()
        for pending in [v for v in self._pending if v.deadline_s <= now_s]:
            if not pending.refused:
                self._say_refused(pending, f"it did not finish {pending.doing} in {self.limits.handshake_s:g} s")
            self._forget(pending)
        if self._paused_until_s is not None and self._paused_until_s <= now_s:
            self._paused_until_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(error)
                    return
                continue  # it went away before it was accepted
            host, now_s = str(peer[0]), self._now()
            if reason := self._limiter.why_not(host, now_s):
                with suppress(OSError), connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._say(None, (network_of(host), reason), Refusal("", host, reason), network_of(host))
                continue
            self._evict_for(host, now_s)
            self._take_in(connection, endpoint(host, int(peer[1])))

    def _evict_for(self, host: str, now_s: float) -> None:
        """Make room before a newcomer from there is listened to."""
        unproven = [v for v in self._pending if v.caller is None]
        if dropped := self._limiter.to_evict(host, unproven, now_s):
            pending, reason = dropped
            with suppress(OSError):
                pending.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._forget(pending)
            theirs = network_of(pending.address)
            self._say(None, (theirs, reason), Refusal("", host_of(pending.address), reason), theirs)

    def _pause(self, error: OSError) -> None:
        self._say(None, "", f"this board takes no connections for a moment: {(error.strerror or str(error)).lower()}")
        self._selector.unregister(self._listener)
        self._paused_until_s = self._now() + _PAUSE_S

    def _take_in(self, connection: socket.socket, address: str) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # it is gone already
            connection.close()
            return
        pending = PendingHandshake(connection, address, self, self._now())
        self._pending[pending] = 0
        self._serve(pending)

    def _step(self, pending: PendingHandshake) -> None:
        try:
            pending.step()
        except _HandOn as hand_on:
            self._hand_on(pending, hand_on.caller)
        except PeerError as error:
            self._refuse(pending, str(error))
        except (_Closed, OSError, EdgegossipError):  # it went away, which is no news
            self._forget(pending)
        else:
            self._watch(pending)

    def _watch(self, pending: PendingHandshake) -> None:
        """Wait for what the pending handshake wants now."""
        before, wanted = self._pending[pending], pending.wants
        if not before:
            self._selector.register(pending.socket, wanted, pending)
        else:  # also for the same events: TLS took the descriptor over into a socket of its own
            self._selector.modify(pending.socket, wanted, pending)
        self._pending[pending] = wanted

    def _leave(self, pending: PendingHandshake) -> None:
        if self._pending.pop(pending, 0):
            self._selector.unregister(pending.socket)

    def _forget(self, pending: PendingHandshake) -> None:
        self._leave(pending)
        pending.close()

    def _hand_on(self, pending: PendingHandshake, caller: Caller) -> None:
        """Hand it on to our gRPC server. An address that Linux chooses (unix(7), autobind) tells
        its connections apart."""
        self._leave(pending)
        key, inside = "", None
        try:
            inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            inside.bind("")
            key = "unix-abstract:" + inside.getsockname()[1:].decode()
            inside.setblocking(False)
            inside.connect("\0" + self._upstream)
            self._callers[key] = caller  # before gRPC can ask for it
            self._relayed[self._relay.add(pending.socket.fileno(), inside.fileno())] = key
            pending.socket.detach()
            inside.detach()
        except (OSError, RuntimeError) as error:
            if not isinstance(error, ConnectionError):  # as long as our gRPC server runs
                self._failed(error, pending)
            self._callers.pop(key, None)
            if inside is not None:
                inside.close()
            pending.close()

    def _refuse(self, pending: PendingHandshake, reason: str) -> None:
        self._say_refused(pending, reason)
        try:
            pending.refuse(self._now())
            self._watch(pending)
        except OSError:
            self._forget(pending)

    def _say_refused(self, pending: PendingHandshake, reason: str) -> None:
        source = pending.caller.subject if pending.caller else network_of(pending.address)
        self._say(pending.caller, (source, reason), pending.refusal(reason), source)

    def _say(self, caller: Caller | None, key: object, said: str | Refusal, source: object = None) -> None:
        if self._lines.worth(key, self._now(), source):
            self._tell(caller, said)

    def _cut(self, which: Callable[[Caller], bool], why: str) -> None:
        self._tokens.revoke(which)
        for pending in [v for v in self._pending if v.caller is not None and which(v.caller)]:
            self._forget(pending)
        for id, key in list(self._relayed.items()):
            caller = self._callers.get(key)
            if caller is not None and which(caller):
                self._relay.cut(id)
                who = f"{caller.subject.name} at {caller.address}"
                self._say(caller, (who, why), f"cut off {who}: {why}")

    # -- for pending handshakes

    def admit(self, caller: Caller) -> None:
        """Raise PeerError when it may not even ask. A board may have many addresses, but one
        certificate."""
        self._admission.check(caller)
        if not self._handshakes.take(caller.serial, self._now()):
            raise PeerError(f"it makes more than {self.limits.admissions_per_s:g} admission handshakes a second")

    def answer(self, caller: Caller, number: int) -> handshake.Answer:
        """Return the answer to a caller whose revocation list has this number: a one-time token, or
        why not."""
        self._look()
        present, why_not = self._admission.identity.revocations.present, self._admission.kept_out(caller.subject)
        text = why_not or self.issue_token(caller)
        return handshake.Answer(not why_not, present.number, text, present.der if present.number > number else b"")

    def take_list(self, caller: Caller, crl: bytes, told: int) -> None:
        """Take a revocation list (DER) from a caller that was told the number of ours. Raises
        PeerError."""
        if why_not := self._admission.kept_out(caller.subject):
            raise PeerError(why_not)
        self._on_list(caller, crl, told)

    def issue_token(self, caller: Caller) -> str:
        """Issue a one-time token for a caller that was admitted. On the front end's thread."""
        return self._tokens.issue(caller, self._now())

    def redeem(self, hello: bytes, pending: PendingHandshake) -> Caller | None:
        """Return who was issued the token that this ClientHello names; None when there is no good
        one in it. Raises PeerError when it may not come in any more. Of too many connections of one
        board the oldest goes: it has likely forgotten it."""
        now_s = self._now()
        # Most callers have no token, and OpenSSL is asked only about those who do. Python writes
        # each server name that is not ASCII to standard error: strangers would fill the log.
        found = (token.decode() for token in _TOKEN.findall(hello))
        token = next((token for token in found if token in self._tokens), "")
        holder = self._tokens.redeem(token, now_s) if token and token_in(server_name_of(hello)) == token else None
        if holder is None:
            return None
        pending.caller = caller = replace(holder, address=pending.address)
        self._admission.check_connection(caller)
        mine = [id for id, key in self._relayed.items() if self._callers[key].subject == caller.subject]
        for id in mine[: max(0, len(mine) + 1 - self.limits.max_connections_per_peer)]:
            self._relay.cut(id)
            reason = f"it has more than {self.limits.max_connections_per_peer} connections"
            self._say(caller, (caller.subject, reason), pending.refusal(f"{reason}; the oldest is closed"))
        return caller


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket that does not block. Raises HostError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    return listener
