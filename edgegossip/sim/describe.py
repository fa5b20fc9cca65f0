"""Frames in a few words, for traces."""

from __future__ import annotations

from edgegossip import frame as wire
from edgegossip.frame import Aux

IDS = frozenset({Aux.SESSION, Aux.INCARNATION, Aux.FRESH})  # random numbers and fingerprints: they name something
EXACT = 2.0**53  # whole numbers below it are exact in a float64


def describe(frame: wire.Frame) -> str:
    """Kind, round, number within its stream, size and what travels beside the body; ids in hexadecimal."""
    aux = "".join(f" {_name(tag)}={_value(tag, value)}" for tag, value in frame.aux.items())
    return f"{frame.kind.name.lower()} of round {frame.round}, number {frame.sequence}, {len(frame.body)} bytes{aux}"


def _name(tag: int) -> str:
    return next((a.name.lower() for a in Aux if a == tag), f"aux-{tag}")


def _value(tag: int, value: float) -> str:
    if not float(value).is_integer() or abs(value) >= EXACT:
        return f"{value:g}"
    return f"{int(value):x}" if tag in IDS else str(int(value))
