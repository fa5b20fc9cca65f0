"""Tickets: who has knocked may come in once, soon. Pure: the caller passes monotonic seconds.

A ticket is the first label of the name that a caller asks for when it connects, so the door reads it in the clear and knows who
is to come. It proves nothing: whoever overhears one and is quicker still has to show the certificate that it was given to.

Each certificate has a few of its own: one that knocks without end drops its own tickets and nobody else's. That bounds memory
too, since only an authority makes certificates and nothing outlives `VALID_S`.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
VALID_S = 10.0
EACH = 4  # as many as a board keeps of one peer's


class Tickets(Generic[T]):
    """Each for one holder, once. `owner` tells whose certificate a holder shows: of each the newest `EACH` are good."""

    def __init__(self, owner: Callable[[T], Hashable]) -> None:
        self._owner = owner
        self._given: OrderedDict[str, tuple[T, float]] = OrderedDict()  # the oldest first
        self._owned: dict[Hashable, list[str]] = {}  # their tickets, the oldest first

    def __len__(self) -> int:
        return len(self._given)

    def give(self, holder: T, now_s: float) -> str:
        """32 hexadecimal digits."""
        self._forget_old(now_s)
        ticket = secrets.token_hex(16)
        self._given[ticket] = (holder, now_s + VALID_S)
        own = self._owned.setdefault(self._owner(holder), [])
        own.append(ticket)
        if len(own) > EACH:
            self._remove(own[0])
        return ticket

    def take(self, ticket: str, now_s: float) -> T | None:
        """Its holder; None for one that was never given, is used or too old."""
        self._forget_old(now_s)
        return self._remove(ticket) if ticket in self._given else None

    def drop(self, which: Callable[[T], bool]) -> None:
        """Those of some holders are good no longer."""
        for ticket in [ticket for ticket, (holder, _) in self._given.items() if which(holder)]:
            self._remove(ticket)

    def _forget_old(self, now_s: float) -> None:
        while self._given:
            ticket, (_, until_s) = next(iter(self._given.items()))
            if until_s > now_s:
                return
            self._remove(ticket)

    def _remove(self, ticket: str) -> T:
        holder, _ = self._given.pop(ticket)
        owner = self._owner(holder)
        self._owned[owner].remove(ticket)
        if not self._owned[owner]:
            del self._owned[owner]
        return holder
