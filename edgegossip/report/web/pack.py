"""A document and columns of numbers as few bytes that a browser unpacks quickly.

    zlib( u32 size of the document | the document as JSON | columns )          little-endian

A column is float32, or float64 for "t_s" and "step", with its bytes in planes: first all lowest
bytes, then the next. Planes of slowly changing numbers are nearly constant, which is what zlib
takes out. What was measured keeps COARSE_BITS bits after the leading one (0.1 %), losses and
accuracies OTHER_BITS (0.002 %), because the rest is noise that no one can see and no one can
compress; numbers that are whole and exact in float32 stay exact."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

COARSE = ("time/", "cpu/", "sys/", "codec/", "net/")
COARSE_BITS, OTHER_BITS = 9, 15  # of the 23 that float32 has
TICKS_A_SECOND = 1e5  # of t_s: whole numbers take half the bytes
EXACT = ("step", "t_s")
_LEVEL = 5  # of zlib: beyond, it takes twice the time for one percent


def pack(document: Mapping[str, Any], columns: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> bytes:
    """`columns[node][name]` float64[rows]. The document gets a key "blocks" more: {node: {name:
    [offset, rows, bytes a number]}} with offsets from the end of the document."""
    blocks: dict[str, dict[str, list[int]]] = {}
    parts: list[bytes] = []
    offset = 0
    for node, named in columns.items():
        blocks[node] = {}
        for name, column in named.items():
            data = _planes(_rounded(name, column))
            blocks[node][name] = [offset, column.size, len(data) // max(column.size, 1)]
            parts.append(data)
            offset += len(data)
    head = json.dumps(
        {**document, "blocks": blocks}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()
    return zlib.compress(b"".join([struct.pack("<I", len(head)), head, *parts]), _LEVEL)


def _rounded(name: str, column: NDArray[np.float64]) -> NDArray[Any]:
    if name == "t_s":
        column = np.rint(column * TICKS_A_SECOND)
    if name in EXACT:
        return column.astype("<f8")
    with np.errstate(over="ignore"):
        single = column.astype("<f4")
    known = single[np.isfinite(single)]
    if (known == np.rint(known)).all():
        return single
    dropped = 23 - (COARSE_BITS if name.startswith(COARSE) else OTHER_BITS)
    bits = single.view("<u4")
    rounded = ((bits + np.uint32(1 << (dropped - 1))) >> np.uint32(dropped)) << np.uint32(dropped)
    return np.where(np.isfinite(single), rounded, bits).astype("<u4").view("<f4")


def _planes(column: NDArray[Any]) -> bytes:
    return column.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, dict[str, NDArray[Any]]]]:
    """What `pack` was given, as the page reads it. For those who take the data out of a page
    again."""
    plain = zlib.decompress(data)
    (size,) = struct.unpack_from("<I", plain)
    document, base = json.loads(plain[4 : 4 + size]), 4 + size
    columns: dict[str, dict[str, NDArray[Any]]] = {}
    for node, named in document.pop("blocks").items():
        columns[node] = {name: _column(plain, base, *place) for name, place in named.items()}
        if "t_s" in columns[node]:
            columns[node]["t_s"] = columns[node]["t_s"] / TICKS_A_SECOND
    return document, columns


def _column(plain: bytes, base: int, offset: int, rows: int, width: int) -> NDArray[Any]:
    planes = np.frombuffer(plain, np.uint8, rows * width, base + offset).reshape(width, rows)
    return np.ascontiguousarray(planes.T).view(f"<f{width}").reshape(rows)
