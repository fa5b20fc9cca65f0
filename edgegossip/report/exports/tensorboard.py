"""Metrics as TensorBoard event files, a folder a run and board: `tensorboard --logdir DIR`. Written
without TensorBoard.

An event file is a TFRecord file (tensorflow/core/lib/io/record_writer.h): length as u64, its masked
CRC-32C, the data, their masked CRC-32C. The data are Event messages
(tensorflow/core/util/event.proto), one a round, with a Summary (summary.proto) of simple values."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgegossip.report.web.view import RunView, Table, names_of
from edgegossip.types import HostError

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected (RFC 3720)
_MASK_DELTA = 0xA282EAD8
_ODD = re.compile(r"[^\w. +=@~()-]")  # in a name that becomes a folder; % is odd, too
_AT_ONCE = 4096  # records whose checksums are computed together


def write_tensorboard(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Write an event file for each board, in `<folder>/<run>/<board>`, and return the folders. Runs
    of one name are told apart by the folders that they are in. A name's letters that could lead
    elsewhere are written as %2F and so on. Raises HostError."""
    written = []
    for run, view in zip(names_of(views), views, strict=True):
        place = folder.joinpath(*map(_part, run.split("/")))
        clocks = view.tables.clocks
        began_s = clocks.began_unix_s
        for node, table in view.tables.nodes.items():
            target = place / _part(node)
            try:
                target.mkdir(parents=True, exist_ok=True)
                path = target / f"events.out.tfevents.{int(began_s):010d}.edgegossip"
                with path.open("wb") as file:
                    for piece in _records(
                        _events(table, [began_s + clocks.of(node, t_s) for t_s in table.columns["t_s"]])
                    ):
                        file.write(piece)
            except OSError as error:
                raise HostError(f"cannot write {target}: {error.strerror}") from None
            written.append(target)
    return written


def _part(name: str) -> str:
    """One part of a path, whatever the name is; no two names become the same."""
    if not name.strip("."):
        return name.replace(".", "%2E") or "%"
    return _ODD.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), name)


def _events(table: Table, times_s: Sequence[float]) -> Iterator[bytes]:
    """Event messages: the version first, then one a round, with its time of day."""
    yield _double(1, times_s[0]) + _bytes(3, b"brain.Event:2")
    columns = [(_bytes(1, name.encode()), _single(c)) for name, c in table.columns.items() if name != "t_s"]
    for row, step in enumerate(table.step):
        values = [
            _bytes(1, tag + _varint(2 << 3 | 5) + struct.pack("<f", c[row]))
            for tag, c in columns
            if np.isfinite(c[row])
        ]
        yield _double(1, times_s[row]) + _varint(2 << 3) + _varint(step) + _bytes(5, b"".join(values))


def _single(column: Sequence[float]) -> NDArray[np.float32]:
    """What no float32 holds is infinite, and not told."""
    with np.errstate(over="ignore"):
        return np.asarray(column, np.float64).astype(np.float32)


def _records(messages: Iterator[bytes]) -> Iterator[bytes]:
    while batch := [message for _, message in zip(range(_AT_ONCE), messages, strict=False)]:
        heads = [struct.pack("<Q", len(message)) for message in batch]
        for head, head_crc, message, crc in zip(heads, masked_crc32c(heads), batch, masked_crc32c(batch), strict=True):
            yield b"".join((head, struct.pack("<I", head_crc), message, struct.pack("<I", crc)))


def masked_crc32c(messages: Sequence[bytes]) -> list[int]:
    """Return the masked CRC-32C of each message. Messages of one length are done side by side, a
    byte of all of them at a time."""
    out = [0] * len(messages)
    lengths: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        lengths.setdefault(len(message), []).append(place)
    for length, places in lengths.items():
        data = np.frombuffer(b"".join(messages[p] for p in places), np.uint8).reshape(len(places), length)
        for place, crc in zip(places, _crc32c(data), strict=True):
            out[place] = (((int(crc) >> 15) | (int(crc) << 17)) + _MASK_DELTA) & 0xFFFFFFFF
    return out


def _table() -> NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(_POLYNOMIAL), crc >> 1).astype(np.uint32)
    return crc


_TABLE = _table()


def _crc32c(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint8[n, length] -> uint32[n]."""
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(data.T):
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)
