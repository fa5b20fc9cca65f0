"""What a board knows of the members, as a table that any two boards can merge.

One entry a member. Of two entries about the same member the one with the higher incarnation counts,
and of two with the same the graver status; equal ones pool their accusers. So merging is a join:
order, repetition and detours of messages make no difference, and two boards that heard the same
hold the same table, which a short hash tells. Only the member itself raises its incarnation.

Das, Gupta, Motivala, "SWIM: scalable weakly-consistent infection-style process group membership
protocol", 2002, section 4.2, orders messages this way; here whole tables travel (at most 64
members), so nothing is lost when a message is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b
from typing import TypeAlias

MAX_INCARNATION = 2**62
MAX_STEP = 2**16  # by so much may one message raise what is known of an incarnation
_ROW = struct.Struct("<BQQQ")


class Status(IntEnum):
    """In order of gravity."""

    ABSENT = 0  # never seen
    ALIVE = 1
    SUSPECT = 2  # somebody got no answer; it can still object
    DEAD = 3
    LEFT = 4  # on purpose


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one member."""

    status: Status = Status.ABSENT
    incarnation: int = 0  # raised by the member itself when it comes back or objects; 0: never seen
    session: int = 0  # 63 random bits, one for each process of the member
    address: str = ""  # host:port where it can be reached
    accusers: int = 0  # bit k: member k got no answer. SUSPECT and DEAD only

    @property
    def here(self) -> bool:
        """Whether it counts as a part of the run now."""
        return self.status in (Status.ALIVE, Status.SUSPECT)

    def accused_by(self, index: int) -> Entry:
        """Suspected by one member more."""
        return replace(self, status=Status.SUSPECT, accusers=self.accusers | 1 << index)


Rows: TypeAlias = tuple[tuple[int, Entry], ...]  # (place among the members, entry)


def merge(a: Entry, b: Entry) -> Entry:
    """The later of the two. Commutative, associative, idempotent."""
    if a == b:
        return a
    key_a, key_b = (a.incarnation, a.status), (b.incarnation, b.status)
    if key_a != key_b:
        return a if key_a > key_b else b
    session, address = max(
        (a.session, a.address), (b.session, b.address)
    )  # differ for a moment after a hasty restart only
    return replace(a, session=session, address=address, accusers=a.accusers | b.accusers)


def bounded(told: Entry, known: Entry) -> Entry:
    """What is believed of a row that came in. Members raise their incarnation by one whenever they
    come back or object, so a row that is far ahead of what is known is a lie or an echo of one: it
    counts as the most that is credible. Taken whole, one about somebody else that names
    `MAX_INCARNATION` could never be outdone. Not ignored either, or boards to which a liar told
    different numbers would never agree again: as it is, each message brings them nearer to each
    other."""
    most = min(known.incarnation + MAX_STEP, MAX_INCARNATION - 2)  # there is room for an objection
    return told if told.incarnation <= most else replace(told, incarnation=most)


def rows_of(table: Sequence[Entry]) -> Rows:
    """Everything worth telling."""
    return tuple((k, entry) for k, entry in enumerate(table) if entry.status is not Status.ABSENT)


def digest_of(table: Sequence[Entry]) -> int:
    """64 bits that differ when the tables do."""
    hash = blake2b(digest_size=8)
    for entry in table:
        hash.update(_ROW.pack(entry.status, entry.incarnation, entry.session, entry.accusers))
        hash.update(entry.address.encode() + b"\0")
    return int.from_bytes(hash.digest(), "little")


def bits(mask: int) -> Iterable[int]:
    """Places of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
