"""An image to be written, compressed or not: its size when it is unpacked, and its bytes in
order."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from edgegossip.fleet.image.tools import run
from edgegossip.types import DataError

CHUNK = 4 << 20
_XZ, _GZIP = b"\xfd7zXZ\0", b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Source:
    """`size` is that of the image itself, in bytes."""

    file: Path
    kind: str  # raw, xz, gzip
    size: int

    @property
    def image_name(self) -> str:
        """Without what the compressor added."""
        return self.file.stem if self.kind != "raw" else self.file.name

    def head(self, count: int) -> bytes:
        """Its first bytes, at most so many. Raises DataError when the file is damaged."""
        with self._told(), self._open() as stream:
            return stream.read(count)

    def chunks(self) -> Iterator[bytes]:
        """All of it; every piece but the last has CHUNK bytes. Raises DataError when the file is
        damaged or not as long as it says."""
        left = self.size
        with self._told(), self._open() as stream:
            while data := stream.read(CHUNK):
                left -= len(data)
                yield data
        if left:
            raise DataError(
                f"{self.file} unpacks to {self.size - left} bytes, and says that it has {self.size}: copy it again"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
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


def open_source(file: Path, tell: Callable[[str], None] = lambda text: None) -> Source:
    """Raises DataError, and HostError when `xz` is needed and missing. Tells what takes long."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(6)
        total = file.stat().st_size
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or str(error)).lower()}") from error
    if head == _XZ:
        return Source(file, "xz", _xz_size(file))
    if head[:2] == _GZIP:
        tell(f"reading {file} through: gzip does not say how large it is when it is unpacked")
        return Source(file, "gzip", _gzip_size(file))
    if total < 1 << 20:
        raise DataError(f"{file} has {total} bytes, too few for the image of a card")
    return Source(file, "raw", total)


def _xz_size(file: Path) -> int:
    """From the index at the file's end, of all its streams."""
    for line in run(["xz", "--robot", "--list", file], 60).splitlines():
        if line.startswith("totals\t"):
            return int(line.split("\t")[4])
    raise DataError(f"{file}: xz does not say how large it is")


def _gzip_size(file: Path) -> int:
    """What RFC 1952 keeps is that of the last member, modulo 4 GiB: only reading all of it tells. A
    file that is damaged is found before a card is overwritten."""
    packed, total = Source(file, "gzip", 0), 0
    with packed._told(), packed._open() as stream:
        while data := stream.read(CHUNK):
            total += len(data)
    return total
