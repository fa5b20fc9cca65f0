"""A trained model on disk: what travelled and what stayed on the board, in one file by the names
of its `state_dict`.

What was trained for hours is not thrown away for want of room: first checkpoints give way that are
older than the model, then the board waits for somebody to free space, and says so."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import __version__
from edgegossip.layout import Layout
from edgegossip.modelfile import ModelFile, write_model
from edgegossip.telemetry.records import Sink
from edgegossip.types import DataError, HostError, NodeId, Round, UsageError, Vec

if TYPE_CHECKING:
    from edgegossip.node.keeper import Keeper

PATIENCE_S = 3600.0
AGAIN_S = 5.0  # between two tries, each of which is told
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(HostError):
    """There is no room for the file."""


def save_model(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> None:
    """Write a model, see `modelfile.write_model`. Raises HostError, DiskFull when that is why."""
    try:
        write_model(path, arrays, about)
    except OSError as error:
        kind = DiskFull if error.errno in _FULL else HostError
        raise kind(f"cannot save the model to {path}: {error.strerror}") from None


def about_model(board: NodeId, round: Round, travels: int) -> Mapping[str, str]:
    """What a run says in a model's file: whose it is, after how many rounds, and how many of its
    tensors, counted from the first, travel."""
    return {"board": board, "round": str(round), "travels": str(travels), "written_by": f"edgegossip {__version__}"}


def load_model(path: Path, layout: Layout) -> Vec:
    """The vector of what travels in a model's file. Raises DataError when the file is unreadable or
    of another model."""
    try:
        return vector_of(ModelFile(path), layout)
    except KeyError as error:
        raise DataError(f"cannot read a model from {path}: it has no tensor {error}") from None
    except UsageError as error:
        raise DataError(f"cannot read a model from {path}: {error}") from None


def vector_of(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> Vec:
    """The vector of what travels, from arrays by the names of the `state_dict`. Raises KeyError for
    a tensor that is not there, UsageError for one of another shape."""
    return layout.flatten({t.name: _real(arrays[t.name], len(t.shape)) for t in layout.tensors})


def _real(array: NDArray[Any], dimensions: int) -> NDArray[Any]:
    """A complex tensor as it travels: its real and imaginary parts in a last dimension."""
    if array.dtype.kind != "c" or array.ndim + 1 != dimensions:
        return array
    return np.stack([array.real, array.imag], -1)


def save_final(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    about: Mapping[str, str],
    keeper: Keeper | None,
    sink: Sink,
) -> None:
    """Write a board's model; `about` as of `about_model`. The newest checkpoint stays as long as
    the model is not safe and it may be needed: it goes when it is of an earlier round and larger
    than the model. Raises HostError, on a full disk after PATIENCE_S."""
    round = int(about["round"])
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return save_model(path, arrays, about)
        except DiskFull as error:
            if keeper is not None and (keeper.make_room() or keeper.give_way(round, _at_most_bytes(arrays))):
                continue
            if time.monotonic() >= until_s:
                raise
            text = f"{error}: free some space there; this board holds its model and tries again every {AGAIN_S:.0f} s"
            sink.event(about["board"], "waiting", text)
            time.sleep(AGAIN_S)


def _at_most_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the most bytes of the file: the values, and heads of each tensor in it and in the
    archive."""
    return sum(array.nbytes for array in arrays.values()) + 1024 * (len(arrays) + 4)
