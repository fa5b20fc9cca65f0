"""Rates of links, as `tc` and people write them: 20mbit, 1.5mbit, 1gbit, 250kbit."""

from __future__ import annotations

import re

from edgegossip.types import ConfigError

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
LOWEST_BPS, HIGHEST_BPS = 8e3, 10e9


def parse_rate(text: str, option: str = "--rate") -> float:
    """Bits a second. Raises ConfigError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)bit(?:/s|ps)?\s*", text.lower())
    if found is None:
        raise ConfigError(f"{option} {text}: write it as a number and kbit, mbit or gbit, such as {option} 20mbit")
    rate_bps = float(found[1]) * _UNITS[found[2]]
    if not LOWEST_BPS <= rate_bps <= HIGHEST_BPS:
        nearest = "8kbit" if rate_bps < LOWEST_BPS else "10gbit"
        raise ConfigError(f"{option} {text}: a link has 8kbit to 10gbit; the nearest is {nearest}")
    return rate_bps


def rate_text(rate_bps: float) -> str:
    """ "20 Mbit/s"."""
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= factor:
            return f"{rate_bps / factor:g} {unit}"
    return f"{rate_bps:g} bit/s"
