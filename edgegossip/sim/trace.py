"""What happened: a hash that tells two runs apart, and lines for people.

The hash covers every event (time, node, what, a checksum of what it carried), every model at the end of a round and every
state that a disk gave back: two runs with the same hash went through the same states."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import TypeAlias

from edgegossip.types import Vec

Say: TypeAlias = Callable[[str], None]

STEP, DELIVER, TICK, NOTICE, DONE, BOOT, CRASH, REFUSE, FAULT, ADOPT = range(10)


class Trace:
    """`say`: where lines go; None: nowhere, and callers leave making them alone."""

    def __init__(self, say: Say | None) -> None:
        self.say = say
        self.numbers = array("d")
        self._models = hashlib.blake2b(digest_size=8)

    def event(self, when: float, node: int, what: int, number: float = 0.0) -> None:
        self.numbers.extend((when, node, what, number))

    def model(self, x: Vec) -> None:
        self._models.update(memoryview(x))  # type: ignore[arg-type]

    def line(self, when: float, node: int | None, text: str) -> None:
        if self.say is not None:
            self.say(f"{when:9.3f}  {'-' if node is None else node:>2}  {text}")

    def digest(self) -> str:
        """16 hexadecimal digits."""
        whole = self._models.copy()
        whole.update(self.numbers.tobytes())
        return whole.hexdigest()

    @property
    def events(self) -> int:
        return len(self.numbers) // 4
