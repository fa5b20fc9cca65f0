"""The links of a study's boards: how long a message takes them, in virtual seconds.

Every board has one way out, over which its messages go one after the other, so its neighbours share
it; each takes `link.latency_s` besides, and so does the acknowledgement. With several rates each
holds for `link.every_s`, in turn and for all boards alike. A local update takes `link.compute_s`.
Without these keys messages take a moment, whatever their size: bytes are what a study counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

PREFIX = "link."  # of the keys of a study's case that are no recipe's
_RANGES: Mapping[str, tuple[float, float, float]] = {  # default, least, most
    "every_s": (60.0, 1e-3, 1e6),
    "latency_s": (0.01, 0.0, 1e6),
    "compute_s": (1.0, 0.0, 1e6),
}


def check_keys(settings: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ConfigError for a key that is not one of these."""
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown key {key}{did_you_mean(key, known)} (there are: {', '.join(known)})")


def numbers(
    settings: Mapping[str, Any], prefix: str, ranges: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """Return the settings of these names, or their defaults. Raises ConfigError for one that is no
    number from its least to its most."""
    values: dict[str, float] = {}
    for name, (default, least, most) in ranges.items():
        value = settings.get(prefix + name, default)
        if type(value) not in (int, float) or not least <= value <= most:
            raise ConfigError(f"{prefix}{name} = {value!r} must be a number from {least:g} to {most:g}")
        values[name] = float(value)
    return values


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Says what every board's way out is like."""

    mbit: tuple[float, ...]
    every_s: float
    latency_s: float
    compute_s: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> LinkModel | None:
        """Read the keys link.mbit (a number of Mbit/s, or a list of them), link.every_s,
        link.latency_s and link.compute_s; None without. Raises ConfigError."""
        check_keys(settings, [PREFIX + name for name in ("mbit", *_RANGES)])
        if not settings:
            return None
        if "link.mbit" not in settings:
            raise ConfigError(f"{min(settings)} needs link.mbit, a board's Mbit/s")
        mbit = settings["link.mbit"]
        rates = mbit if isinstance(mbit, (list, tuple)) else [mbit]
        if not rates or not all(type(rate) in (int, float) and 0.0 < rate <= 1e6 for rate in rates):
            raise ConfigError(f"link.mbit = {mbit!r} must be a number above 0, at most 1e6, or a list of them")
        return cls(tuple(map(float, rates)), **numbers(settings, PREFIX, _RANGES))

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
