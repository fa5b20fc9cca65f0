"""Bytes between pairs of sockets on a thread that never waits for Python.

`import torch` and other long calls hold Python's lock for seconds. What passes through here goes on meanwhile: frames, and the
keepalive answers by which peers know that this board lives. Linux only.
"""

from __future__ import annotations

from edgegossip.native import _native


class Relay:
    """Memory is bounded: what one side cannot take yet is kept, at most 256 KiB a way, and the other side is not read meanwhile.
    The end of one way is passed on; a pair whose other way does not end within 5 s of that is closed. Thread-safe.

    Raises OSError when the system has no more descriptors, RuntimeError elsewhere than on Linux and after `close`."""

    def __init__(self) -> None:
        self._relay = _native.Relay()

    def add(self, outside: int, inside: int) -> int:
        """Take over two connected sockets by their descriptors (`socket.detach`); an id that is never used again."""
        return self._relay.add(outside, inside)

    def cut(self, id: int) -> None:
        """Close a pair, if it is still there."""
        self._relay.cut(id)

    def fileno(self) -> int:
        """Readable while `ended` has something to tell."""
        return self._relay.fileno()

    def ended(self) -> list[tuple[int, int, int]]:
        """Pairs that have ended since the last call: id, bytes from outside to inside, and back."""
        return self._relay.ended()

    def close(self) -> None:
        """End every pair and the thread."""
        self._relay.close()
