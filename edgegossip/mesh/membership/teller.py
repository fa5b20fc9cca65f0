"""What a member knows, and how it gets about: the table, who has it already, and messages on their way out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from edgegossip.mesh.membership.messages import Message, Output, Ping, Send, View
from edgegossip.mesh.membership.settings import SwimSettings
from edgegossip.mesh.membership.table import Entry, digest_of, rows_of

_NEVER = float("inf")
_FORGET_S = 30.0  # an answer that comes later says nothing about the round trip


class Teller:
    """The part of a detector that tells. News goes to a few members at a time, until all are known to have it."""

    def __init__(self, members: int, me: int, random: Random, now_s: float, settings: SwimSettings) -> None:
        self.me, self.settings = me, settings
        self.table = [Entry() for _ in range(members)]
        self._random = random
        self._numbers = 0
        self._pings: dict[int, tuple[int, float]] = {}  # every direct ping that may be answered: target, when
        self._theirs: dict[int, int] = {}  # digest that each last told
        self._told: dict[int, int] = {}  # how often each was told the present news
        self._digest: int | None = None  # of the table, when it is needed
        self._spread_s = now_s  # when news is told next
        self._out: list[Output] = []

    def _put(self, member: int, entry: Entry, now_s: float) -> bool:
        """Whether that is news."""
        if entry == self.table[member]:
            return False
        self.table[member] = entry
        self._digest, self._told = None, {}
        self._spread_s = min(self._spread_s, now_s)
        return True

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def digest(self) -> int:
        if self._digest is None:
            self._digest = digest_of(self.table)
        return self._digest

    def _view(self, to: int) -> View:
        """Whoever is not here may come again as a process that knows nothing, whatever it said last."""
        has_it = self.table[to].here and self._theirs.get(to) == self.digest
        return View(self.digest, () if has_it else rows_of(self.table))

    def _send(self, to: int, message: Callable[[View], Message]) -> None:
        self._out.append(Send(to, message(self._view(to))))

    def _ping(self, to: int, now_s: float) -> int:
        number = self._next_number()
        self._pings[number] = (to, now_s)
        self._send(to, lambda view: Ping(number, view))
        return number

    def _spread(self, now_s: float) -> None:
        """Tell a few of those that are not known to have our news."""
        behind = [
            k
            for k, entry in enumerate(self.table)
            if entry.here
            and k != self.me
            and self._theirs.get(k) != self.digest
            and self._told.get(k, 0) < self.settings.spread_repeats
        ]
        for k in self._random.sample(behind, min(len(behind), self.settings.spread_to)):
            self._told[k] = self._told.get(k, 0) + 1
            self._ping(k, now_s)
        self._spread_s = now_s + self.settings.spread_s if behind else _NEVER

    def _forget_pings(self, now_s: float) -> None:
        oldest_s = now_s - _FORGET_S
        for number in [n for n, (_, sent_s) in self._pings.items() if sent_s < oldest_s]:
            del self._pings[number]

    def _take(self) -> list[Output]:
        out, self._out = self._out, []
        return out
