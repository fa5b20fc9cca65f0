"""Large buffers that are no memory of the process that holds them.

A buffer of more than SPOOL_BYTES lies in a file that has no name any more, and is mapped when it is
whole. The kernel keeps it in memory as long as there is room, writes it to the disk when there is
none, and forgets it with the last reference. Smaller ones, and all where no folder is given or its
disk does not do, are memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SPOOL_BYTES = 256 << 20


class Buffer:
    """Up to so many bytes, at least one, that come one after the other. Made by `Spool.buffer`."""

    def __init__(self, size_bytes: int, folder: Path | None) -> None:
        self.size_bytes, self.here_bytes = size_bytes, 0
        self._file: FileIO | None = None
        self._memory: memoryview | None = None
        if folder is not None:
            from tempfile import TemporaryFile  # here: a board that waits has no use for it

            with suppress(OSError):
                self._file = TemporaryFile(dir=folder, buffering=0)
        if self._file is None:
            self._to_memory()

    def put(self, data: bytes | memoryview) -> None:
        """Append `data`, which must not exceed what is left."""
        if self._file is not None:
            try:
                self._write(self._file, memoryview(data))
            except OSError:  # the disk is full or broken
                self._to_memory()
        if self._memory is not None:
            self._memory[self.here_bytes : self.here_bytes + len(data)] = data
        self.here_bytes += len(data)

    def whole(self) -> memoryview:
        """Return what is here; nothing more is put."""
        if self._file is None:
            assert self._memory is not None
            return self._memory[: self.here_bytes]
        with self._file as file:
            return memoryview(mmap.mmap(file.fileno(), self.here_bytes, access=mmap.ACCESS_READ))

    def _write(self, file: FileIO, data: memoryview) -> None:
        at = self.here_bytes
        while data:
            written = os.pwrite(file.fileno(), data, at)
            data, at = data[written:], at + written

    def _to_memory(self) -> None:
        """Go on in memory, with what is in the file."""
        memory = np.empty(self.size_bytes, np.uint8).data  # a bytearray would be zeroed first
        if self._file is not None:
            at = 0
            while at < self.here_bytes:
                at += os.preadv(self._file.fileno(), [memory[at : self.here_bytes]], at)
            self._file.close()
        self._file, self._memory = None, memory


class Spool:
    """Where large buffers go. `folder` None: to memory. The folder should be on a disk: many a /tmp
    is memory itself."""

    def __init__(self, folder: Path | None = None, above_bytes: int = SPOOL_BYTES) -> None:
        self._folder, self.above_bytes = folder, above_bytes

    def keeps(self, size_bytes: int) -> bool:
        """Whether so many bytes go to the disk."""
        return size_bytes > self.above_bytes and self._folder is not None

    def buffer(self, size_bytes: int) -> Buffer:
        """Return an empty buffer for so many bytes."""
        return Buffer(size_bytes, self._folder if self.keeps(size_bytes) else None)

    def room(self, size_bytes: int) -> NDArray[np.uint8] | None:
        """Return so many bytes of a file to write to, uint8[size_bytes], which goes with the last
        reference; None where they would be memory."""
        if not self.keeps(size_bytes):
            return None
        from tempfile import TemporaryFile

        with suppress(OSError), TemporaryFile(dir=self._folder, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)  # a full disk must not be found out by writing there
            return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
        return None

    def joined(self, pieces: Sequence[bytes | memoryview]) -> bytes | memoryview:
        """Return the pieces as one buffer that nobody writes to."""
        size = sum(map(len, pieces))
        if not self.keeps(size):
            return b"".join(pieces)
        buffer = self.buffer(size)
        for piece in pieces:
            buffer.put(piece)
        return buffer.whole().toreadonly()
