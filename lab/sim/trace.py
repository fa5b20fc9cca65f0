"""Records what happened: a hash that tells two runs apart, and lines for people.

The hash covers every event (time, node, what, a checksum of what it carried), every model at the
end of a round and every state that a disk gave back: two runs with the same hash went through the
same states."""

from __future__ import annotations

import hashlib
import marshal
import zlib
from collections.abc import Callable
from typing import TypeAlias

from edgegossip.frame import Aux, Frame
from edgegossip.types import Vec

IDS = frozenset(
    {Aux.SESSION, Aux.EPOCH, Aux.INCARNATION, Aux.FRESH}
)  # random numbers and fingerprints: they name something
EXACT = 2.0**53  # whole numbers below it are exact in a float64
PLAIN = 2  # marshal's form without references: equal events give equal bytes
Say: TypeAlias = Callable[[str], None]

STEP, DELIVER, TICK, NOTICE, DONE, BOOT, CRASH, REFUSE, FAULT, ADOPT, LEAVE = range(11)


def mark(frame: Frame) -> float:
    """Return a checksum of a message, the same on every machine."""
    numbers = frame.round + (frame.kind << 24) + (frame.sequence << 28)
    return float(zlib.crc32(frame.body, numbers & 0xFFFFFFFF) + sum(frame.aux.values()))


class Trace:
    """Records events for the hash, and lines for `say`; None: nowhere, and callers leave making
    them alone."""

    def __init__(self, say: Say | None) -> None:
        self.say = say
        self._events: list[tuple[float, int, int, float]] = []
        self._models = hashlib.blake2b(digest_size=8)

    def event(self, when: float, node: int, what: int, number: float = 0.0) -> None:
        """Add an event to the hash: when, at which node, what of the constants above, and a
        number of what it carried."""
        self._events.append((when, node, what, number))

    def model(self, x: Vec) -> None:
        """Add a model to the hash, float32[n]."""
        self._models.update(memoryview(x))  # type: ignore[arg-type]

    def line(self, when: float, node: int | None, text: str) -> None:
        """Hand a line to `say`: virtual seconds, the node or a dash, the text."""
        if self.say is not None:
            self.say(f"{when:9.3f}  {'-' if node is None else node:>2}  {text}")

    def digest(self) -> str:
        """Return 16 hexadecimal digits."""
        whole = self._models.copy()
        whole.update(marshal.dumps(self._events, PLAIN))
        return whole.hexdigest()

    @property
    def events(self) -> int:
        """Return how many events there were."""
        return len(self._events)


def describe(frame: Frame) -> str:
    """Return a frame in a few words: kind, round, number within its stream, size, and what travels
    beside the body; ids in hexadecimal."""
    aux = "".join(f" {_name(tag)}={_value(tag, value)}" for tag, value in frame.aux.items())
    return f"{frame.kind.name.lower()} of round {frame.round}, number {frame.sequence}, {len(frame.body)} bytes{aux}"


def _name(tag: int) -> str:
    return next((a.name.lower() for a in Aux if a == tag), f"aux-{tag}")


def _value(tag: int, value: float) -> str:
    if not float(value).is_integer() or abs(value) >= EXACT:
        return f"{value:g}"
    return f"{int(value):x}" if tag in IDS else str(int(value))
