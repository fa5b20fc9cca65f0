"""Probes under way: our own, and those that we make for others."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgegossip.mesh.membership.messages import Ack, Nack


@dataclass(slots=True)
class Probe:
    """One question whether a member is there, first asked directly, then through others."""

    target: int
    number: int  # of the direct ping
    direct_until_s: float
    timeout_s: float  # of the direct ping
    until_s: float = 0.0  # end of the indirect part; 0 until it has begun
    helpers: set[int] = field(default_factory=set)  # who have not said anything yet
    refused: bool = False  # the direct ping failed outright
    asked: int = 0  # helpers

    @property
    def due_s(self) -> float:
        return self.until_s or self.direct_until_s

    def shift(self, by_s: float) -> None:
        self.direct_until_s += by_s
        self.until_s += by_s if self.until_s else 0.0


@dataclass(frozen=True, slots=True)
class Errand:
    """Somebody else wants to know whether a member answers us."""

    requester: int
    number: int  # the requester's
    until_s: float  # then a Nack is due


@dataclass(slots=True)
class Favour:
    """The ping that we made for errands to one member: whoever asks within a moment shares it, so that nobody can make us ask
    a third one so often that it takes us for a nuisance."""

    number: int
    sent_s: float
    outcome: type[Ack | Nack] | None = None
