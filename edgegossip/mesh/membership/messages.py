"""What members tell each other, and what the detector asks of whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from edgegossip.mesh.membership.table import Entry, Rows


@dataclass(frozen=True, slots=True)
class View:
    """Rides on every message: the hash of the sender's table, and the table when the receiver is not known to have it."""

    digest: int
    rows: Rows = ()


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Answered by Ack at once."""

    number: int  # the sender's; comes back in the answer
    view: View


@dataclass(frozen=True, slots=True)
class PingFor:
    """Ask `target` for me. Answered by Ack when it answers, by Nack when it does not; either way the helper is there."""

    number: int
    target: int
    timeout_s: float  # of the helper's own ping
    view: View


@dataclass(frozen=True, slots=True)
class Ack:
    number: int
    view: View


@dataclass(frozen=True, slots=True)
class Nack:
    number: int
    view: View


Message: TypeAlias = Ping | PingFor | Ack | Nack


@dataclass(frozen=True, slots=True)
class Send:
    to: int  # place among the members
    message: Message


@dataclass(frozen=True, slots=True)
class Changed:
    """What is known of a member has changed. Never about ourselves."""

    member: int
    before: Entry
    after: Entry


@dataclass(frozen=True, slots=True)
class Objected:
    """Others had named us suspect or dead, and we said that we are here."""

    by: int  # who told us
    was: Entry


@dataclass(frozen=True, slots=True)
class Healed:
    """A split ends: this member had named us dead, and we it."""

    member: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """This process did not run for a while; its own waiting times begin anew."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rival:
    """Another process goes by our name, again and again."""

    address: str


Output: TypeAlias = Send | Changed | Objected | Healed | Stalled | Rival
