"""Times and numbers of the failure detector, and the two rules that stretch and shrink them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from edgegossip.types import ConfigError


@dataclass(frozen=True, slots=True)
class SwimSettings:
    """Every member of a run uses the same. Times are seconds.

    With the defaults a member that stops answering is named by all within 10 s, at 18 members with
    seconds to spare and at 64 with one."""

    interval_s: float = 2.0  # between two probes that a member makes while anybody is suspect; then divided by `haste`
    watchers: int = 2  # in quiet times a member is watched by so many others
    quiet_s: float = 3.0  # in quiet times two that watch each other hear of each other at least so often
    haste: float = 6.0  # while anybody is suspect, probes follow each other so many times faster
    timeout_s: float = 0.8  # of a direct probe, until round trips have been measured
    timeout_min_s: float = 0.4
    timeout_max_s: float = 1.5
    indirect: int = 3  # members that are asked to probe for us
    share_s: float = 0.2  # who asks us about the same member within this time shares one ping of ours
    # A suspect has at least so long to object; times log10 of the members when those are more than
    # 10.
    suspicion_s: float = 2.5
    suspicion_factor: float = 1.6  # nobody confirms: so many times longer
    confirmations: int = 3  # further accusers that make the time the shortest
    spread_s: float = 0.2  # between two rounds of telling news
    spread_to: int = 3  # members that are told in one round
    spread_repeats: int = 4  # so often is one member told the same news without a sign that it has them
    retry_s: float = 3.0  # between two tries of a dead member, so that halves of a split find each other
    left_s: float = 60.0  # the longest pause between two tries of a member that left
    stall_s: float = 1.0  # a clock that goes on without us by more than this: we were asleep, not the others
    usual_s: float = 0.25  # round trips and delays up to this are usual; suspicions last longer in proportion beyond it
    slowest: float = 4.0  # but not more than so many times
    # What was measured longer ago says nothing of the present; quiet members measure every
    # `quiet_s`.
    recent_s: float = 15.0
    health_max: int = 3  # own times are stretched by at most this and one; Lifeguard has 8, which names a split late

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0:
                raise ConfigError(f"membership setting {f.name} = {getattr(self, f.name)} must be greater than 0")

    def suspicion_time_s(self, members: int, accusers: int) -> float:
        """How long a suspect may take to object: from the longest time down to the shortest, with
        the logarithm of the independent confirmations (Dadgar, Phillips, Currey, "Lifeguard: local
        health awareness for more accurate failure detection", 2018, section IV-B). In a fleet too
        small for confirmations the shortest at once."""
        shortest_s = self.suspicion_s * max(1.0, math.log10(members))
        wanted = min(self.confirmations, members - 2)
        if wanted < 1 or accusers > wanted:
            return shortest_s
        longest_s = shortest_s * self.suspicion_factor
        share = math.log(max(1, accusers)) / math.log(wanted + 1)  # confirmations + 1 = accusers
        return max(shortest_s, longest_s - (longest_s - shortest_s) * share)


class LocalHealth:
    """Lifeguard's local health multiplier: signs that we ourselves are slow stretch our own times
    (section IV-A)."""

    __slots__ = ("_highest", "score")

    def __init__(self, highest: int) -> None:
        self.score, self._highest = 0, highest

    def note(self, change: int) -> None:
        self.score = min(self._highest, max(0, self.score + change))

    @property
    def factor(self) -> int:
        return 1 + self.score


class Delay:
    """Smoothed delay and deviation (RFC 6298, section 2) of what was measured lately: a slow link
    gets the time it needs, and a slow start is forgotten. Shorter ones count at once more than
    longer ones, or a few members that ask each other every few seconds would take a minute to
    notice that the rush is over."""

    __slots__ = ("_at_s", "_deviation_s", "_mean_s", "_settings")

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._mean_s = self._deviation_s = 0.0
        self._at_s = -math.inf

    def note(self, took_s: float, now_s: float) -> None:
        if not self.known(now_s):
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / (8 if took_s > self._mean_s else 4)
        self._at_s = now_s

    def known(self, now_s: float) -> bool:
        """Whether it was measured lately."""
        return now_s - self._at_s <= self._settings.recent_s

    def mean_s(self, now_s: float) -> float:
        """0 when it is not known."""
        return self._mean_s if self.known(now_s) else 0.0

    def timeout_s(self, now_s: float) -> float:
        """For an answer. What was measured long ago makes it shorter than usual, but not longer."""
        if self._at_s == -math.inf:
            return self._settings.timeout_s
        longest_s = self._settings.timeout_max_s if self.known(now_s) else self._settings.timeout_s
        return min(longest_s, max(self._settings.timeout_min_s, self._mean_s + 4 * self._deviation_s))
