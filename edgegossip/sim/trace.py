"""What happened: a hash that tells two runs apart, and lines for people.

The hash covers every event (time, node, what, a checksum of what it carried), every model at the end of a round and every
state that a disk gave back: two runs with the same hash went through the same states."""

from __future__ import annotations

import hashlib
import marshal
import zlib
from collections.abc import Callable
from typing import TypeAlias

from edgegossip.frame import Frame
from edgegossip.types import Vec

PLAIN = 2  # marshal's form without references: equal events give equal bytes
Say: TypeAlias = Callable[[str], None]

STEP, DELIVER, TICK, NOTICE, DONE, BOOT, CRASH, REFUSE, FAULT, ADOPT, LEAVE = range(11)


def mark(frame: Frame) -> float:
    """A checksum of a message, the same on every machine."""
    numbers = frame.round + (frame.kind << 24) + (frame.sequence << 28)
    return float(zlib.crc32(frame.body, numbers & 0xFFFFFFFF) + sum(frame.aux.values()))


class Trace:
    """`say`: where lines go; None: nowhere, and callers leave making them alone."""

    def __init__(self, say: Say | None) -> None:
        self.say = say
        self._events: list[tuple[float, int, int, float]] = []
        self._models = hashlib.blake2b(digest_size=8)

    def event(self, when: float, node: int, what: int, number: float = 0.0) -> None:
        self._events.append((when, node, what, number))

    def model(self, x: Vec) -> None:
        self._models.update(memoryview(x))  # type: ignore[arg-type]

    def line(self, when: float, node: int | None, text: str) -> None:
        if self.say is not None:
            self.say(f"{when:9.3f}  {'-' if node is None else node:>2}  {text}")

    def digest(self) -> str:
        """16 hexadecimal digits."""
        whole = self._models.copy()
        whole.update(marshal.dumps(self._events, PLAIN))
        return whole.hexdigest()

    @property
    def events(self) -> int:
        return len(self._events)
