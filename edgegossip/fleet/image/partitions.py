"""The partition table of a card: a DOS master boot record with a FAT and a Linux partition. Pure.

Raspberry Pis read nothing else of a card's table than this, so that no partitioning tool is
needed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edgegossip.types import DataError

SECTOR = 512
FAT32_LBA, LINUX = 0x0C, 0x83
ALIGNMENT = 4 << 20  # bytes; erase blocks of cards
DISK_ID = 0x65646765
_ENTRIES, _SIGNATURE = 446, b"\x55\xaa"
_PROTECTIVE = 0xEE
_NO_CHS = b"\xfe\xff\xff"  # cylinder, head and sector of what lies beyond them: read the LBA


@dataclass(frozen=True, slots=True)
class Partition:
    """`start` and `size` are bytes."""

    kind: int
    start: int
    size: int
    bootable: bool = False

    @property
    def end(self) -> int:
        return self.start + self.size


def write(partitions: Sequence[Partition], disk_id: int = DISK_ID) -> bytes:
    """The first sector. Raises ValueError for what a table cannot say."""
    if len(partitions) > 4:
        raise ValueError("a master boot record holds four partitions")
    table = bytearray(SECTOR)
    struct.pack_into("<I", table, 440, disk_id)
    for at, p in enumerate(partitions):
        if p.start % SECTOR or p.size % SECTOR or p.end // SECTOR >= 1 << 32:
            raise ValueError(f"{p} cannot be said in sectors")
        entry = (0x80 * p.bootable, _NO_CHS, p.kind, _NO_CHS, p.start // SECTOR, p.size // SECTOR)
        struct.pack_into("<B3sB3sII", table, _ENTRIES + 16 * at, *entry)
    table[510:] = _SIGNATURE
    return bytes(table)


def read(sector: bytes, total: int) -> tuple[Partition, ...]:
    """The partitions of a first sector, of a card or image with `total` bytes. Raises DataError."""
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


def boot_and_root(sector: bytes, total: int) -> tuple[Partition, Partition]:
    """The FAT partition and the root file system. Raises DataError."""
    found = read(sector, total)
    if [p.kind for p in found] != [FAT32_LBA, LINUX]:
        raise DataError("it has other partitions than a boot and a root file system: it is no card of this program")
    return found[0], found[1]
