"""The security of a transport: TLS behind the front end, the admission handshake before each
connection, revocations that spread.

Methods without a remark are called on the transport's loop."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import CallerGone, MeshLimits, Tell, Unreachable
from edgegossip.security import handshake, tls
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.certificates import certificate_from_pem
from edgegossip.security.front_end import FrontEnd
from edgegossip.security.identity import CERTIFICATE, KEY, Identity, stamp
from edgegossip.security.names import Subject, serial_name, subject_of
from edgegossip.types import DataError, DecodeError, EdgegossipError, NodeId, PeerError
from edgegossip.untrusted import printable

_log = logging.getLogger(__name__)
_NAMES = "x509_subject_alternative_name"  # where gRPC keeps a caller's names
_LOOK_S = 2.0  # between two looks at our folder
_LAST_WORDS_S = 0.2  # for a refusal to reach the peer before its connection is cut
_TAKE_OVER_S = 2.0  # for gRPC to see a connection of ours


class Credentials:
    """Holds certificate and key of our folder in the forms that TLS and gRPC take, for connections
    that begin from now on: `server_context` and `client_context` for Python's `ssl`, which know the
    revocation list too, `channel` and `server` for gRPC. Raises DataError when the files cannot be
    used at first; later those that are there already stay."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._files = identity.folder / CERTIFICATE, identity.folder / KEY
        self._lock = threading.Lock()
        self._taken: object = None  # what told the files apart then
        self._shown: object = None  # what gRPC has of them
        self._failures = "", 0  # why the files cannot be used, and so many looks found that
        self._take()

    @property
    def stale(self) -> bool:
        """Whether there is something for `look`."""
        return self._taken != self._stamps()

    def look(self, *, again: bool = False) -> str:
        """Take the files once more if they have changed, or `again` because the revocation list
        has. Files that cannot be used, half copied for example, are tried again at the next look;
        the reason is returned when two looks find it (a certificate and its key are not replaced
        in one step), and otherwise nothing."""
        with self._lock:
            if again:
                self._taken = None
            if not self.stale:
                return ""
            try:
                self._take()
            except DataError as error:
                before, times = self._failures
                self._failures = str(error), times + 1 if str(error) == before else 1
                return str(error) if self._failures[1] == 2 else ""
            self._failures = "", 0
            return ""

    def _take(self) -> None:
        taken = self._stamps()
        try:
            pem, key = (file.read_bytes() for file in self._files)
        except OSError as error:
            raise DataError(f"{self._identity.folder}: {(error.strerror or str(error)).lower()}") from error
        server_context, client_context = tls.server_context(self._identity), tls.client_context(self._identity)
        if self._stamps() != taken:  # or gRPC might get a certificate and the key of another one
            raise DataError(f"{self._identity.folder} is being replaced")
        self.server_context, self.client_context = server_context, client_context
        authority = self._identity.authority.pem
        # Another revocation list is nothing to gRPC, which takes what is another object for new.
        if self._shown != (pem, key):
            self.channel = grpc.ssl_channel_credentials(authority, key, pem)
            self.server = grpc.ssl_server_certificate_configuration([(key, pem)], authority)
            self._shown = pem, key
        self._taken, self.certificate = taken, certificate_from_pem(pem)

    def _stamps(self) -> tuple[object, ...]:
        return tuple(map(stamp, self._files))


