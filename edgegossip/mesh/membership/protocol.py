"""What the members' protocol is made of: the table that they keep, the messages of the failure
detector, its times, and the two rules that stretch and shrink those. Pure.

*The table.* One entry a member. Of two entries about the same member the one with the higher
incarnation counts, and of two with the same the graver status. So merging is a join: order,
repetition and detours of messages make no difference, and two boards that heard the same hold the
same table, which a short hash tells. Only the member itself raises its incarnation.

Das, Gupta, Motivala, "SWIM: scalable weakly-consistent infection-style process group membership
protocol", 2002, section 4.2, orders messages this way; here whole tables travel (at most 64
members), so nothing is lost when a message is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b
from typing import TypeAlias

MAX_INCARNATION = 2**62
MAX_STEP = 2**16  # by so much may one message raise what is known of an incarnation
_ROW = struct.Struct("<BQQ")


class Status(IntEnum):
    """Says what a member is to the others, in order of gravity."""

    ABSENT = 0  # never seen
    ALIVE = 1
    SUSPECT = 2  # somebody got no answer; it can still refute that
    DEAD = 3
    LEFT = 4  # on purpose


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """Holds what is known of one member."""

    status: Status = Status.ABSENT
    incarnation: int = 0  # raised by the member itself when it comes back or refutes; 0: never seen
    session: int = 0  # 63 random bits, one for each process of the member
    address: str = ""  # host:port where it can be reached

    @property
    def here(self) -> bool:
        """Whether it counts as a part of the run now."""
        return self.status in (Status.ALIVE, Status.SUSPECT)


Rows: TypeAlias = tuple[tuple[int, MemberEntry], ...]  # (place among the members, entry)


def merge(a: MemberEntry, b: MemberEntry) -> MemberEntry:
    """Return the later of the two. Commutative, associative, idempotent."""
    if a == b:
        return a
    key_a, key_b = (a.incarnation, a.status), (b.incarnation, b.status)
    if key_a != key_b:
        return a if key_a > key_b else b
    # These differ for a moment after a hasty restart only.
    session, address = max((a.session, a.address), (b.session, b.address))
    return replace(a, session=session, address=address)


def bounded(told: MemberEntry, known: MemberEntry) -> MemberEntry:
    """Return what is believed of a row that came in. Members raise their incarnation by one
    whenever they come back or refute a suspicion, so a row that is far ahead of what is known is a
    lie or an echo of one: it counts as the most that is credible. Taken whole, one about somebody
    else that names `MAX_INCARNATION` could never be outdone. Not ignored either, or boards to which
    a liar told different numbers would never agree again: as it is, each message brings them nearer
    to each other."""
    most = min(known.incarnation + MAX_STEP, MAX_INCARNATION - 2)  # there is room to refute it
    return told if told.incarnation <= most else replace(told, incarnation=most)


def rows_of(table: Sequence[MemberEntry]) -> Rows:
    """Return everything worth telling of a table."""
    return tuple((k, entry) for k, entry in enumerate(table) if entry.status is not Status.ABSENT)


def digest_of(table: Sequence[MemberEntry]) -> int:
    """Return 64 bits that differ when the tables do."""
    hash = blake2b(digest_size=8)
    for entry in table:
        hash.update(_ROW.pack(entry.status, entry.incarnation, entry.session))
        hash.update(entry.address.encode() + b"\0")
    return int.from_bytes(hash.digest(), "little")


# -- messages, and what the detector says to whoever drives it


@dataclass(frozen=True, slots=True)
class View:
    """Rides on every message (SWIM's piggybacking): the hash of the sender's table, and the table
    when the receiver is not known to have it."""

    digest: int
    rows: Rows = ()


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks a member whether it is there. Answered by Ack at once."""

    number: int  # the sender's; comes back in the answer
    view: View


@dataclass(frozen=True, slots=True)
class PingReq:
    """Asks a helper to probe `target` (SWIM's indirect probe). Answered by Ack when the target
    answers, by Nack when it does not; either way the helper is there."""

    number: int
    target: int
    timeout_s: float  # of the helper's own ping
    view: View


@dataclass(frozen=True, slots=True)
class Ack:
    """Answers a Ping, or a PingReq whose target is there."""

    number: int
    view: View


@dataclass(frozen=True, slots=True)
class Nack:
    """Answers a PingReq whose target did not answer in time (Lifeguard, section IV-A)."""

    number: int
    view: View


Message: TypeAlias = Ping | PingReq | Ack | Nack


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Asks whoever drives the detector to send a message."""

    to: int  # place among the members
    message: Message


@dataclass(frozen=True, slots=True)
class Changed:
    """Says that what is known of a member has changed. Never about ourselves."""

    member: int
    before: MemberEntry
    after: MemberEntry
    asked: bool = False  # whether our own probe of it failed; else others say so
    revoked: bool = False  # whether we took its right from it


@dataclass(frozen=True, slots=True)
class Refuted:
    """Says that others had named us suspect or dead, and that we refuted it."""

    by: int  # who told us
    was: MemberEntry


@dataclass(frozen=True, slots=True)
class Stalled:
    """Says that this process did not run for a while; its own waiting times begin anew."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rival:
    """Says that another process goes by our name, again and again."""

    address: str


Output: TypeAlias = SendMessage | Changed | Refuted | Stalled | Rival

# -- times


@dataclass(frozen=True, slots=True)
class SwimSettings:
    """Holds the numbers of the failure detector, the same for every member of a run. Times are
    seconds.

    With the defaults a member that stops answering is named by all within 10 s, at 18 members with
    seconds to spare and at 64 with one."""

    interval_s: float = 2.0  # between two probes that a member makes while anybody is suspect; then divided by `haste`
    watchers: int = 2  # in quiet times a member is watched by so many others
    quiet_s: float = 3.0  # in quiet times two that watch each other hear of each other at least so often
    haste: float = 6.0  # while anybody is suspect, probes follow each other so many times faster
    timeout_s: float = 0.8  # of a direct probe, until round trips have been measured
    timeout_min_s: float = 0.4
    timeout_max_s: float = 1.5
    indirect: int = 3  # members that are asked to probe for us
    share_s: float = 0.2  # who asks us about the same member within this time shares one ping of ours
    # A suspect has at least so long to refute it; times log10 of the members when those are more
    # than 10.
    suspicion_s: float = 2.5
    suspicion_factor: float = 1.6  # until our own probe fails, too: so many times longer
    spread_s: float = 0.2  # between two rounds of telling news
    spread_to: int = 3  # members that are told in one round
    spread_repeats: int = 4  # so often is one member told the same news without a sign that it has them
    retry_s: float = 3.0  # between two tries of a dead member, so that halves of a split find each other
    left_s: float = 60.0  # the longest pause between two tries of a member that left
    stall_s: float = 1.0  # a clock that goes on without us by more than this: we were asleep, not the others
    usual_s: float = 0.25  # round trips and delays up to this are usual; suspicions last longer in proportion beyond it
    slowest: float = 4.0  # but not more than so many times
    # What was measured longer ago says nothing of the present; quiet members measure every
    # `quiet_s`.
    recent_s: float = 15.0
    health_max: int = 3  # own times are stretched by at most this and one; Lifeguard has 8, which names a split late

    def suspicion_time_s(self, members: int, asked: bool) -> float:
        """Return how long a suspect may take to refute it: the longest time until our own probe of
        it failed, then the shortest. What others say shortens nothing, for one that lies can speak
        for many. Of two members nobody else can say anything."""
        shortest_s = self.suspicion_s * max(1.0, math.log10(members))
        return shortest_s if asked or members < 3 else shortest_s * self.suspicion_factor


class LocalHealth:
    """Keeps Lifeguard's local health multiplier: signs that we ourselves are slow stretch our own
    times (section IV-A)."""

    __slots__ = ("_highest", "score")

    def __init__(self, highest: int) -> None:
        self.score, self._highest = 0, highest

    def note(self, change: int) -> None:
        """Count a sign that we are slow (1), or that we are not (-1)."""
        self.score = min(self._highest, max(0, self.score + change))

    @property
    def factor(self) -> int:
        """By how much our own times are stretched."""
        return 1 + self.score


class Delay:
    """Keeps the smoothed delay and deviation (RFC 6298, section 2) of what was measured lately: a
    slow link gets the time it needs, and a slow start is forgotten. Shorter ones count at once more
    than longer ones, or a few members that ask each other every few seconds would take a minute to
    notice that the rush is over."""

    __slots__ = ("_at_s", "_deviation_s", "_mean_s", "_settings")

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._mean_s = self._deviation_s = 0.0
        self._at_s = -math.inf

    def note(self, took_s: float, now_s: float) -> None:
        """Take in one measurement."""
        if not self.known(now_s):
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / (8 if took_s > self._mean_s else 4)
        self._at_s = now_s

    def known(self, now_s: float) -> bool:
        """Return whether it was measured lately."""
        return now_s - self._at_s <= self._settings.recent_s

    def mean_s(self, now_s: float) -> float:
        """Return the smoothed delay; 0 when it is not known."""
        return self._mean_s if self.known(now_s) else 0.0

    def timeout_s(self, now_s: float) -> float:
        """Return how long to wait for an answer. What was measured long ago makes it shorter than
        usual, but not longer."""
        if self._at_s == -math.inf:
            return self._settings.timeout_s
        longest_s = self._settings.timeout_max_s if self.known(now_s) else self._settings.timeout_s
        return min(longest_s, max(self._settings.timeout_min_s, self._mean_s + 4 * self._deviation_s))
