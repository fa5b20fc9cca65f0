"""Which updates claim to be from so many examples that they would drown all others: a mean by examples is theirs alone. Knows
nothing of Flower; the coordinator and the drop-in ask the same question here.

Honest boards differ by a hundred times and are all taken. An update is refused that claims more than `RATIO` times as many as the
typical board of the run, which is the lower median of what each board claimed last. Of two boards the median is no help, for the
other may claim too few: there the larger claim is refused when it is beyond what one board has at all (`SINGLE`), too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

RATIO = 1000.0
SINGLE = 1e7  # Of two: no data set of one board has more, ImageNet has 1.3 million
ENOUGH = 3  # boards of which the median cannot be one liar's

Key = TypeVar("Key", bound=Hashable)


class Examples(Generic[Key]):
    """Judges round after round. `claimed`: what each board whose update was used claimed last; it belongs into checkpoints."""

    def __init__(self) -> None:
        self.claimed: dict[Key, float] = {}

    def refused(self, claims: Mapping[Key, float]) -> dict[Key, str]:
        """Who of those with these claims, all above 0, is refused, and why."""
        known = sorted({**self.claimed, **claims}.values())
        if len(known) < 2:
            return {}
        typical = known[(len(known) - 1) // 2]
        most = RATIO * typical if len(known) >= ENOUGH else max(SINGLE, RATIO * typical)
        return {
            key: f"the update claims to be from {claim:g} examples, {claim / typical:.3g} times as many as the typical one"
            for key, claim in claims.items()
            if claim > most
        }

    def used(self, claims: Mapping[Key, float]) -> None:
        """Updates with these claims are part of the model."""
        self.claimed.update(claims)
