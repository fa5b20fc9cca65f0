"""Whether enough boards are left, and how long those that went away may take to come back. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgegossip.flower.roster import Roster
from edgegossip.types import NodeId, RunError


class Quorum:
    """`least` boards must be there. A board that fell silent may come back within `return_s`; one whose process is known to have
    ended does not."""

    def __init__(
        self, roster: Roster, least: int, return_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.least, self.return_s = least, return_s
        self._roster, self._now = roster, now
        self.lost: dict[NodeId, str] = {}  # boards that are down, and why
        self._ended: set[NodeId] = set()
        self._short_since: float | None = None

    def down(self, name: NodeId, reason: str, *, ended: bool = False) -> None:
        self.lost[name] = reason
        if ended:
            self._ended.add(name)

    def back(self, name: NodeId) -> None:
        self.lost.pop(name, None)
        self._ended.discard(name)

    @property
    def absent(self) -> list[NodeId]:
        """Boards that may come back."""
        return [name for name in self.lost if name not in self._ended]

    @property
    def short(self) -> bool:
        """Whether too few boards are there at this moment."""
        return len(self._roster.up()) < self.least

    def check(self, expected: int = 0) -> None:
        """`expected`: boards that have not been there yet, and may come. Raises RunError when it is hopeless, or has been waited
        for long enough."""
        up = len(self._roster.up())
        if up + expected >= self.least:
            self._short_since = None
            return
        now = self._now()
        self._short_since = now if self._short_since is None else self._short_since
        if up + expected + len(self.absent) >= self.least and now - self._short_since < self.return_s:
            return
        why = "; ".join(f"{name}: {reason}" for name, reason in self.lost.items())
        raise RunError(f"{up + expected} of the {self.least} boards that server.min_nodes asks for are left ({why})")
