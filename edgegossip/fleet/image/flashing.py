"""`edgegossip flash`: an image onto a card, and back to see that it is there.

`refusals` decides whether the device may be written at all. The first 4 KiB, with the partition
table, are zeros until everything else is on the medium: a card whose writing was interrupted does
not look like one that boots. What is read back comes from the medium and not from this machine's
memory."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import hashlib
import lzma
import os
import queue
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from edgegossip.fleet.image import block_devices, configure
from edgegossip.fleet.image.block_devices import Medium
from edgegossip.fleet.image.disk import SECTOR, parse_partitions
from edgegossip.fleet.image.refusals import Wish, describe, device_of, refusals
from edgegossip.fleet.image.steps import Echo
from edgegossip.fleet.image.tools import run, with_sudo
from edgegossip.types import ConfigError, DataError, HostError

CHUNK = 4 << 20
_XZ, _GZIP = b"\xfd7zXZ\0", b"\x1f\x8b"
_ECHO_EVERY_S = 2.0
Progress = Callable[[str, int, int], None]  # what is done ("written", "verified"), bytes so far, bytes in all
_BLKGETSIZE64, _BLKROGET, _BLKFLSBUF, _BLKRRPART = 0x80081272, 0x125E, 0x1261, 0x125F  # linux/fs.h
_LAST = 4096  # bytes that are written last
_SYNC_EVERY = 64 << 20  # bytes
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_ALL_OF_IT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER (linux/fs.h)
_AHEAD = 4  # pieces that are read before they can be written


def flash_card(image: Path, device: str, wish: Wish, echo: Echo, *, verify: bool, dry_run: bool) -> dict[str, Any]:
    """Do what the command line asks for (`wish.image_size` is filled in here); what was done, for
    JSON. Raises EdgegossipError: ConfigError with every reason when the device must not be
    written."""
    source = open_source(image, echo)
    facts = block_devices.gather(device, image)
    why = refusals(facts, Wish(source.size, wish.confirmed, wish.allow_fixed))
    if why:
        raise ConfigError("nothing was written: " + "; ".join(why))
    _check_image(source)
    found = device_of(facts)
    assert found is not None  # or it would have been refused
    about = {"image": str(image), "device": found.path, "model": describe(found), "size": source.size}
    about["name"] = str(_about(source).get("name", ""))
    about["base"] = bool(_about(source)) and not about["name"]
    if dry_run:
        return {**about, "written": False}
    echo(f"writing {source.size / 1e9:.2f} GB to {found.path} ({describe(found)})")
    done = write_card(
        source, found.path, facts.medium, str(_about(source).get("sha256", "")), _progress(echo), verify=verify
    )
    return {**about, "written": True, "verified": verify, **asdict(done)}


def _check_image(source: ImageSource) -> None:
    """Raise DataError unless it begins as the image of a whole card does, and is as long as its
    partitions need."""
    about = _about(source)
    if about.get("size", source.size) != source.size:
        raise DataError(
            f"{source.file} has {source.size} bytes, and the image that was built has {about['size']}: copy it again"
        )
    try:
        found = parse_partitions(source.head(SECTOR), source.size)
    except DataError as error:
        raise DataError(f"{source.file}: {error}; nothing was written, as no board starts from it") from error
    if not found:
        raise DataError(f"{source.file}: its partition table is empty; nothing was written, as no board starts from it")


def _about(source: ImageSource) -> dict[str, Any]:
    return configure.described(source.file.with_name(source.image_name))


def _progress(echo: Echo) -> Progress:
    """Return what echoes a line every two seconds, and at the end of each part."""
    start, echoed_s = time.monotonic(), 0.0
    part = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal start, echoed_s, part
        now = time.monotonic()
        if what != part:
            start, echoed_s, part = now, now, what
        if done < total and now - echoed_s < _ECHO_EVERY_S:
            return
        echoed_s = now
        rate = done / 1e6 / max(now - start, 1e-3)
        echo(f"{what} {done / total:4.0%}  {done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate:.0f} MB/s")

    return show


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Names an image to be written. `size` is that of the image itself, in bytes."""

    file: Path
    kind: str  # raw, xz, gzip
    size: int

    @property
    def image_name(self) -> str:
        """Its name without what the compressor added."""
        return self.file.stem if self.kind != "raw" else self.file.name

    def head(self, count: int) -> bytes:
        """Read its first bytes, at most so many. Raises DataError when the file is damaged."""
        with self._readable(), self._open() as stream:
            return stream.read(count)

    def chunks(self) -> Iterator[bytes]:
        """Yield all of it; every piece but the last has CHUNK bytes. Raises DataError when the file
        is damaged or not as long as it says."""
        left = self.size
        with self._readable(), self._open() as stream:
            while data := stream.read(CHUNK):
                left -= len(data)
                yield data
        if left:
            raise DataError(
                f"{self.file} unpacks to {self.size - left} bytes, and says that it has {self.size}: copy it again"
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise DataError(f"{self.file} is damaged: {str(error).lower()}; copy or build it again") from error

    def _open(self) -> IO[bytes]:
        if self.kind == "xz":
            return lzma.open(self.file, "rb")
        if self.kind == "gzip":
            return cast("IO[bytes]", gzip.open(self.file, "rb"))
        return open(self.file, "rb", buffering=0)


def open_source(file: Path, echo: Callable[[str], None] = lambda text: None) -> ImageSource:
    """Look whether and how an image is compressed. Raises DataError, and HostError when `xz` is
    needed and missing. What takes long is echoed."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(6)
        total = file.stat().st_size
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or str(error)).lower()}") from error
    if head == _XZ:
        return ImageSource(file, "xz", _xz_size(file))
    if head[:2] == _GZIP:
        echo(f"reading {file} through: gzip does not say how large it is when it is unpacked")
        return ImageSource(file, "gzip", _gzip_size(file))
    if total < 1 << 20:
        raise DataError(f"{file} has {total} bytes, too few for the image of a card")
    return ImageSource(file, "raw", total)


def _xz_size(file: Path) -> int:
    """From the index at the file's end, of all its streams."""
    for line in run(["xz", "--robot", "--list", file], 60).splitlines():
        if line.startswith("totals\t"):
            return int(line.split("\t")[4])
    raise DataError(f"{file}: xz does not say how large it is")


def _gzip_size(file: Path) -> int:
    """RFC 1952 keeps the size of the last member, modulo 4 GiB: only reading all of it tells. A
    file that is damaged is found before a card is overwritten."""
    packed, total = ImageSource(file, "gzip", 0), 0
    with packed._readable(), packed._open() as stream:
        while data := stream.read(CHUNK):
            total += len(data)
    return total


@dataclass(frozen=True, slots=True)
class Written:
    """Says what was written. `sha256` is that of the image, and of the card when it was
    verified."""

    size: int
    sha256: str
    write_s: float
    verify_s: float


def write_card(
    source: ImageSource, device: str, approved: Medium, expected: str, progress: Progress, *, verify: bool = True
) -> Written:
    """Write an image to a device that `refusals` has nothing against; `approved` is the medium of
    that decision. `expected` is the image's SHA-256 when that is known. Raises HostError when the
    device is another one by now, in use, or fails, DataError when the image is damaged or what is
    read back differs."""
    with _exclusive(device, approved) as descriptor:
        room = _size_of(descriptor)
        if source.size > room:
            raise HostError(f"{device}: the image needs {source.size} bytes, and it has {room}")
        if _ioctl_int(descriptor, _BLKROGET):
            raise HostError(f"{device} is write-protected: look at the switch on the card")
        start = time.monotonic()
        digest = write_image(source, descriptor, expected, progress)
        write_s, start = time.monotonic() - start, time.monotonic()
        if verify:
            read_back(descriptor, source.size, digest, progress)
        verify_s = time.monotonic() - start
        with suppress(OSError):  # some devices have no partitions; nothing depends on it
            fcntl.ioctl(descriptor, _BLKRRPART)
    return Written(source.size, digest, write_s, verify_s if verify else 0.0)


@contextmanager
def _exclusive(device: str, approved: Medium) -> Iterator[int]:
    """Open the device, for nobody else: the kernel refuses one that is mounted, swap or part of
    something, in any namespace. What is open stays the same disk; what has that name may have been
    exchanged since it was looked at."""
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        why = "something uses it" if error.errno in (errno.EBUSY, errno.EAGAIN) else (error.strerror or "").lower()
        again = f": say it again as {with_sudo('flash ...')}" if isinstance(error, PermissionError) else ""
        raise HostError(f"{device} cannot be taken for writing: {why}{again}") from error
    try:
        if block_devices.medium_of(block_devices.number_of(descriptor)) != approved:
            raise HostError(f"{device} is another disk or card than a moment ago: nothing was written, say it again")
        yield descriptor
    except OSError as error:
        raise HostError(
            f"{device} failed ({(error.strerror or str(error)).lower()}): the card or its reader is bad"
        ) from error
    finally:
        os.close(descriptor)


def write_image(source: ImageSource, descriptor: int, expected: str, progress: Progress) -> str:
    """Write all but the first bytes, sync, then write those, and sync. Returns the image's SHA-256.
    Raises OSError and DataError."""
    total, at, first = hashlib.sha256(), 0, b""
    os.pwrite(descriptor, bytes(_LAST), 0)
    with _Worker("sync", 1) as syncing, _Worker("hash", _AHEAD) as hashing:
        syncs = _Writeback(descriptor, syncing)
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


class _Worker:
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


class _Writeback:
    """Sends what was written to the medium meanwhile, stretch by stretch: `worker` waits for one
    while the next is written. Without that progress would be that of memory, and Ctrl-C would wait
    for minutes."""

    def __init__(self, descriptor: int, worker: _Worker) -> None:
        self._descriptor, self._worker, self._begin, self._unsynced = descriptor, worker, 0, 0

    def written(self, count: int) -> None:
        """Count so many bytes more. Raises OSError for what the medium did not take before."""
        self._unsynced += count
        if self._unsynced >= _SYNC_EVERY:
            self._worker.do(_write_back, self._descriptor, self._begin, self._unsynced)
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


def _size_of(descriptor: int) -> int:
    """Return the bytes of a block device. Raises OSError."""
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


def _ahead(source: ImageSource) -> Iterator[bytes]:
    """Yield the chunks, read and unpacked by a thread of its own, some before they are asked
    for."""
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
