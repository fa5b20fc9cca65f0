"""Times and numbers of the failure detector, and the two rules that stretch and shrink them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from edgegossip.types import ConfigError


@dataclass(frozen=True, slots=True)
class SwimSettings:
    """Every member of a run uses the same. Times are seconds.

    With the defaults a member that stops answering is named by all within 10 s, at up to 64 members."""

    interval_s: float = 2.0  # between two probes that a member makes while anybody is suspect; then divided by `haste`
    watchers: int = 2  # in quiet times a member is watched by so many others
    quiet_s: float = 3.0  # in quiet times two that watch each other hear of each other at least so often
    haste: float = 6.0  # while anybody is suspect, probes follow each other so many times faster
    timeout_s: float = 1.0  # of a direct probe, until round trips have been measured
    timeout_min_s: float = 0.4
    timeout_max_s: float = 1.5
    indirect: int = 3  # members that are asked to probe for us
    errand_s: float = 0.2  # who asks us about the same member within this time shares one ping of ours
    suspicion_s: float = (
        2.5  # a suspect has at least so long to object; times log10 of the members when those are more than 10
    )
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
    health_max: int = 3  # own times are stretched by at most this and one; Lifeguard has 8, which names a split late

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0:
                raise ConfigError(f"membership setting {f.name} = {getattr(self, f.name)} must be greater than 0")

    def suspicion_time_s(self, members: int, accusers: int) -> float:
        """How long a suspect may take to object: from the longest time down to the shortest, with the logarithm of the
        independent confirmations (Dadgar, Phillips, Currey, "Lifeguard: local health awareness for more accurate failure
        detection", 2018, section IV-B). In a fleet too small for confirmations the shortest at once."""
        shortest_s = self.suspicion_s * max(1.0, math.log10(members))
        wanted = min(self.confirmations, members - 2)
        if wanted < 1 or accusers > wanted:
            return shortest_s
        longest_s = shortest_s * self.suspicion_factor
        share = math.log(max(1, accusers)) / math.log(wanted + 1)  # confirmations + 1 = accusers
        return max(shortest_s, longest_s - (longest_s - shortest_s) * share)


class LocalHealth:
    """Lifeguard's local health multiplier: signs that we ourselves are slow stretch our own times (section IV-A)."""

    __slots__ = ("_highest", "score")

    def __init__(self, highest: int) -> None:
        self.score, self._highest = 0, highest

    def note(self, change: int) -> None:
        self.score = min(self._highest, max(0, self.score + change))

    @property
    def factor(self) -> int:
        return 1 + self.score


class RoundTrip:
    """Smoothed round trip and deviation of one peer (RFC 6298, section 2): a slow link gets the time it needs."""

    __slots__ = ("_deviation_s", "_mean_s", "_settings")

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._mean_s = self._deviation_s = -1.0

    def note(self, took_s: float) -> None:
        if self._mean_s < 0:
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / 8

    @property
    def mean_s(self) -> float:
        """Less than 0: not measured yet."""
        return self._mean_s

    @property
    def timeout_s(self) -> float:
        if self._mean_s < 0:
            return self._settings.timeout_s
        wanted_s = self._mean_s + 4 * self._deviation_s
        return min(self._settings.timeout_max_s, max(self._settings.timeout_min_s, wanted_s))
