"""`data.name = "npz"`: numpy's own files in data.dir, in one of three arrangements.

    train_inputs.npy, train_targets.npy, test_inputs.npy, test_targets.npy    memory-mapped
    train.npz and test.npz, each with the arrays inputs and targets
    data.npz, with the arrays train_inputs, train_targets, test_inputs, test_targets

Targets and the test part may be missing. Pickled arrays are refused: they can run code.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.modelfile import entry_of
from edgegossip.recipe import DataSection
from edgegossip.training.data.base import Board
from edgegossip.training.data.custom import Parts, parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.names import check_params
from edgegossip.types import DataError

_NAMES = ("train_inputs", "train_targets", "test_inputs", "test_targets")
_SHOWN = 4  # files, where none is one of ours


def check(section: DataSection) -> None:
    """Raise ConfigError for parameters: there are none."""
    check_params("data.params", section.name, section.params, ())


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless one of the arrangements is there."""
    root = own_folder("npz", folder)
    there = [name for name in ("train_inputs.npy", "train.npz", "data.npz") if (root / name).is_file()]
    if not there:
        found = sorted(path.name for path in root.glob("*.np[yz]"))[:_SHOWN]
        raise DataError(
            f"{root}: expected train_inputs.npy, train.npz or data.npz; none is there{', but ' * bool(found)}{', '.join(found)}"
        )
    if len(there) > 1:
        raise DataError(f"{root}: {there[0]} and {there[1]} are both there, and one would not be read: keep one")
    if there[0].endswith(".npy"):
        for path in sorted(root.glob("*.npy")):
            if path.name.startswith(("train_", "test_")) and path.stem not in _NAMES:
                near = did_you_mean(path.stem, _NAMES)
                raise DataError(
                    f"{path} would not be read: its name is none of {', '.join(_NAMES)}{near} (rename it, or move it away)"
                )


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Open the files. Raises DataError for what numpy cannot read."""
    locate(section, folder)
    root = own_folder("npz", folder)
    found: dict[str, NDArray[Any]] = {}
    if (root / "train_inputs.npy").is_file():
        for name in _NAMES:
            if (path := root / f"{name}.npy").is_file():
                found[name] = _open(path)
    elif (root / "train.npz").is_file():
        for part in ("train", "test"):
            if (path := root / f"{part}.npz").is_file():
                found |= {f"{part}_{name}": array for name, array in _open(path).items()}
    else:
        found = _open(root / "data.npz")
    unknown = next((name for name in found if name not in _NAMES), None)
    if unknown is not None or "train_inputs" not in found:
        there = ", ".join(found) or "none"
        raise DataError(f"{root}: expected the arrays {', '.join(_NAMES)} (the first at least), found {there}")
    if "test_targets" in found and "test_inputs" not in found:
        raise DataError(f"{root}: there are test_targets, and no test_inputs: add these, or remove the targets")
    return parts(f"npz in {root}", tuple(found.get(name) for name in _NAMES))


def _open(path: Path) -> Any:
    """An array of a .npy file, mapped; the arrays of a .npz file by name."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with np.load(path, allow_pickle=False) as archive:
            return {name: entry_of(archive, name) for name in archive.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read by numpy: {error}") from None
