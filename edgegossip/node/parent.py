"""The process that started this board under `run`, as its standard input has it: the other boards' addresses, then news of those
that are lost, and at its end the end of this process, so that no board outlives a run however that dies."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from edgegossip.types import EXIT_INTERRUPTED, EdgegossipError, NodeId

OnLost = Callable[[Mapping[str, str]], None]


class Parent:
    """Reads on a thread of its own from the moment it is made: a board that is still loading ends with its parent, too."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._lines: list[bytes] = []  # that nobody has asked for yet
        self._on_lost: OnLost | None = None
        threading.Thread(target=self._read, daemon=True, name="parent").start()

    def addresses(self) -> dict[NodeId, str]:
        """The first line: a JSON object of the other boards' addresses. Waits for it."""
        with self._news:
            while not self._lines:
                self._news.wait()
            line = self._lines.pop(0)
        return {str(name): str(address) for name, address in json.loads(line).items()}

    def listen(self, on_lost: OnLost) -> None:
        """Every further line, {"lost": name, "why": reason}, goes to `on_lost`, on either thread."""
        with self._news:
            self._on_lost = on_lost
            for line in self._lines:
                _tell(on_lost, line)
            self._lines.clear()

    def _read(self) -> None:
        while (line := _read_line()) is not None:
            with self._news:
                if self._on_lost is not None:
                    _tell(self._on_lost, line)
                else:
                    self._lines.append(line)
                    self._news.notify_all()
        os._exit(EXIT_INTERRUPTED)


def _tell(on_lost: OnLost, line: bytes) -> None:
    """What goes wrong must not end the thread that watches for the parent's end: a peer that is no neighbour of ours, a transport
    that is closed, a loop that is too busy to answer in time."""
    with suppress(EdgegossipError, TimeoutError, RuntimeError):
        on_lost(json.loads(line))


def _read_line() -> bytes | None:
    """One line of standard input; None at its end. Not through sys.stdin: a thread that holds its lock when the interpreter
    ends aborts the process."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            return bytes(line)
        line += byte
    return None
