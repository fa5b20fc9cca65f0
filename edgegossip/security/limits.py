"""How often somebody may come or ask, how many may stand at a port at a time, and how often a log
may say so. Who has shown no certificate counts by its network: `network_of`.

Pure: the caller passes monotonic seconds. Memory is bounded whatever strangers do: who was unseen
for longest is forgotten."""

from __future__ import annotations

import socket
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from edgegossip.types import HostError

_MAX_KEYS = 1024
_HESITATES_S = 0.25  # a caller has to speak first, and does so at once
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


class TokenBuckets:
    """Keeps a token bucket for each key: `burst` at once, `rate` a second in the long run."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._state: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens, when; the latest last

    def take(self, key: Hashable, now_s: float, tokens: float = 1.0) -> bool:
        """Return whether `key` may go on; takes nothing when it may not."""
        left, then_s = self._state.pop(key, (self._burst, now_s))
        left = min(self._burst, left + (now_s - then_s) * self._rate)
        allowed = left >= tokens
        self._state[key] = (left - tokens if allowed else left, now_s)
        if len(self._state) > _MAX_KEYS:
            self._state.popitem(last=False)
        return allowed


class ProcessorShare:
    """Says how long work has to rest so that it takes at most `share` of one core in the long run,
    and `burst_s` processor seconds at once."""

    def __init__(self, share: float, burst_s: float = 0.25) -> None:
        self._share, self._burst_s = share, burst_s
        self._left_s, self._then_s = burst_s, 0.0

    def rest_s(self, spent_s: float, now_s: float) -> float:
        """Count `spent_s` processor seconds more; return the seconds until more may be spent."""
        earned_s = (now_s - self._then_s) * self._share
        self._left_s = min(self._burst_s, self._left_s + earned_s) - spent_s
        self._then_s = now_s
        return max(0.0, -self._left_s / self._share)


class SharedRateLimiter:
    """Keeps one rate for everybody who has not shown a certificate yet, as a coordinator's HTTP
    port has it: a signature costs some milliseconds, whoever made it. Addresses that were refused
    of late, or have many questions open, share a smaller rate of their own, so that they cannot
    keep out boards that come from elsewhere; no more can one whose questions are all right, but
    have no end. Addresses count as `network_of` says."""

    BOARDS, BOARDS_BURST = 10.0, 64.0  # a second, at once
    EACH = 2.0  # of it, for one network
    STRANGERS, STRANGERS_BURST = 5.0, 32.0
    MAX_OPEN = 32  # questions of one network at the same time, before it is known whose they are
    STRANGE_S = 60.0  # that one which was refused is taken for a stranger's
    MAX_REFUSED = 1000  # networks remembered

    def __init__(self) -> None:
        self._boards = TokenBuckets(self.BOARDS, self.BOARDS_BURST)
        self._each = TokenBuckets(self.EACH, self.BOARDS_BURST)
        self._strangers = TokenBuckets(self.STRANGERS, self.STRANGERS_BURST)
        self._refused: OrderedDict[str, float] = OrderedDict()  # when, by network, the latest last
        self._open: Counter[str] = Counter()

    def allows(self, address: str, now_s: float) -> bool:
        """Return whether a question from there is taken now."""
        network = network_of(address)
        refused_s = self._refused.get(network)
        strange = refused_s is not None and now_s - refused_s < self.STRANGE_S
        if strange or self._open[network] > self.MAX_OPEN:
            return self._strangers.take("", now_s)
        return self._each.take(network, now_s) and self._boards.take("", now_s)

    def refused(self, address: str, now_s: float) -> None:
        """Note that who asked from there may not come in."""
        network = network_of(address)
        self._refused.pop(network, None)
        self._refused[network] = now_s
        while len(self._refused) > self.MAX_REFUSED:
            self._refused.popitem(last=False)

    @contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """Hold a question from there open."""
        network = network_of(address)
        self._open[network] += 1
        try:
            yield
        finally:
            self._open[network] -= 1
            if not self._open[network]:
                del self._open[network]


class RateLimitedLog:
    """Says which lines are worth a log: the same one at most once every `quiet_s`, few altogether,
    and a quarter of those from one source, so that a flood of refusals does not become a flood of
    lines, nor hides what others are refused for."""

    def __init__(self, quiet_s: float = 60.0, per_s: float = 1.0, burst: float = 64.0) -> None:
        self._same, self._all = TokenBuckets(1 / quiet_s, 1.0), TokenBuckets(per_s, burst)
        self._one = TokenBuckets(per_s / 4, burst / 4)

    def worth(self, key: Hashable, now_s: float, source: Hashable = None) -> bool:
        """Return whether to write what `key` stands for. It is to hold what makes the line another
        one, and nothing else: no port for example. `source`: who brings it about, as far as that
        can be told."""
        if not self._same.take(key, now_s):
            return False
        return (source is None or self._one.take(source, now_s)) and self._all.take("", now_s)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Holds the bounds of a port that strangers can reach, as a TLS front end keeps them. Times are
    seconds."""

    handshake_s: float = 1.8  # bound of a caller's handshake, and of its silence before Hello
    connections_per_s: float = 50.0  # from one address or IPv6 network, in the long run
    connection_burst: int = 200  # and at once: a fleet on one machine starts with two a pair of boards
    max_pending_handshakes: int = 256  # connections that have not finished the TLS handshake
    max_pending_handshakes_per_address: int = 64
    max_connections_per_peer: int = 4  # with one certificate: frames and questions, and as many that are dying
    admissions_per_s: float = 10.0  # admission handshakes with one certificate, from all its addresses, in the long run
    admission_burst: int = 100
    # Silence after which either end asks whether the other is there, and for the answer. A question
    # and its answer are 270 bytes on the link, so slow rounds pay for them, not for frames.
    keepalive_s: float = 4.0
    keepalive_timeout_s: float = 3.0


