"""The door of a board: the port that everybody can reach. A thread of its own accepts, speaks TLS and lets in.

gRPC's server listens behind it on a socket that has a name inside this machine only. The door is there because gRPC for Python
neither tells why a handshake failed nor bounds who connects how often, has no revocation list and cannot cut a connection off. So
callers knock first: they speak TLS with the door, which tells them what it thinks of them, and get a ticket. The connection that
comes with the ticket is handed on to gRPC as it is, which then checks certificates by itself; its bytes pass through a relay
outside Python (relay.py), because a board that imports torch has no time for its door but has to answer its peers.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from edgegossip.mesh.address import Address
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.security import knock
from edgegossip.mesh.security.entrance import Crowd, host_of, listen, ready
from edgegossip.mesh.security.names import ticket_in
from edgegossip.mesh.security.rates import Buckets, Teller
from edgegossip.mesh.security.relay import Relay
from edgegossip.mesh.security.tickets import Tickets
from edgegossip.mesh.security.visitor import Caller, Expected, Left, Visitor
from edgegossip.types import EdgegossipError, PeerError

_log = logging.getLogger(__name__)
_ACCEPTS = 64  # at a time, before others have their turn
_PAUSE_S = 0.2  # after trouble that would come again at once
# Between a connection to our gRPC server and the beginning of its handshake there, which takes microseconds.
_ON_ITS_WAY_S = 0.25
_RESET = b"\x01\0\0\0\0\0\0\0"  # struct linger: close at once


class Door:
    """Listens from construction, and answers from `open` until `close`. `admit` raises PeerError for who may not knock, `let_in`
    for who may not come in; `context` gives the TLS context for each new connection, `answer` and `offered` serve knocks (see
    visitor.Host); `tell` takes lines for the log.
    """

    def __init__(
        self,
        where: Address,
        upstream: str,
        fleet: str,
        limits: MeshLimits,
        context: Callable[[], ssl.SSLContext],
        admit: Callable[[Caller], None],
        let_in: Callable[[Caller], None],
        answer: Callable[[Caller, int], knock.Answer],
        offered: Callable[[Caller, bytes, int], None],
        tell: Callable[[Caller | None, str], None],
    ) -> None:
        self._upstream, self._fleet, self._limits = upstream, fleet, limits
        self.context, self._admit, self._let_in, self._tell = context, admit, let_in, tell
        self.answer, self.offered = answer, offered
        self._callers: dict[str, Caller] = {}  # by the local address that our gRPC server sees
        self._guests: dict[int, str] = {}  # that address, by the relay's number; the oldest first
        self._visitors: dict[Visitor, int] = {}  # and the events that are waited for
        self._tickets = Tickets[Caller](lambda caller: caller.serial)
        self._relay = Relay()
        self._crowd = Crowd(limits)
        self._knocks = Buckets(limits.knocks_per_s, limits.knock_burst)  # by certificate
        self._teller = Teller()
        self._selector = selectors.DefaultSelector()
        self._listener = listen(where)
        self.address = Address(where.host, self._listener.getsockname()[1])
        self._orders: deque[Callable[[], None]] = deque()
        self._bell, self._ringer = socket.socketpair()
        self._paused_until_s: float | None = None
        self._ending = False
        self._bell.setblocking(False)
        for source in (self._listener, self._bell, self._relay):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"door {self.address}", daemon=True)

    def open(self) -> None:
        """Answer who knocks, on a thread of its own. Apart from construction: what is called for them may need this door."""
        self._thread.start()

    def caller(self, local: str) -> Caller | None:
        """Who is at the other end of the connection that our gRPC server knows by this name. From any thread."""
        return self._callers.get(local)

    @property
    def alive(self) -> bool:
        """Whether it still does its work, or was told to end. From any thread."""
        return self._ending or self._thread.is_alive()

    def cut(self, which: Callable[[Caller], bool], why: str) -> None:
        """End connections, and take back tickets. From any thread."""
        self._order(lambda: self._cut(which, why))

    def alone(self, what: Callable[[], None]) -> None:
        """Do this on the door's thread, while none of its callers' connections is on its way into our gRPC server. Callers wait
        meanwhile. From any thread."""

        def quietly() -> None:
            time.sleep(_ON_ITS_WAY_S)
            what()
            time.sleep(_ON_ITS_WAY_S)

        self._order(quietly)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop listening and end what is left. Idempotent."""
        self._ending = True
        self._order(lambda: None)
        self._thread.join(timeout_s)

    # -- the thread ------------------------------------------------------------------------------------------

    def _order(self, what: Callable[[], None]) -> None:
        self._orders.append(what)
        try:
            self._ringer.send(b"!")
        except OSError:
            pass  # closed, or the bell rings already

    def _run(self) -> None:
        try:
            while not self._ending:
                try:
                    self._turn()
                except Exception as error:  # whatever it is, peers need a door
                    self._mishap(error)
                    time.sleep(_PAUSE_S)
        finally:
            for visitor in list(self._visitors):
                self._forget(visitor)
            self._relay.close()
            for s in (self._listener, self._bell, self._ringer):
                s.close()
            self._selector.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience_s()):
            if key.fileobj is self._bell:
                self._bell.recv(4096)
                while self._orders:
                    self._obey(self._orders.popleft())
            elif key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._relay:
                for id, _, _ in self._relay.ended():
                    self._callers.pop(self._guests.pop(id, ""), None)
            elif key.data in self._visitors:
                self._serve(key.data)
        self._expire()

    def _obey(self, order: Callable[[], None]) -> None:
        try:
            order()
        except Exception as error:
            self._mishap(error)

    def _serve(self, visitor: Visitor) -> None:
        """One step; nothing that goes wrong with one visitor may harm the others."""
        try:
            self._step(visitor)
        except Exception as error:
            self._mishap(error, visitor)
            with suppress(Exception):
                self._forget(visitor)

    def _mishap(self, error: Exception, visitor: Visitor | None = None) -> None:
        """Of ours, or of this machine: no descriptor left, for example."""
        about = f"the connection of {visitor.who}" if visitor else "connections"
        reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__} {error}".strip()
        key = visitor.address.rpartition(":")[0] if visitor else "", reason
        with suppress(Exception):
            if self._teller.worth(key, time.monotonic()):
                if not isinstance(error, OSError):  # a defect
                    _log.error("%s", about, exc_info=error)
                self._tell(visitor.caller if visitor else None, f"trouble of this board with {about}: {reason.lower()}")

    def _patience_s(self) -> float | None:
        deadlines = [v.deadline_s for v in self._visitors]
        if self._paused_until_s is not None:
            deadlines.append(self._paused_until_s)
        return max(0.0, min(deadlines) - time.monotonic()) + 0.001 if deadlines else None

    def _expire(self) -> None:
        """After whatever has come was looked at: our own lateness is nobody's fault."""
        now_s = time.monotonic()
        for visitor in [v for v in self._visitors if v.deadline_s <= now_s]:
            self._refuse(visitor, f"it did not finish {visitor.doing} in {self._limits.handshake_s:g} s")
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
            host, now_s = str(peer[0]), time.monotonic()
            if reason := self._crowd.why_not(host, now_s):
                with suppress(OSError), connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._say(None, (host, reason), f"refused {host}: {reason}", host)
                continue
            self._make_way(host, now_s)
            self._greet(connection, str(Address(host, int(peer[1]))))

    def _make_way(self, host: str, now_s: float) -> None:
        """Before a newcomer from there is listened to."""
        strangers = [v for v in self._visitors if v.caller is None]
        if dropped := self._crowd.who_makes_way(host, strangers, now_s):
            visitor, reason = dropped
            with suppress(OSError):
                visitor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._forget(visitor)
            theirs = host_of(visitor.address)
            self._say(None, (theirs, reason), f"refused {theirs}: {reason}", theirs)

    def _pause(self, error: OSError) -> None:
        self._say(None, "", f"this board takes no connections for a moment: {(error.strerror or str(error)).lower()}")
        self._selector.unregister(self._listener)
        self._paused_until_s = time.monotonic() + _PAUSE_S

    def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            ready(connection, self._limits)
        except OSError:  # it is gone already
            connection.close()
            return
        visitor = Visitor(connection, address, self, time.monotonic() + self._limits.handshake_s, self._fleet)
        self._visitors[visitor] = 0
        self._serve(visitor)

    def _step(self, visitor: Visitor) -> None:
        try:
            visitor.step()
        except Expected as expected:
            self._hand_on(visitor, expected.caller)
        except Left:
            self._forget(visitor)
        except PeerError as error:
            self._refuse(visitor, str(error))
        except (OSError, EdgegossipError) as error:
            _log.debug("connection of %s: %s", visitor.who, error)
            self._forget(visitor)
        else:
            self._watch(visitor)

    def _watch(self, visitor: Visitor) -> None:
        """Wait for what the visitor wants now."""
        before, wanted = self._visitors[visitor], visitor.wants
        if not before:
            self._selector.register(visitor.socket, wanted, visitor)
        else:
            self._selector.modify(
                visitor.socket, wanted, visitor
            )  # TLS took the descriptor over into a socket of its own
        self._visitors[visitor] = wanted

    def _leave(self, visitor: Visitor) -> None:
        if self._visitors.pop(visitor, 0):
            self._selector.unregister(visitor.socket)

    def _forget(self, visitor: Visitor) -> None:
        self._leave(visitor)
        visitor.close()

    def _hand_on(self, visitor: Visitor, caller: Caller) -> None:
        """To our gRPC server. An address that Linux chooses (unix(7), autobind) tells its connections apart."""
        self._leave(visitor)
        key, inside = "", None
        try:
            inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            inside.bind("")
            key = "unix-abstract:" + inside.getsockname()[1:].decode()
            inside.setblocking(False)
            inside.connect("\0" + self._upstream)
            self._callers[key] = caller  # before gRPC can ask for it
            self._guests[self._relay.add(visitor.socket.fileno(), inside.fileno())] = key
            visitor.socket.detach()
            inside.detach()
        except (OSError, RuntimeError) as error:
            if not isinstance(error, ConnectionError):  # as long as our gRPC server runs
                self._mishap(error, visitor)
            self._callers.pop(key, None)
            if inside is not None:
                inside.close()
            visitor.close()

    def _refuse(self, visitor: Visitor, reason: str) -> None:
        source = visitor.caller.subject if visitor.caller else visitor.address.rpartition(":")[0]
        self._forget(visitor)
        self._say(visitor.caller, (source, reason), f"refused {visitor.who}: {reason}", source)

    def _say(self, caller: Caller | None, key: object, text: str, source: object = None) -> None:
        if self._teller.worth(key, time.monotonic(), source):
            self._tell(caller, text)

    def _cut(self, which: Callable[[Caller], bool], why: str) -> None:
        self._tickets.drop(which)
        for visitor in [v for v in self._visitors if v.caller is not None and which(v.caller)]:
            self._forget(visitor)
        for id, key in list(self._guests.items()):
            caller = self._callers.get(key)
            if caller is not None and which(caller):
                self._relay.cut(id)
                who = f"{caller.subject.name} at {caller.address}"
                self._say(caller, (who, why), f"cut off {who}: {why}")

    # -- for visitors ----------------------------------------------------------------------------------------

    def admit(self, caller: Caller) -> None:
        """See visitor.Host. A board may have many addresses, but one certificate."""
        self._admit(caller)
        if not self._knocks.take(caller.serial, time.monotonic()):
            raise PeerError(f"it knocks more than {self._limits.knocks_per_s:g} times a second")

    def give_ticket(self, caller: Caller) -> str:
        """For a caller that has knocked. On the door's thread."""
        return self._tickets.give(caller, time.monotonic())

    def redeem(self, server_name: str, visitor: Visitor) -> Caller | None:
        """See visitor.Host. Of too many connections of one board the oldest goes: it has likely forgotten it."""
        ticket = ticket_in(server_name)
        holder = self._tickets.take(ticket, time.monotonic()) if ticket else None
        if holder is None:
            return None
        visitor.caller = caller = replace(holder, address=visitor.address)
        self._let_in(caller)
        mine = [id for id, key in self._guests.items() if self._callers[key].subject == caller.subject]
        for id in mine[: max(0, len(mine) + 1 - self._limits.max_connections_per_peer)]:
            self._relay.cut(id)
            reason = f"it has more than {self._limits.max_connections_per_peer} connections"
            self._say(caller, (caller.subject, reason), f"refused {visitor.who}: {reason}; the oldest is closed")
        return caller
