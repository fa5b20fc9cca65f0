"""How long somebody has been waiting, and when to say so again."""

from __future__ import annotations

import time

ANNOUNCE_S = 5.0  # whoever waits says for whom, this often


class Watch:
    """How long ago it was made."""

    def __init__(self) -> None:
        self._start, self._told_s = time.monotonic(), 0.0

    @property
    def s(self) -> float:
        return time.monotonic() - self._start

    def due(self) -> bool:
        """Whether it is time to say for whom one waits: every ANNOUNCE_S."""
        if self.s - self._told_s < ANNOUNCE_S:
            return False
        self._told_s = self.s
        return True
