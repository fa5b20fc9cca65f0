"""`edgegossip flash`: an image onto a card, and back to see that it is there.

The device is opened for this process alone before anything is decided, and what is open is what is
looked at and written: the kernel refuses a disk that is mounted, swap or part of something, in any
namespace, and no other disk can take its place. The first 4 KiB, with the partition table, are
zeros until everything else is on the medium: a card whose writing was interrupted does not look
like one that boots. What is read back comes from the medium and not from this machine's memory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet.image import configure
from edgegossip.fleet.image.refusals import Wish, look_up, refusals
from edgegossip.fleet.image.steps import Echo
from edgegossip.fleet.image.tools import with_sudo
from edgegossip.types import ConfigError, DataError, HostError

CHUNK = 4 << 20
_ECHO_EVERY_S = 2.0
Progress = Callable[[str, int, int], None]  # what is done ("written", "verified"), bytes so far, bytes in all
_BLKFLSBUF, _BLKRRPART = 0x1261, 0x125F  # linux/fs.h
_LAST = 4096  # bytes that are written last
# Bytes that wait for the medium: more, and progress would be that of memory, and Ctrl-C would wait
# for minutes.
_SYNC_EVERY = 64 << 20


def flash_card(image: Path, device: str, wish: Wish, echo: Echo, *, verify: bool, dry_run: bool) -> dict[str, Any]:
    """Do what the command line asks for (`wish.image_size` is filled in here); what was done, for
    JSON. Raises EdgegossipError: ConfigError with every reason when the device must not be
    written."""
    about = configure.described(image)
    size = _check_image(image, about)
    with _exclusive(device) as descriptor:
        found = look_up(device)
        if found.number != _number_of(descriptor):
            raise HostError(f"{device} is another disk than lsblk says: nothing was written")
        if why := refusals(found, Wish(size, wish.confirmed, wish.allow_fixed)):
            raise ConfigError("nothing was written: " + "; ".join(why))
        document = {"image": str(image), "device": found.path, "model": str(found), "size": size}
        document["name"] = str(about.get("name", ""))
        document["base"] = bool(about) and not document["name"]
        if dry_run:
            return {**document, "written": False}
        echo(f"writing {size / 1e9:.2f} GB to {found.path} ({found})")
        done = write_card(image, descriptor, str(about.get("sha256", "")), _progress(echo), verify=verify)
    return {**document, "written": True, "verified": verify, **asdict(done)}


def _check_image(image: Path, about: dict[str, Any]) -> int:
    """Return how large the image is. Raises DataError unless it begins as that of a whole card
    does, and is as long as its partitions need."""
    found = configure.partitions(image)
    size = image.stat().st_size
    if about.get("size", size) != size:
        raise DataError(f"{image} has {size} bytes, and the image that was built has {about['size']}: copy it again")
    if not found:
        raise DataError(f"{image}: its partition table is empty; nothing was written, as no board starts from it")
    return size


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
class Written:
    """Says what was written. `sha256` is that of the image, and of the card when it was
    verified."""

    sha256: str
    write_s: float
    verify_s: float


def write_card(image: Path, descriptor: int, expected: str, progress: Progress, *, verify: bool = True) -> Written:
    """Write an image to an open device. `expected` is the image's SHA-256 when that is known.
    Raises OSError, DataError when the image is not that one, or what is read back differs."""
    start = time.monotonic()
    digest = write_image(image, descriptor, expected, progress)
    write_s, start = time.monotonic() - start, time.monotonic()
    if verify:
        read_back(descriptor, image.stat().st_size, digest, progress)
    verify_s = time.monotonic() - start
    with suppress(OSError):  # some devices have no partitions; nothing depends on it
        fcntl.ioctl(descriptor, _BLKRRPART)
    return Written(digest, write_s, verify_s if verify else 0.0)


@contextmanager
def _exclusive(device: str) -> Iterator[int]:
    """Open a block device for nobody else. Raises ConfigError for what is none, HostError when it
    is in use, not ours to write, or fails."""
    try:
        if not stat.S_ISBLK(os.stat(device).st_mode):
            raise ConfigError(f"nothing was written: {device} is no disk or card; `lsblk` lists those that there are")
        descriptor = os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise _not_opened(device, error) from error
    try:
        yield descriptor
    except OSError as error:
        raise HostError(
            f"{device} failed ({(error.strerror or str(error)).lower()}): the card or its reader is bad"
        ) from error
    finally:
        os.close(descriptor)


def _not_opened(device: str, error: OSError) -> HostError:
    """Say why it was not, and who uses it as far as lsblk knows."""
    why = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError):
        cure = f"say it again as {with_sudo('flash ...')}" if os.geteuid() else "look at the switch on the card"
        why = f"{why}: {cure}"
    elif error.errno == errno.EBUSY:
        users = ", ".join(f"{m.name} at {point}" for m in look_up(device).family() for point in m.mounts)
        why = f"{users} uses it: unmount it first" if users else "something uses it"
    return HostError(f"{device} cannot be taken for writing: {why}")


def _number_of(descriptor: int) -> str:
    """Return MAJOR:MINOR of the block device that is open."""
    number = os.fstat(descriptor).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def write_image(image: Path, descriptor: int, expected: str, progress: Progress) -> str:
    """Write all but the first bytes, sync, then write those, and sync. Returns the image's SHA-256.
    Raises OSError and DataError."""
    total, at, first, unsynced = hashlib.sha256(), 0, b"", 0
    size = image.stat().st_size
    os.pwrite(descriptor, bytes(_LAST), 0)
    with open(image, "rb", buffering=0) as stream:
        while data := stream.read(CHUNK):
            total.update(data)
            if at == 0:
                first = data[:_LAST]
            _write_all(descriptor, memoryview(data)[len(first) if at == 0 else 0 :], at or len(first))
            at += len(data)
            unsynced += len(data)
            if unsynced >= _SYNC_EVERY:
                os.fdatasync(descriptor)
                unsynced = 0
            progress("written", at, size)
    if expected and total.hexdigest() != expected:
        raise DataError(f"{image} is not the image that was built: copy or build it again (the card does not boot now)")
    os.fsync(descriptor)
    _write_all(descriptor, memoryview(first), 0)
    os.fsync(descriptor)
    return total.hexdigest()


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


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count
