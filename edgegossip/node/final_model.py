"""A trained model on disk: named float32 tensors in one .npz file, written whole or not at all.

What was trained for hours is not thrown away for want of room: first checkpoints give way that are
older than the model, then the board waits for somebody to free space, and says so."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout
from edgegossip.profiling.files import replacing
from edgegossip.profiling.records import Sink
from edgegossip.types import DataError, HostError, LocalError, NodeId, Round, Vec

if TYPE_CHECKING:
    from edgegossip.node.keeper import Keeper

PATIENCE_S = 3600.0
AGAIN_S = 5.0  # between two tries, each of which is told
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(HostError):
    """There is no room for the file."""


def save_model(path: Path, layout: Layout, x: Vec) -> None:
    """Write x, float32[n], by tensor name. Temporary file, fsync, rename, fsync of the folder.
    Raises HostError, DiskFull when that is why."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, **layout.views(x))  # type: ignore[arg-type]
    except OSError as error:
        kind = DiskFull if error.errno in _FULL else HostError
        raise kind(f"cannot save the model to {path}: {error.strerror}") from None


def load_model(path: Path, layout: Layout) -> Vec:
    """The vector that `save_model` wrote. Raises DataError when the file is unreadable or of
    another model."""
    try:
        return layout.flatten(load_tensors(path))
    except LocalError as error:
        raise DataError(f"cannot read a model from {path}: {error}") from None


def load_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors that `save_model` wrote, by name. Raises DataError when the file is unreadable."""
    from zipfile import BadZipFile  # here: nothing that a board needs while it waits

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise DataError(f"cannot read a model from {path}: {error}") from None


def save_final(
    path: Path, layout: Layout, model: Vec, round: Round, keeper: Keeper | None, node: NodeId, sink: Sink
) -> None:
    """`round`: how far the model is. The newest checkpoint stays as long as the model is not safe
    and it may be needed: it goes when it is of an earlier round and larger than the model. Raises
    HostError, on a full disk after PATIENCE_S."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return save_model(path, layout, model)
        except DiskFull as error:
            if keeper is not None and (keeper.make_room() or keeper.give_way(round, _at_most_bytes(layout))):
                continue
            if time.monotonic() >= until_s:
                raise
            text = f"{error}: free some space there; this board holds its model and tries again every {AGAIN_S:.0f} s"
            sink.event(node, "waiting", text)
            time.sleep(AGAIN_S)


def _at_most_bytes(layout: Layout) -> int:
    """Return the most bytes of the file: 4 a value, and heads of each tensor in it and in the
    archive."""
    return 4 * layout.size + 1024 * (len(layout.tensors) + 4)
