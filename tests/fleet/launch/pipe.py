"""What a board says to its parent, in a process that loads nothing of ours: a tenth of the time."""

from __future__ import annotations

import json
import os


class PipeSink:
    """As edgegossip.telemetry.sinks has it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def event(self, node: str, name: str, text: str, **fields: object) -> None:
        self._say({"node": node, "t_s": 0.0, "event": name, "text": text, **fields})

    def round(self, node: str) -> None:
        self._say({"node": node, "step": 0, "t_s": 0.0})

    def _say(self, record: object) -> None:
        os.write(self._fd, json.dumps(record).encode() + b"\n")

    def beat(self) -> None:
        os.write(self._fd, b".\n")
