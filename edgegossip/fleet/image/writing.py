"""The bytes onto a card, and back to see that they are there.

The first 4 KiB, with the partition table, are zeros until everything else is on the medium: a card
whose writing was interrupted does not look like one that boots. What is read back comes from the
medium and not from this machine's memory."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgegossip.fleet.image import block_devices
from edgegossip.fleet.image.block_devices import Medium
from edgegossip.fleet.image.card_source import CHUNK, Source
from edgegossip.fleet.image.tools import with_sudo
from edgegossip.types import DataError, HostError

Progress = Callable[[str, int, int], None]  # what is done ("written", "verified"), bytes so far, bytes in all
_BLKGETSIZE64, _BLKROGET, _BLKFLSBUF, _BLKRRPART = 0x80081272, 0x125E, 0x1261, 0x125F  # linux/fs.h
_LAST = 4096  # bytes that are written last
_SYNC_EVERY = 64 << 20  # bytes
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_ALL_OF_IT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER (linux/fs.h)
_AHEAD = 4  # pieces that are read before they can be written


@dataclass(frozen=True, slots=True)
class Written:
    """`sha256` is that of the image, and of the card when it was verified."""

    size: int
    sha256: str
    write_s: float
    verify_s: float


def flash(
    source: Source, device: str, judged: Medium, expected: str, progress: Progress, *, verify: bool = True
) -> Written:
    """Write an image to a device that `refusals` has nothing against; `judged` is the medium of
    that decision. `expected` is the image's SHA-256 when that is known. Raises HostError when the
    device is another one by now, in use, or fails, DataError when the image is damaged or what is
    read back differs."""
    with _taken(device, judged) as descriptor:
        room = size_of(descriptor)
        if source.size > room:
            raise HostError(f"{device}: the image needs {source.size} bytes, and it has {room}")
        if _ioctl_int(descriptor, _BLKROGET):
            raise HostError(f"{device} is write-protected: look at the switch on the card")
        start = time.monotonic()
        digest = write(source, descriptor, expected, progress)
        write_s, start = time.monotonic() - start, time.monotonic()
        if verify:
            read_back(descriptor, source.size, digest, progress)
        verify_s = time.monotonic() - start
        with suppress(OSError):  # some devices have no partitions; nothing depends on it
            fcntl.ioctl(descriptor, _BLKRRPART)
    return Written(source.size, digest, write_s, verify_s if verify else 0.0)


@contextmanager
def _taken(device: str, judged: Medium) -> Iterator[int]:
    """The device, for nobody else: the kernel refuses one that is mounted, swap or part of
    something, in any namespace. What is open stays the same disk; what has that name may have been
    exchanged since it was looked at."""
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        why = (
            "something uses it"
            if isinstance(error, BlockingIOError) or error.errno == 16
            else (error.strerror or "").lower()
        )
        again = f": say it again as {with_sudo('flash ...')}" if isinstance(error, PermissionError) else ""
        raise HostError(f"{device} cannot be taken for writing: {why}{again}") from error
    try:
        if block_devices.medium_of(block_devices.number_of(descriptor)) != judged:
            raise HostError(f"{device} is another disk or card than a moment ago: nothing was written, say it again")
        yield descriptor
    except OSError as error:
        raise HostError(
            f"{device} failed ({(error.strerror or str(error)).lower()}): the card or its reader is bad"
        ) from error
    finally:
        os.close(descriptor)


def write(source: Source, descriptor: int, expected: str, progress: Progress) -> str:
    """All but the first bytes, a sync, the first bytes, a sync. Returns the image's SHA-256. Raises
    OSError and DataError."""
    total, at, first = hashlib.sha256(), 0, b""
    os.pwrite(descriptor, bytes(_LAST), 0)
    with _Line("sync", 1) as syncing, _Line("hash", _AHEAD) as hashing:
        syncs = _Syncs(descriptor, syncing)
        for data in _ahead(source):
            hashing.do(total.update, data)
            if at == 0:
                first, rest = data[:_LAST], memoryview(data)[_LAST:]
                _write_all(descriptor, rest, _LAST)
            else:
                _write_all(descriptor, memoryview(data), at)
            at += len(data)
            syncs.written(len(data))
            progress("written", at, source.size)
    if expected and total.hexdigest() != expected:
        raise DataError(
            f"{source.file} is not the image that was built: copy or build it again (the card does not boot now)"
        )
    os.fsync(descriptor)
    _write_all(descriptor, memoryview(first), 0)
    os.fsync(descriptor)
    return total.hexdigest()


class _Line:
    """Does things in their order on a thread of its own, no more than `ahead` of them behind. What
    one of them raises comes up here, with a later one or at the end."""

    def __init__(self, name: str, ahead: int) -> None:
        self._thread, self._ahead = ThreadPoolExecutor(1, name), ahead
        self._under_way: deque[Future[object]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self._wait_for_all_but(0)

    def do(self, work: Callable[..., object], *given: object) -> None:
        self._wait_for_all_but(self._ahead - 1)
        self._under_way.append(self._thread.submit(work, *given))

    def _wait_for_all_but(self, count: int) -> None:
        while len(self._under_way) > count:
            self._under_way.popleft().result()


class _Syncs:
    """What was written goes to the medium meanwhile, stretch by stretch: `line` waits for one while
    the next is written. Without that progress would be that of memory, and Ctrl-C would wait for
    minutes."""

    def __init__(self, descriptor: int, line: _Line) -> None:
        self._descriptor, self._line, self._begin, self._unsynced = descriptor, line, 0, 0

    def written(self, count: int) -> None:
        """So many bytes more. Raises OSError for what the medium did not take before."""
        self._unsynced += count
        if self._unsynced >= _SYNC_EVERY:
            self._line.do(_write_back, self._descriptor, self._begin, self._unsynced)
            self._begin, self._unsynced = self._begin + self._unsynced, 0


def _write_back(descriptor: int, at: int, count: int) -> None:
    """Wait until the medium has taken this stretch; it may still be in its own cache, as the last
    sync sees to that. Raises OSError."""
    if _LIBC.sync_file_range(descriptor, at, count, _ALL_OF_IT):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_back(descriptor: int, size: int, digest: str, progress: Progress) -> None:
    """Hash what is on the medium. Raises DataError when it differs."""
    fcntl.ioctl(descriptor, _BLKFLSBUF)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    total, at = hashlib.sha256(), 0
    while at < size:
        data = os.pread(descriptor, min(CHUNK, size - at), at)
        if not data:
            raise DataError("the card ends before the image does: it says that it is larger than it is, do not use it")
        total.update(data)
        at += len(data)
        progress("verified", at, size)
    if total.hexdigest() != digest:
        raise DataError(
            "what is on the card is not what was written to it: do not use this card, or try another reader"
        )


def size_of(descriptor: int) -> int:
    """Bytes of a block device. Raises OSError."""
    buffer = bytearray(8)
    fcntl.ioctl(descriptor, _BLKGETSIZE64, buffer)
    return int(struct.unpack("Q", buffer)[0])


def _ioctl_int(descriptor: int, request: int) -> int:
    buffer = bytearray(4)
    fcntl.ioctl(descriptor, request, buffer)
    return int(struct.unpack("i", buffer)[0])


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count


def _ahead(source: Source) -> Iterator[bytes]:
    """The chunks, read and unpacked by a thread of its own, some before they are asked for."""
    line: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
    over = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                line.put(item, timeout=0.2)
                return

    def fill() -> None:
        try:
            for data in source.chunks():
                put(data)
                if over.is_set():
                    return
            put(None)
        except BaseException as error:  # goes on in the thread that writes
            put(error)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        while (item := line.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        over.set()
        thread.join()
