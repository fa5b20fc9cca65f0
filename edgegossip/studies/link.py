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

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

PREFIX = "link."  # of the keys of a study's case that are no recipe's
_DEFAULTS: Mapping[str, Any] = {"mbit": None, "every_s": 60.0, "latency_s": 0.01, "compute_s": 1.0}


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
        for key in settings:
            if key.removeprefix(PREFIX) not in _DEFAULTS:
                known = [PREFIX + name for name in _DEFAULTS]
                raise ConfigError(f"unknown key {key}{did_you_mean(key, known)} (there are: {', '.join(known)})")
        if not settings:
            return None
        if "link.mbit" not in settings:
            raise ConfigError(f"{min(settings)} needs link.mbit, a board's Mbit/s")
        values = {name: settings.get(PREFIX + name, default) for name, default in _DEFAULTS.items()}
        rates = values["mbit"] if isinstance(values["mbit"], (list, tuple)) else [values["mbit"]]
        if not rates or not all(_is_number(rate) and 0.0 < rate <= 1e6 for rate in rates):
            raise ConfigError(
                f"link.mbit = {values['mbit']!r} must be a number above 0, at most 1e6, or a list of them"
            )
        for name in ("every_s", "latency_s", "compute_s"):
            if not _is_number(values[name]) or not 0.0 <= values[name] <= 1e6:
                raise ConfigError(f"link.{name} = {values[name]!r} must be a number from 0 to 1e6")
        if not values["every_s"]:
            raise ConfigError("link.every_s = 0 must be above 0")
        return cls(
            tuple(float(rate) for rate in rates),
            float(values["every_s"]),
            float(values["latency_s"]),
            float(values["compute_s"]),
        )

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


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
