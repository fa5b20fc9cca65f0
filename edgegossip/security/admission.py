"""Admission: who may come in, and why not. One place for the mesh's TLS front end, a coordinator
and the fleet's HTTP server.

Two things prove who somebody is: the certificate of a mutual TLS connection, whose chain, dates and
usage OpenSSL has checked, and a signature over a document, where the dates are looked at here.
Either way the name is the certificate's, its serial number must not be revoked, and a board that
broke the protocol is kept out for a while. Thread-safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edgegossip.security.identity import Identity, OtherFleet, RevokedSigner
from edgegossip.security.names import Role, Subject
from edgegossip.security.tls import out_of_date, peer_of
from edgegossip.types import EdgegossipError, NodeId, PeerError

REVOKED = "its certificate was revoked"


def shut_out(board: NodeId) -> str:
    """Say of a board whose certificate was revoked what that means, and how it comes back."""
    return (
        f"the certificate of {board} was revoked, so it is shut out until it has a new one "
        f"(`edgegossip fleet add {board}`, and copy the folder to it)"
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """Says who is at the other end of a connection, or signed a document, by its certificate."""

    subject: Subject
    serial: int
    address: str = ""  # host:port


@dataclass(frozen=True, slots=True)
class _Record:
    times: int
    until_s: float
    length_s: float
    reason: str


class Quarantine:
    """Keeps account of boards that broke the protocol, by name. The caller passes monotonic
    seconds.

    The first time a board is kept out for `FIRST_S`, each further time twice as long, at most
    `LONGEST_S`; a board that behaves for `FORGET_S` after it was let in again has one time less
    against it. Only what a certificate proves counts: a name that anybody can claim would let a
    stranger lock a board out."""

    FIRST_S, LONGEST_S, FORGET_S = 5.0, 600.0, 600.0

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}

    def strike(self, board: NodeId, reason: str, now_s: float) -> float:
        """Note that it misbehaved; return for how many seconds it is kept out from now on. 0 when
        it is kept out already: what was on its way when that began is no second time."""
        if self.reason(board, now_s):
            return 0.0
        times = self._times(board, now_s) + 1
        length_s = min(self.FIRST_S * 2.0 ** (times - 1), self.LONGEST_S)
        self._records[board] = _Record(times, now_s + length_s, length_s, reason)
        return length_s

    def reason(self, board: NodeId, now_s: float) -> str:
        """Return why it is kept out at this moment, and for how long in all; empty when it is not.
        Without a count-down, which would make each line of a log another one."""
        record = self._records.get(board)
        if record is None or record.until_s <= now_s:
            return ""
        return f"in quarantine for {record.length_s:g} s: {record.reason}"

    def _times(self, board: NodeId, now_s: float) -> int:
        record = self._records.get(board)
        if record is None:
            return 0
        return max(0, record.times - max(0, int((now_s - record.until_s) // self.FORGET_S)))


class Admission:
    """Applies the rules of one server. `clock` gives wall time in seconds (for dates of
    certificates), `monotonic` seconds that never jump (for quarantine)."""

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.clock, self.monotonic = clock, monotonic
        self._quarantine = Quarantine()
        self._number = identity.revocations.number

    # -- by connection

    def by_connection(self, certificate: Mapping[str, Any] | None, address: str) -> Caller:
        """Tell who connected, from `getpeercert()` after a handshake. Raises PeerError with the
        reason when it may not come."""
        caller = Caller(*peer_of(certificate, self.identity.fleet), address)
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raise PeerError when its certificate was revoked."""
        if self.identity.revocations.revoked(caller.serial):
            raise PeerError(REVOKED)

    def check_connection(self, caller: Caller) -> None:
        """Raise PeerError for who comes with a one-time token: since it was issued, a revocation
        list may have come, or the caller may have misbehaved."""
        self.check(caller)
        if self.kept_out(caller.subject):
            raise PeerError("it is in quarantine")

    # -- by signature

    def by_signature(self, role: Role, among: Collection[str], data: bytes, signature: bytes) -> Caller:
        """Tell who of the members `among`, in this role, signed `data`. Raises PeerError with the
        reason when nobody did who may come in."""
        try:
            subject, certificate = self.identity.signer(role, data, signature)
        except OtherFleet:  # in the words that TLS has for it
            raise PeerError("its certificate is of another fleet") from None
        except RevokedSigner as error:
            raise PeerError(shut_out(error.name)) from None
        begin_s, end_s = certificate.valid
        if not begin_s <= (now_s := self.clock()) <= end_s:
            dates = out_of_date(now_s > end_s, now_s, subject.name)
            raise PeerError(f"the certificate of {subject.name} {dates}")
        if subject.name not in among:
            raise PeerError(f"{subject.name} is not a board of this run; the boards are {', '.join(among)}")
        return Caller(subject, certificate.serial)

    # -- revocation

    def look(self) -> bool:
        """Look at crl.pem, and say whether our list is another one than at the last `look`. A
        forged file, or one that is being copied, changes nothing."""
        with suppress(EdgegossipError):
            self.identity.revocations.look_at_file()
        before, self._number = self._number, self.identity.revocations.number
        return self._number != before

    def revoked(self, serial: int) -> bool:
        """Return whether that certificate is on our list."""
        return self.identity.revocations.revoked(serial)

    # -- quarantine

    def kept_out(self, subject: Subject) -> str:
        """Return why a member is kept out at this moment; empty when it is not."""
        return self._quarantine.reason(subject.name, self.monotonic())

    def misbehaved(self, subject: Subject, reason: str) -> float:
        """Keep a member out that broke the protocol; return for how many seconds. 0 when it is kept
        out already."""
        return self._quarantine.strike(subject.name, reason, self.monotonic())
