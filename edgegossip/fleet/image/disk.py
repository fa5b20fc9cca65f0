"""A card's image as one file: a DOS master boot record, a FAT boot partition and an ext4 root file
system. Holes stay holes, and nothing is mounted.

Raspberry Pis read nothing else of a card's table than this, so that no partitioning tool is
needed."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgegossip.fleet.image.filesystems import all_of, make_ext4, make_fat
from edgegossip.types import DataError

SECTOR = 512
FAT32_LBA, LINUX = 0x0C, 0x83
ALIGNMENT = 4 << 20  # bytes; erase blocks of cards
DISK_ID = 0x65646765
_ENTRIES, _SIGNATURE = 446, b"\x55\xaa"
_PACKED = (b"\xfd7zXZ\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # xz, gzip, zstd
_PROTECTIVE = 0xEE
_CHUNK = 1 << 16
_NO_CHS = b"\xfe\xff\xff"  # cylinder, head and sector of what lies beyond them: read the LBA


@dataclass(frozen=True, slots=True)
class Partition:
    """Describes a partition. `start` and `size` are bytes."""

    kind: int
    start: int
    size: int
    bootable: bool = False

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.start + self.size


def partition_table(partitions: Sequence[Partition]) -> bytes:
    """Return the first sector of a card with at most four partitions."""
    table = bytearray(SECTOR)
    struct.pack_into("<I", table, 440, DISK_ID)
    for at, p in enumerate(partitions):
        entry = (0x80 * p.bootable, _NO_CHS, p.kind, _NO_CHS, p.start // SECTOR, p.size // SECTOR)
        struct.pack_into("<B3sB3sII", table, _ENTRIES + 16 * at, *entry)
    table[510:] = _SIGNATURE
    return bytes(table)


def parse_partitions(sector: bytes, total: int) -> tuple[Partition, ...]:
    """Read the partitions of a first sector, of a card or image with `total` bytes. Raises
    DataError."""
    if sector.startswith(_PACKED):
        raise DataError("it is compressed: unpack it first, with `xz -dk` or `gunzip -k`")
    if len(sector) < SECTOR or sector[510:512] != _SIGNATURE:
        raise DataError("it has no partition table")
    found = []
    for at in range(4):
        flag, _, kind, _, start, size = struct.unpack_from("<B3sB3sII", sector, _ENTRIES + 16 * at)
        if kind == _PROTECTIVE and start:
            size = min(size, total // SECTOR - start)  # a GUID table's: all there is, or the most that can be said
        if kind:
            found.append(Partition(kind, start * SECTOR, size * SECTOR, flag == 0x80))
    end = SECTOR
    for p in sorted(found, key=lambda p: p.start):
        if p.start < end:
            raise DataError("its partitions overlap")
        end = p.end
    if end > total:
        raise DataError(f"its partitions need {end} bytes, and it has {total}: it was cut short")
    return tuple(found)


def assemble(boot: Path, root: Path, card: Path, boot_bytes: int, epoch: int) -> tuple[Partition, Partition]:
    """Make the file systems of the two folders and `card` of them. Raises HostError."""
    work = card.parent
    boot_image, root_image = work / "boot.img", work / "root.img"
    for folder in (boot, root):
        _clamp_times(folder, epoch)
    make_fat(boot, boot_image, boot_bytes, epoch)
    make_ext4(root, root_image, epoch)
    first = Partition(FAT32_LBA, ALIGNMENT, boot_image.stat().st_size, bootable=True)
    second = Partition(LINUX, first.end, -(-root_image.stat().st_size // ALIGNMENT) * ALIGNMENT)
    with open(card, "wb") as stream:
        stream.truncate(second.end)
        stream.write(partition_table((first, second)))
        for image, partition in ((boot_image, first), (root_image, second)):
            _pour(image, stream, partition.start)
            image.unlink()
    return first, second


def _clamp_times(folder: Path, epoch: int) -> None:
    """See that no file is newer than `epoch`. Raises OSError."""
    for path in all_of(folder):
        at = min(int(path.lstat().st_mtime), epoch)
        os.utime(path, (at, at), follow_symlinks=False)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file, holes as holes. Raises OSError."""
    with open(target, "wb") as stream:
        stream.truncate(source.stat().st_size)
        _pour(source, stream, 0)


def sha256(file: Path) -> str:
    """Hash a file's content. Raises OSError."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pour(source: Path, target: BinaryIO, offset: int) -> None:
    """Copy what is not zeros, which the target is already."""
    zeros = bytes(_CHUNK)
    with open(source, "rb") as stream:
        while data := stream.read(_CHUNK):
            if data != zeros[: len(data)]:
                target.seek(offset)
                target.write(data)
            offset += len(data)