class Pending(Protocol):
    """Describes a connection that has not finished the TLS handshake."""

    address: str  # host:port
    since_s: float  # when it came

    @property
    def silent(self) -> bool:
        """Whether it has not asked for anything yet."""


P = TypeVar("P", bound=Pending)


class ConnectionLimiter:
    """Bounds how often one address connects, and how many connections may be in their TLS
    handshakes. Addresses count as `network_of` says.

    Where it is full a newcomer is not turned away: strangers that hold every place would keep out
    those with a certificate, who need theirs for a moment only. So one of those that are there has
    to go."""

    def __init__(self, per_s: float, burst: float, max_pending: int, max_pending_per_address: int) -> None:
        self._per_s, self._rates = per_s, TokenBuckets(per_s, burst)
        self._max, self._max_per_address = max_pending, max_pending_per_address

    def why_not(self, host: str, now_s: float) -> str:
        """Return why a newcomer from this host is not even listened to; empty when it is."""
        return "" if self._rates.take(network_of(host), now_s) else f"more than {self._per_s:g} connections a second"

    def to_evict(self, host: str, pending: Sequence[P], now_s: float) -> tuple[P, str] | None:
        """Return who has to go before a newcomer from this host may stay, and why; None while there
        is room."""
        networks = Counter(network_of(p.address) for p in pending)
        own = [p for p in pending if network_of(p.address) == network_of(host)]
        if len(own) >= self._max_per_address:
            candidates, whose = own, "of its "
        elif len(pending) >= self._max:
            candidates, whose = list(pending), ""
        else:
            return None
        # One that hesitates, or else one from the network that has most of them, and of those the
        # oldest: an honest board speaks at once, and is through before an attacker with one machine
        # has made its connections the oldest.

        def order(p: P) -> tuple[bool, int, float]:
            hesitates = p.silent and now_s - p.since_s > _HESITATES_S
            return not hesitates, -networks[network_of(p.address)], p.since_s

        return min(candidates, key=order), f"{len(candidates)} {whose}connections have not finished the TLS handshake"


def host_of(address: str) -> str:
    """Return the host of host:port, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def endpoint(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> HostError:
    """Return the error that nobody can listen there, and why."""
    why = (error.strerror or str(error)).lower()
    cure = "choose another port (0 takes any free one), or an address that `ip address` shows"
    return HostError(f"cannot listen on {endpoint(host, port)}: {why}; {cure}")


def network_of(place: str) -> str:
    """Return what a place, HOST or HOST:PORT, counts as wherever somebody is limited by it: of what
    one machine may have many addresses, so the first 64 bits in IPv6 (RFC 4291, 2.5.4), and nothing
    less than all in IPv4."""
    head, colon, _ = place.rpartition(":")
    host = (head if colon and (":" not in head or head.endswith("]")) else place).strip("[]").partition("%")[0]
    try:
        address = socket.inet_pton(socket.AF_INET6, host)
    except (OSError, ValueError):  # IPv4, or no address at all
        return host
    if address.startswith(_IPV4_MAPPED):
        return socket.inet_ntoa(address[12:])
    return f"{socket.inet_ntop(socket.AF_INET6, address[:8] + bytes(8))}/64"
