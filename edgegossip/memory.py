"""Keep the memory of a process small: large buffers in files, and free memory given back.

A buffer of more than SPOOL_BYTES lies in a file that has no name any more, and is mapped when it is
whole. The kernel keeps it in memory as long as there is room, writes it to the disk when there is
none, and forgets it with the last reference. Smaller ones, and all where no folder is given or its
disk does not do, are memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

SPOOL_BYTES = 256 << 20

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
KEPT_BYTES, _LARGEST_BYTES = 128 << 20, 32 << 20  # the latter is the most that glibc takes


class Buffer:
    """Holds up to so many bytes, at least one, that come one after the other. Made by
    `Spool.buffer`. `mapped`: where it must be a file, those that are mapped; what the disk does not
    do is an OSError."""

    def __init__(self, size_bytes: int, folder: Path | None, mapped: WeakSet[mmap.mmap] | None = None) -> None:
        self.size_bytes, self.here_bytes = size_bytes, 0
        self._mapped = mapped
        self._file: FileIO | None = None
        self._memory: memoryview | None = None
        if folder is not None:
            from tempfile import TemporaryFile  # here: a board that waits has no use for it

            try:
                self._file = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (open as long as this is)
            except OSError:
                if mapped is not None:
                    raise
        if self._file is None:
            self._to_memory()

    def put(self, data: bytes | memoryview) -> None:
        """Append `data`, which must not exceed what is left."""
        if self._file is not None:
            try:
                self._write(self._file, memoryview(data))
            except OSError:  # the disk is full or broken
                if self._mapped is not None:
                    raise
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
            mapping = mmap.mmap(file.fileno(), self.here_bytes, access=mmap.ACCESS_READ)
        if self._mapped is not None:
            self._mapped.add(mapping)
        return memoryview(mapping)

    def _write(self, file: FileIO, data: memoryview) -> None:
        at = self.here_bytes
        while data:
            written = os.pwrite(file.fileno(), data, at)
            data, at = data[written:], at + written

    def _to_memory(self) -> None:
        """Go on in memory, with what is in the file so far."""
        memory = np.empty(self.size_bytes, np.uint8).data  # a bytearray would be zeroed first
        if self._file is not None:
            at = 0
            while at < self.here_bytes:
                at += os.preadv(self._file.fileno(), [memory[at : self.here_bytes]], at)
            self._file.close()
        self._file, self._memory = None, memory


class Spool:
    """Decides where large buffers go. `folder` None: to memory. The folder should be on a disk:
    many a /tmp is memory itself.

    Example:
        buffer = Spool(Path("/var/lib/edgegossip")).buffer(size_bytes=1 << 30)
        buffer.put(chunk)  # until all have come
        frame = buffer.whole()
    """

    def __init__(self, folder: Path | None = None, above_bytes: int = SPOOL_BYTES) -> None:
        self.folder, self.above_bytes = folder, above_bytes
        self._mapped = WeakSet[mmap.mmap]()

    def keeps(self, size_bytes: int) -> bool:
        """Tell whether so many bytes go to the disk."""
        return size_bytes > self.above_bytes and self.folder is not None

    def buffer(self, size_bytes: int) -> Buffer:
        """Return an empty buffer for so many bytes."""
        return Buffer(size_bytes, self.folder if self.keeps(size_bytes) else None)

    def file(self, size_bytes: int) -> Buffer:
        """Return an empty buffer for so many bytes of a file, which `settle` looks after. Raises
        OSError."""
        return Buffer(size_bytes, self.folder, self._mapped)

    def settle(self) -> None:
        """Give back the memory of what was read of such files; it comes again when it is read. From
        any thread."""
        with suppress(RuntimeError):  # another is being mapped: it is done after the next event
            for mapping in self._mapped:
                mapping.madvise(mmap.MADV_DONTNEED)

    def room(self, size_bytes: int) -> NDArray[np.uint8] | None:
        """Return so many bytes of a file to write to, uint8[size_bytes], which goes with the last
        reference; None where they would be memory."""
        if not self.keeps(size_bytes):
            return None
        from tempfile import TemporaryFile

        with suppress(OSError), TemporaryFile(dir=self.folder, buffering=0) as file:
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


def trim_heap() -> None:
    """Give memory that is free back to the system, where the C library can (glibc).

    Call it where large buffers have just gone: otherwise the holes that they leave in the heap do
    not fit the next ones, and the peak grows. Costs no measurable time."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def enlarge_heap(kept_bytes: int = KEPT_BYTES) -> None:
    """Keep up to `kept_bytes` of free memory for what is asked next, in blocks of up to 32 MiB,
    where the C library can (glibc).

    Otherwise an optimiser's temporary tensors are given back in every step, and the system clears
    them for the next one: of a step of a perceptron of 2 million weights that was a third.
    `trim_heap` still gives all back."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, kept_bytes)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
