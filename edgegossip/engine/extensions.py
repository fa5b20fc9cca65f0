"""Says how often a round may wait beyond its deadline for what is still on its way in. Pure.

Where links are slow for all, waiting is right: nobody would ever be in time. Where at least half of
the others were in time, it is for one sender, who may be on a slow link, or may send byte by byte
for as long as it is let. One round waits for it, for one deadline more, and then one each time
twice as many have gone by: over R rounds it costs 1 + log2(R) deadlines, whatever it does.

Where there is one sender only, nothing tells a slow link from a liar. In a fleet of three and more
it is waited for, but on the average for one deadline more a round: over R rounds it costs R + 8."""

from __future__ import annotations

from dataclasses import dataclass

FREE = 1  # rounds
FEW, MOST = 2, 10  # deadlines that a round waits at most, for few of those that send and where links are slow for all


@dataclass(slots=True)
class Extensions:
    """Keeps count of them for one board or coordinator.

    Example:
        >>> extensions = Extensions()
        >>> extensions.begin()  # a round
        >>> extensions.allow(most_are_here=True)
        True
    """

    used: int = 0  # rounds that waited for few
    since: int = 0  # rounds since the last of them
    extended: bool = False  # whether the present one does
    saved: float = MOST - 2.0  # deadlines that may be waited for one that is alone

    def begin(self) -> None:
        """Take note that a round begins."""
        self.since, self.extended = self.since + 1, False

    def allow(self, most_are_here: bool) -> bool:
        """Tell whether the round may wait; `most_are_here`: half of the others were in time."""
        if most_are_here and not self.extended:
            if self.used >= FREE and self.since <= 1 << (self.used - FREE):
                return False
            self.used, self.since, self.extended = self.used + 1, 0, True
        return True

    def afford(self, deadlines: float) -> bool:
        """Tell whether the round may wait so much longer for one that is alone."""
        if not self.extended:
            self.extended, self.saved = True, min(self.saved + 1.0, MOST - 1.0)
        self.saved -= deadlines if (can := self.saved >= deadlines) else 0.0
        return can