class TlsSecurity:
    """Secures one node with an identity: mutual TLS 1.3 behind a front end. `identity` names it; a
    transport calls `start` once. `clock` and `monotonic` are as Admission has them.

    Raises DataError when the identity's files cannot be used."""

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity, self._clock = identity, clock
        self._front_end: FrontEnd | None = None
        self.admission = Admission(identity, clock=clock, monotonic=monotonic)
        self._tell: Tell = lambda _peer, _said: None
        self._on_news: Callable[[], None] = lambda: None
        self._limits = MeshLimits()
        self._pinned: dict[NodeId, int] = {}  # serial of the certificate that each peer showed last
        self._tokens: dict[NodeId, list[str]] = {}  # that peers gave us, the newest last
        self._files = Credentials(identity)
        self._certificate = self._in_use = self._files.server  # what gRPC may take, and what it has
        self._taken_over = threading.Event()

    @classmethod
    def load(cls, folder: str | Path) -> TlsSecurity:
        """Load the security of an identity folder. Raises DataError and UsageError, see
        Identity.load."""
        return cls(Identity.load(folder))

    # -- the listening side

    def start(
        self,
        limits: MeshLimits,
        tell: Tell,
        on_news: Callable[[], None],
        on_quarantine: Callable[[NodeId, float], None],
    ) -> str:
        """Return the name on which our gRPC server is to listen, inside this machine. `tell` takes
        lines for the log, `on_news` is called when our revocation list is a newer one, so that some
        peer may have to be let go, and `on_quarantine` when a peer is kept out; all from any
        thread."""
        self._limits, self._tell, self._on_news, self._on_quarantine = limits, tell, on_news, on_quarantine
        self._upstream = f"edgegossip-{os.getpid()}-{secrets.token_hex(8)}"
        return f"unix-abstract:{self._upstream}"

    def listen(self, where: Address) -> Address:
        """Listen for peers, who are let through to our gRPC server, now that it listens. Raises
        HostError."""
        self._front_end = FrontEnd(
            where.host,
            where.port,
            self._upstream,
            self._limits,
            self.admission,
            context=lambda: self._files.server_context,
            look=self.look_at_file,
            on_list=lambda caller, crl, told: self._offered(caller.subject, crl, told),
            tell=lambda caller, said: self._tell(_board(caller), said),
        )
        self._front_end.start()
        return Address(*self._front_end.address)

    def close(self) -> None:
        """Close the port and every connection. From any thread; waits for at most 2 s."""
        if self._front_end is not None:
            self._front_end.close()

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of our gRPC server, which asks for a certificate, too."""
        self._certificate = self._in_use = self._files.server
        return grpc.dynamic_ssl_server_credentials(self._certificate, self._newer, require_client_authentication=True)

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Answer gRPC, which asks at each connection, on any thread; None is "as before". What it
        is given it puts in place of what a handshake that begins just then on another thread may be
        about to use, and its core faults (grpc/grpc#36693): so it gets a certificate once, and
        while the front end lets nobody else begin."""
        if self._certificate is self._in_use:
            return None
        self._in_use = self._certificate
        self._taken_over.set()
        return self._in_use

    def _offer(self) -> None:
        """Have gRPC take our new certificate, on the front end's thread (FrontEnd.undisturbed), for
        a connection of ours that says nothing."""
        if self._certificate is self._files.server:
            return
        self._taken_over.clear()
        self._certificate = self._files.server
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inside:
            inside.connect("\0" + self._upstream)
            self._taken_over.wait(_TAKE_OVER_S)

    def caller(self, context: grpc.aio.ServicerContext) -> Caller:
        """Return who called one of our services, by its certificate. Raises CallerGone when the
        connection is gone, PeerError when the certificate is not the one that the token was issued
        to."""
        found = self._front_end.caller(context.peer()) if self._front_end is not None else None
        if found is None:
            raise CallerGone("its connection has ended")
        names = context.auth_context().get(_NAMES, ())
        if serial_name(found.serial, self.identity.fleet).encode() not in names:
            name = found.subject.name
            raise PeerError(f"its certificate is not the one that {name} showed in the admission handshake")
        if self.identity.revocations.revoked(found.serial):  # its connection is cut a moment later
            raise CallerGone("its certificate was revoked")
        return found

    def identify(self, context: grpc.aio.ServicerContext) -> NodeId:
        """Return the name of the board that called. Raises PeerError with the reason when it may
        not come in; CallerGone."""
        caller = self.caller(context)
        if caller.subject.role != "board":
            raise PeerError(f"its role is {caller.subject.role}, where board is due")
        return caller.subject.name

    def place(self, context: grpc.aio.ServicerContext) -> str:
        """Return host:port of who called, for the log."""
        found = self._front_end.caller(context.peer()) if self._front_end is not None else None
        return found.address if found else "a closed connection"

    def misbehaved(self, context: grpc.aio.ServicerContext, reason: str) -> None:
        """Keep out for a while, and for longer each time, who called: it broke the protocol and was
        told so."""
        key, front_end = context.peer(), self._front_end
        names = tuple(name.decode().lower() for name in context.auth_context().get(_NAMES, ()))
        if front_end is None:
            return
        try:
            subject = subject_of(names, self.identity.fleet)  # not the holder of its token: it may have overheard that
        except PeerError:
            return  # cannot be: gRPC has checked the certificate
        self._strike(subject, reason)

        def cut() -> None:
            front_end.cut(lambda c: c.subject == subject or front_end.caller(key) is c, "it is in quarantine")

        asyncio.get_running_loop().call_later(_LAST_WORDS_S, cut)

    def _strike(self, subject: Subject, reason: str) -> None:
        """Put a member in quarantine. Any thread."""
        if length_s := self.admission.misbehaved(subject, reason):
            board = subject.role == "board"
            words = f"{subject.name} is in quarantine for {length_s:g} s: {printable(reason, 300)}"
            self._tell(subject.name if board else None, words)
            if board:
                self._on_quarantine(subject.name, length_s)

    # -- the calling side

    async def check(
        self, peer: NodeId | None, where: Address, before_close: Callable[[], object] = lambda: None
    ) -> NodeId:
        """Make the admission handshake: see that it is `peer` who listens there, or any board of
        our fleet, that neither is revoked, and exchange revocation lists. From then on connections
        to it insist on the certificate that it showed. Return who it is. Raises PeerError with the
        reason, OSError when nobody answers."""
        async with asyncio.timeout(2 * self._limits.handshake_s):
            name, serial, token = await self._ask_in(peer, where, before_close)
        self._pinned[name] = serial
        self._tokens[name] = [*self._tokens.get(name, [])[-3:], token]
        return name

    def channel_credentials(self, peer: NodeId) -> grpc.ChannelCredentials:
        """Return the credentials of a connection that we open to `peer`."""
        return self._files.channel

    def channel_options(self, peer: NodeId) -> list[tuple[str, int | str]]:
        """Return options that insist on the certificate that `check` saw, and show the token.
        Without a `check` before it nobody lets us in."""
        tokens = self._tokens.get(peer)
        if peer in self._pinned and tokens:
            name = serial_name(self._pinned[peer], self.identity.fleet, tokens.pop())
        else:
            name = Subject(peer, "board", self.identity.fleet).dns_name
        return [("grpc.ssl_target_name_override", name)]

    def revoked(self, peer: NodeId) -> bool:
        """Return whether `peer` has to be let go: the certificate that `check` saw last was revoked
        since."""
        return peer in self._pinned and self.identity.revocations.revoked(self._pinned[peer])

    # -- revocation

    def _offered(self, giver: Subject, crl: bytes, told: int) -> None:
        """Take a list that somebody offers. Any thread. One that is not our authority's, or no
        newer than the number that its giver was `told`, costs us a check and the giver its
        connections and a while outside. Raises PeerError then."""
        try:
            newer = self.identity.revocations.offer(crl, told)
        except PeerError as error:
            self._strike(giver, str(error))
            if self._front_end is not None:
                self._front_end.cut(lambda c: c.subject == giver, "it is in quarantine")
            raise
        if newer:
            self._renew(f"{giver.name} brought")

    async def watch(self) -> None:
        """Notice what is copied into our folder, and a front end that does not work any more. Ends
        when it is cancelled."""
        told, expired = False, 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()
            end_s = self._files.certificate.valid[1]
            if end_s < self._clock() and expired != end_s:
                expired = end_s
                dates = tls.out_of_date(True, self._clock(), self.identity.subject.name)
                self._tell(None, f"our own certificate {dates}; connections that stand go on, no new one will be made")
            if self._front_end is not None and not self._front_end.alive and not told:
                told = True
                text = "the front end of this board does not work any more, so no peer can connect: restart the board"
                _log.error("%s", text)
                self._tell(None, text)

    async def _look(self) -> None:
        """Look at our folder, on another thread: a signature takes some 10 ms to check, on a small
        board ten times as long: not on the loop."""
        if self.identity.revocations.file_changed:
            await asyncio.to_thread(self.look_at_file)
        if self._files.stale:
            await asyncio.to_thread(self._look_at_credentials)

    def look_at_file(self) -> None:
        """Take over a newer list that was copied into our folder. Any thread."""
        try:
            if self.identity.revocations.look_at_file():
                self._renew("the folder has")
        except EdgegossipError as error:
            self._tell(None, str(error))

    def _renew(self, how: str) -> None:
        """Go by our list, which is a newer one; nothing may keep it from having its effect. Should
        the files for TLS be out of use, then the front end itself still refuses who is revoked."""
        present = self.identity.revocations.present
        self._tell(None, f"{how} revocation list {present.number}: {len(present.serials)} certificates are revoked")
        if self._front_end is not None:
            self._front_end.cut(lambda c: c.serial in present.serials, "its certificate was revoked")
        self._look_at_credentials(again=True)
        self._on_news()

    def _look_at_credentials(self, *, again: bool = False) -> None:
        if complaint := self._files.look(again=again):
            self._tell(None, f"{complaint}; this board goes on with the certificate that it has")
        if self._files.server is not self._certificate and self._front_end is not None:
            self._front_end.undisturbed(self._offer)

    async def _ask_in(
        self, peer: NodeId | None, where: Address, before_close: Callable[[], object]
    ) -> tuple[NodeId, int, str]:
        """Ask to be let in: return the name and the serial of the certificate that was shown, and a
        one-time token."""
        await self._look()
        reader, writer = await self._connect(peer, where)
        try:
            session = writer.get_extra_info("ssl_object")
            if session.selected_alpn_protocol() != tls.ADMISSION:
                raise PeerError("what listens there is no edgegossip board")
            shown, serial = tls.peer_of(session.getpeercert(), self.identity.fleet)
            if shown.role != "board":
                raise PeerError(f"{shown.name} is a {shown.role}, where a board is due")
            present = self.identity.revocations.present
            writer.write(handshake.hello(present.number))
            answer = await _read_answer(reader)
            if answer.crl:
                await asyncio.to_thread(self._offered, shown, answer.crl, present.number)
            writer.write(handshake.blob(present.der if present.number > answer.number else b""))
            with suppress(ssl.SSLError, OSError):
                await reader.read(1)  # until it has closed: it has our list then
            if not answer.welcome:  # we are in quarantine there, which ends
                raise Unreachable(f"refused: {printable(answer.text)}")
            if self.identity.revocations.revoked(serial):
                raise PeerError("its certificate was revoked")
            return shown.name, serial, answer.text
        except ssl.SSLError as error:
            # In TLS 1.3 a listener says what it thinks of our certificate after the handshake.
            raise PeerError(tls.words(error, self._clock())) from error
        except DecodeError as error:
            raise PeerError(str(error)) from error
        finally:
            before_close()
            writer.transport.abort()

    async def _connect(self, peer: NodeId | None, where: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = self._files.client_context
        if peer is None:  # the chain is checked; the name is what we ask for
            context = tls.client_context(self.identity)
            context.check_hostname = False
        try:
            return await asyncio.open_connection(
                where.host,
                where.port,
                ssl=context,
                server_hostname=Subject(peer or "seed", "board", self.identity.fleet).dns_name,
                ssl_handshake_timeout=2 * self._limits.handshake_s,
            )
        except (ssl.SSLEOFError, ConnectionResetError) as error:
            raise Unreachable("it ended the connection during the TLS handshake") from error
        except ssl.SSLError as error:
            raise PeerError(tls.words(error, self._clock())) from error
        except OSError as error:
            raise Unreachable(os.strerror(error.errno).lower() if error.errno else "it does not answer") from error


async def _read_answer(reader: asyncio.StreamReader) -> handshake.Answer:
    data = b""
    while True:
        more = await reader.read(65_536)
        if not more:
            raise Unreachable("it ended the connection without a word")
        data += more
        if (answer := handshake.parse_answer(data)) is not None:
            return answer


def _board(caller: Caller | None) -> NodeId | None:
    return caller.subject.name if caller is not None and caller.subject.role == "board" else None
