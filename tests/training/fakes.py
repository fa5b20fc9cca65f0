"""Generated files in the published layouts, and short recipes. Sparse or compressible: they cost
next to nothing."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.recipe import DataSection, Recipe
from edgegossip.training.data import DataSet, schema
from edgegossip.training.data.custom import parts

RECORD = 3073  # bytes
CIFAR_NAMES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


def recipe(**sections: dict[str, Any]) -> Recipe:
    """recipe(run={"nodes": 2}) is the default recipe with that one key changed."""
    base = Recipe()
    return replace(base, **{name: replace(getattr(base, name), **keys) for name, keys in sections.items()})


def opened(given: Any, **keys: Any) -> DataSet:
    """A data set as `open_data` makes it of what a user's function returned."""
    section = DataSection(name="mine:data", partition="local", **keys)
    train, test, names = parts("mine:data", given)
    about, train, test = schema.describe("mine:data", train, test, names, section)
    return DataSet("mine:data", schema.scaled(about, train, section), train, test)


def write_cifar(folder: Path) -> Path:
    """Sparse binary files: record k < 20 of file f has label (k + f) mod 10 and pixel bytes f; the
    rest is zeros."""
    out = folder / "cifar-10-batches-bin"
    out.mkdir(parents=True)
    for f, name in enumerate(CIFAR_NAMES):
        with (out / f"{name}.bin").open("wb") as file:
            for k in range(20):
                file.write(bytes([(k + f) % 10]) + bytes([f]) * (RECORD - 1))
            file.truncate(10_000 * RECORD)
    return out


def write_idx(folder: Path, *, zipped: bool = True) -> Path:
    """The four idx files: label k mod 10; all pixels of image k are k mod 251."""
    folder.mkdir(parents=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = np.broadcast_to((np.arange(count) % 251).astype(np.uint8)[:, None], (count, 784)).tobytes()
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        put(folder / f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x803, count, 28, 28) + images, zipped)
        put(folder / f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x801, count) + labels, zipped)
    return folder


def put(path: Path, content: bytes, zipped: bool) -> Path:
    path = path.with_name(path.name + ".gz") if zipped else path
    path.write_bytes(gzip.compress(content, 1, mtime=0) if zipped else content)
    return path
