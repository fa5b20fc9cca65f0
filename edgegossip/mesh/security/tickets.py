"""Tickets: who has knocked may come in once, soon. Pure: the caller passes monotonic seconds.

A ticket is the first label of the name that a caller asks for when it connects, so the door reads it in the clear and knows who
is to come. It proves nothing: whoever overhears one and is quicker still has to show the certificate that it was given to.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
VALID_S = 10.0
_MAX = 256


class Tickets(Generic[T]):
    """Each for one holder, once."""

    def __init__(self) -> None:
        self._given: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def give(self, holder: T, now_s: float) -> str:
        """32 hexadecimal digits."""
        ticket = secrets.token_hex(16)
        self._given[ticket] = (holder, now_s + VALID_S)
        if len(self._given) > _MAX:
            self._given.popitem(last=False)
        return ticket

    def take(self, ticket: str, now_s: float) -> T | None:
        """Its holder; None for one that was never given, is used or too old."""
        holder, until_s = self._given.pop(ticket, (None, 0.0))
        return holder if until_s > now_s else None

    def drop(self, which: Callable[[T], bool]) -> None:
        """Those of some holders are good no longer."""
        for ticket in [ticket for ticket, (holder, _) in self._given.items() if which(holder)]:
            del self._given[ticket]
