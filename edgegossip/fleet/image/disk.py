"""A card's image as one file: partition table, boot partition, root file system. Holes stay
holes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from edgegossip.fleet.image import ext4, fat, partitions
from edgegossip.fleet.image.partitions import ALIGNMENT, FAT32_LBA, LINUX, Partition

_CHUNK = 4 << 20


def assemble(boot: Path, root: Path, card: Path, boot_bytes: int, epoch: int) -> tuple[Partition, Partition]:
    """Make the file systems of the two folders and `card` of them. Raises HostError."""
    work = card.parent
    boot_image, root_image = work / "boot.img", work / "root.img"
    for folder in (boot, root):
        clamp_times(folder, epoch)
    fat.make(boot, boot_image, boot_bytes, epoch)
    ext4.make(root, root_image, epoch)
    first = Partition(FAT32_LBA, ALIGNMENT, boot_image.stat().st_size, bootable=True)
    second = Partition(LINUX, first.end, -(-root_image.stat().st_size // ALIGNMENT) * ALIGNMENT)
    with open(card, "wb") as stream:
        stream.truncate(second.end)
        stream.write(partitions.write((first, second)))
        for image, partition in ((boot_image, first), (root_image, second)):
            _pour(image, stream.fileno(), partition.start)
            image.unlink()
    return first, second


def clamp_times(folder: Path, epoch: int) -> None:
    """No file is newer than `epoch`. Raises OSError."""
    for path in ext4.all_of(folder):
        at = min(int(path.lstat().st_mtime), epoch)
        os.utime(path, (at, at), follow_symlinks=False)


def copy_sparse(source: Path, target: Path) -> None:
    """Raises OSError."""
    with open(target, "wb") as stream:
        stream.truncate(source.stat().st_size)
        _pour(source, stream.fileno(), 0)


def sha256(file: Path) -> str:
    """Of a file's content. Raises OSError."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pour(source: Path, target: int, offset: int) -> None:
    """Copy what is written of a file, by the kernel's map of its holes; what is not, is zeros at
    the target already."""
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = end = os.fstat(descriptor).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
                end = os.lseek(descriptor, at, os.SEEK_HOLE)
            except OSError:  # ENXIO: nothing but a hole from here on
                break
            while at < end:
                data = os.pread(descriptor, min(_CHUNK, end - at), at)
                if not data:
                    break
                os.pwrite(target, data, offset + at)
                at += len(data)
    finally:
        os.close(descriptor)
