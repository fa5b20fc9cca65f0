"""Probes under way: our own, and those that we make for others."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Probe:
    """One question whether a member is there, first asked directly, then through others."""

    target: int
    number: int  # of the direct ping
    began_s: float
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
        self.began_s += by_s
        self.direct_until_s += by_s
        self.until_s += by_s if self.until_s else 0.0


@dataclass(slots=True)
class Errand:
    """A ping that we make for somebody else."""

    requester: int
    number: int  # the requester's
    until_s: float  # then a Nack is due
