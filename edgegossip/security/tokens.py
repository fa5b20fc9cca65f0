"""One-time tokens: who was admitted may connect once, soon. Pure: the caller passes monotonic
seconds.

A token is the first label of the server name that a caller asks for when it connects, so the TLS
front end reads it in the clear and knows who is to come. It proves nothing: whoever overhears one
and is quicker still has to show the certificate that it was issued to.

Each certificate has a few of its own: one that asks without end drops its own tokens and nobody
else's. That bounds memory too, since only an authority makes certificates and nothing outlives
`VALID_S`."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
VALID_S = 10.0
EACH = 4  # as many as a board keeps of one peer's


class OneTimeTokens(Generic[T]):
    """Issues tokens, each for one holder, once. `owner` tells whose certificate a holder shows: of
    each the newest `EACH` are good."""

    def __init__(self, owner: Callable[[T], Hashable]) -> None:
        self._owner = owner
        self._issued: OrderedDict[str, tuple[T, float]] = OrderedDict()  # the oldest first
        self._owned: dict[Hashable, list[str]] = {}  # their tokens, the oldest first; none for who has none

    def __len__(self) -> int:
        return len(self._issued)

    def __contains__(self, token: str) -> bool:
        """Return whether it was issued and not used; it may be too old."""
        return token in self._issued

    def issue(self, holder: T, now_s: float) -> str:
        """Issue a new token: 32 hexadecimal digits."""
        self._forget_old(now_s)
        token = secrets.token_hex(16)
        self._issued[token] = (holder, now_s + VALID_S)
        own = self._owned.setdefault(self._owner(holder), [])
        own.append(token)
        if len(own) > EACH:
            self._remove(own[0])
        return token

    def redeem(self, token: str, now_s: float) -> T | None:
        """Return its holder; None for one that was never issued, is used or too old."""
        self._forget_old(now_s)
        return self._remove(token) if token in self._issued else None

    def revoke(self, which: Callable[[T], bool]) -> None:
        """Take back the tokens of some holders."""
        for token in [token for token, (holder, _) in self._issued.items() if which(holder)]:
            self._remove(token)

    def _forget_old(self, now_s: float) -> None:
        while self._issued:
            token, (_, until_s) = next(iter(self._issued.items()))
            if until_s > now_s:
                return
            self._remove(token)

    def _remove(self, token: str) -> T:
        holder, _ = self._issued.pop(token)
        owner = self._owner(holder)
        self._owned[owner].remove(token)
        if not self._owned[owner]:
            del self._owned[owner]
        return holder
