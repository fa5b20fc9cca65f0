"""Revocation, pushed to who runs (`fleet revoke --tell`): a board or a coordinator is given the
fleet's present revocation list, and asked whether it goes by it then.

An operator's laptop is a caller as boards are: it makes the admission handshake
(security/handshake.py). Blocking."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from edgegossip.fleet.store import Fleet
from edgegossip.mesh import address as addresses
from edgegossip.security import handshake, tls
from edgegossip.security.identity import CRL, Identity
from edgegossip.types import EdgegossipError, NodeId, PeerError, UsageError
from edgegossip.untrusted import printable

# Sends a revocation list (DER) to who is at the other end of a connection; the number of the list
# that it has then.
Send: TypeAlias = Callable[[ssl.SSLSocket, bytes], int]

_AT_A_TIME = 16


def tell(fleet: Fleet, where: str, to_coordinator: Send | None = None) -> tuple[str, int]:
    """Send the revocation list of the fleet's folder to the board that listens at `where`
    (host:port), or with `to_coordinator` to a coordinator; its name and the list's number. Raises
    ConfigError for a bad address, PeerError when it cannot be reached or does not take the list
    over, UsageError when it knows a list that this folder did not make: the folder is an old
    copy."""
    identity = fleet.operator()
    try:
        result = push(identity, where, to_coordinator=to_coordinator)
    except PeerError as error:
        if "our certificate was revoked" not in str(error):
            raise
        cure = _cure(fleet, "whoever listens there", where)
        raise UsageError(f"{error}: {fleet.folder} is an old copy of the fleet's folder. {cure}") from error
    ours = identity.revocations.number
    if result.number == ours and result.has_ours:
        return result.name, ours
    if result.number < ours:
        why = f": {result.refusal}" if result.refusal else ""
        raise PeerError(
            f"{where}: {result.name} did not take over revocation list {ours}, it goes by list {result.number}{why}; "
            "its log says more; then say this again"
        )
    raise UsageError(_old_copy(fleet, result, where, ours))


def tell_all(
    fleet: Fleet, places: Sequence[str], to_coordinator: Send | None = None
) -> Mapping[str, tuple[str, int] | EdgegossipError]:
    """Do `tell` for each of the places at the same time, whatever the others come to: by place,
    what it returned or raised."""

    def one(where: str) -> tuple[str, int] | EdgegossipError:
        try:
            return tell(fleet, where, to_coordinator)
        except EdgegossipError as error:
            return error

    places = tuple(dict.fromkeys(places))
    if not places:
        return {}
    with ThreadPoolExecutor(min(len(places), _AT_A_TIME)) as pool:
        return dict(zip(places, pool.map(one, places), strict=True))


def _old_copy(fleet: Fleet, result: PushResult, where: str, ours: int) -> str:
    lists = f"list {result.number}" if result.number > ours else f"another list {ours}"
    return (
        f"{result.name} at {where} goes by {lists}, which {fleet.folder} (list {ours}) did not make: this folder is an old copy "
        f"of the fleet's, and nobody takes its list over. {_cure(fleet, result.name, where)}"
    )


def _cure(fleet: Fleet, who: str, where: str) -> str:
    return (
        f"Copy crl.pem from the identity folder of {who} to {fleet.folder / CRL}, then say: "
        f"edgegossip fleet revoke --fleet {fleet.folder} --tell {where}"
    )


@dataclass(frozen=True, slots=True)
class PushResult:
    """Says what a push came to, by the other side's own words afterwards."""

    name: NodeId
    number: int  # of the list that it goes by
    has_ours: bool  # whether that is ours, byte for byte; of a coordinator, which tells no more, by its number
    refusal: str = ""  # why a board would not have let us in, if so


def push(identity: Identity, where: str, timeout_s: float = 10.0, *, to_coordinator: Send | None = None) -> PushResult:
    """Send the identity's revocation list to whatever board of the fleet listens at `where`
    (host:port), which tells the others, or with `to_coordinator` to a coordinator. A board that was
    given it is asked again: the admission handshake has no answer to a list. Each of the two visits
    takes `timeout_s` at most, however slowly the other side speaks.

    Raises ConfigError for a bad address, PeerError when nobody of the fleet answers there."""
    address = addresses.parse(where, "address")
    context = tls.client_context(identity)
    context.check_hostname = False  # any board of the fleet will do; `peer_of` sees that it is one
    try:
        result, sent = _visit(context, address, timeout_s, identity, to_coordinator)
        return _visit(context, address, timeout_s, identity, None)[0] if sent else result
    except ssl.SSLError as error:
        raise PeerError(f"{where}: {tls.words(error)}") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "it does not answer"
        raise PeerError(f"{where}: {reason}") from error
    except PeerError as error:
        raise PeerError(f"{where}: {error}") from error


def _visit(
    context: ssl.SSLContext, where: addresses.Address, timeout_s: float, identity: Identity, send: Send | None
) -> tuple[PushResult, bool]:
    """Return what it goes by when we come, and whether we sent it ours."""
    with (
        socket.create_connection((where.host, where.port), timeout_s) as plain,
        until(plain, timeout_s),
        context.wrap_socket(plain) as s,
    ):
        subject, _ = tls.peer_of(s.getpeercert(), identity.fleet)
        present = identity.revocations.present
        if subject.role == "coordinator" and send is not None:
            number = send(s, present.der)
            return PushResult(subject.name, number, number == present.number), False
        if subject.role != "board" or s.selected_alpn_protocol() != tls.ADMISSION:
            raise PeerError("what listens there is no board")
        with suppress(ssl.SSLEOFError, ConnectionError):  # it refused our certificate: why is there to be read
            s.sendall(handshake.hello(0))  # as if we knew no list, so that it shows its own
        answer = _answer(s)
        newer = present.number > answer.number
        s.sendall(handshake.blob(present.der if newer else b""))
        with suppress(OSError):
            s.recv(1)  # until it has closed: it has looked at the list then
        refusal = "" if answer.welcome else printable(answer.text)
        return PushResult(subject.name, answer.number, answer.crl == present.der, refusal), newer


@contextmanager
def until(connection: socket.socket, timeout_s: float) -> Iterator[None]:
    """End a connection that takes longer: the limit of a socket is one of each read and write, and
    who sends a byte every few seconds never meets it. Through a second descriptor, since TLS takes
    the first one over. Raises TimeoutError."""
    ended = threading.Event()
    with connection.dup() as same:

        def end() -> None:
            ended.set()
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, PeerError) as error:
            if ended.is_set():
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
            timer.join()


def _answer(s: ssl.SSLSocket) -> handshake.Answer:
    data = b""
    while (answer := handshake.parse_answer(data)) is None:
        more = s.recv(65_536)
        if not more:
            raise PeerError("it ended the connection without a word")
        data += more
    return answer
