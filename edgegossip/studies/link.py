"""The links of a study's boards: how long a message takes them, in virtual seconds.

Every board has one way out, over which its messages go one after the other, so its neighbours share
it; each takes `link.latency_s` besides, and so does the acknowledgement. With several rates each
holds for `link.every_s`, in turn and for all boards alike. A local update takes `link.compute_s`.
Without these keys messages take a moment, whatever their size: bytes are what a study counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgegossip.options import REQUIRED, filled, option
from edgegossip.types import ConfigError

PREFIX = "link."  # of the keys of a study's case that are no recipe's


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Says what every board's way out is like."""

    mbit: tuple[float, ...] = option(REQUIRED, "Mbit/s; several hold in turn", low=1e-9, high=1e6)
    every_s: float = option(60.0, "how long each of several holds", low=1e-3, high=1e6)
    latency_s: float = option(0.01, "of a message, and of what acknowledges it", low=0.0, high=1e6)
    compute_s: float = option(1.0, "what a local update takes", low=0.0, high=1e6)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> LinkModel | None:
        """Read the keys link.mbit (a number, or a list of them), link.every_s, link.latency_s and
        link.compute_s; None without. Raises ConfigError."""
        if not settings:
            return None
        mbit = settings.get("mbit")
        if mbit == []:
            raise ConfigError("link.mbit = []: say a number of Mbit/s, or a list of them")
        several = {} if mbit is None else {"mbit": mbit if isinstance(mbit, (list, tuple)) else [mbit]}
        return filled(cls, {**settings, **several}, PREFIX)

    def through_s(self, start_s: float, size_bytes: int) -> float:
        """Return when the last of so many bytes is on its way, whose first is at `start_s`."""
        now_s, left = start_s, float(size_bytes)
        while True:
            turn = math.floor(now_s / self.every_s + 1e-9)
            speed = self.mbit[turn % len(self.mbit)] * 1e6 / 8
            until_s = (turn + 1) * self.every_s if len(self.mbit) > 1 else math.inf
            if left <= speed * (until_s - now_s):
                return now_s + left / speed
            left -= speed * (until_s - now_s)
            now_s = until_s
