"""How often strangers may come, and how often a log may say so. Pure: the caller passes monotonic seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum

_MAX_KEYS = 1024  # memory that strangers with many addresses may take; the ones unseen for longest are forgotten


class Buckets:
    """A token bucket for each key: `burst` at once, `rate` a second in the long run."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._state: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens, when

    def take(self, key: Hashable, now_s: float, tokens: float = 1.0) -> bool:
        """Whether `key` may go on; takes nothing when it may not."""
        left, then_s = self._state.pop(key, (self._burst, now_s))
        left = min(self._burst, left + (now_s - then_s) * self._rate)
        allowed = left >= tokens
        self._state[key] = (left - tokens if allowed else left, now_s)
        if len(self._state) > _MAX_KEYS:
            self._state.popitem(last=False)
        return allowed


class Manner(Enum):
    """How somebody asks."""

    FINE = 0
    TOO_OFTEN = 1  # to be refused
    INSISTS = 2  # and went on in spite of many refusals: nobody who works as it should does


class Questions:
    """How often each may ask. Being refused is no misbehaviour yet: others may make an honest board ask too often."""

    def __init__(self, rate: float, burst: float, insists: float = 100.0) -> None:
        self._asked, self._refused = Buckets(rate, burst), Buckets(rate, insists)

    def take(self, key: Hashable, now_s: float, tokens: float = 1.0) -> Manner:
        """What to think of one question more of `key`."""
        if self._asked.take(key, now_s, tokens):
            return Manner.FINE
        return Manner.TOO_OFTEN if self._refused.take(key, now_s) else Manner.INSISTS


class Teller:
    """Says which lines are worth a log: the same one at most once every `quiet_s`, few altogether, and a quarter of those from
    one source, so that a flood of refusals does not become a flood of lines, nor hides what others are refused for."""

    def __init__(self, quiet_s: float = 60.0, per_s: float = 1.0, burst: float = 64.0) -> None:
        self._same, self._all = Buckets(1 / quiet_s, 1.0), Buckets(per_s, burst)
        self._one = Buckets(per_s / 4, burst / 4)

    def worth(self, key: Hashable, now_s: float, source: Hashable = None) -> bool:
        """Whether to tell what `key` stands for. It is to hold what makes the line another one, and nothing else: no port for
        example. `source`: who brings it about, as far as that can be told."""
        if not self._same.take(key, now_s):
            return False
        return (source is None or self._one.take(source, now_s)) and self._all.take("", now_s)
