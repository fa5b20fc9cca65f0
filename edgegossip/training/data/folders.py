"""Where data sets lie: in the recipe's data.dir, or in the data home."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from edgegossip.files import expanded
from edgegossip.types import DataError


def data_root(folder: str = "") -> Path:
    """Return `folder`, or where it is empty the data home: $EDGEGOSSIP_DATA, else
    $XDG_DATA_HOME/edgegossip, else ~/.local/share/edgegossip."""
    if folder:
        return expanded(folder)
    if own := os.environ.get("EDGEGOSSIP_DATA"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME") or expanded("~/.local/share")
    return Path(base) / "edgegossip"


def find_folder(name: str, folder: str, subfolders: Sequence[str], missing: Callable[[Path], Sequence[str]]) -> Path:
    """Find the first of `folder`'s sub-folders, or else `folder` itself, where `missing` lists no
    file. `folder`: as for `data_root`.

    Raises DataError that names the folder, a file missed there and the command that fetches the
    data."""
    root = data_root(folder)
    candidates = [root / sub for sub in subfolders] + [root]
    lacks = {candidate: missing(candidate) for candidate in candidates}
    for candidate, files in lacks.items():
        if not files:
            return candidate
    partly, files = min(lacks.items(), key=lambda item: len(item[1]))
    fetch = f"edgegossip data download {name}" + (f" --dir {folder}" if folder else "")
    raise DataError(
        f"data set {name} is not in {root}: {partly / files[0]} is missing; fetch it with `{fetch}` or set data.dir"
    )


def own_folder(name: str, folder: str) -> Path:
    """Return the folder of a user's own data. Raises DataError when it is not there."""
    path = expanded(folder)
    if path.is_dir():
        return path
    if path.is_file():
        raise DataError(
            f"data.dir = {folder} is a file: name a folder that holds this board's {name} data, and no others'"
        )
    nearest = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    raise DataError(
        f"data.dir = {folder}: there is no such folder of {name} data; the nearest that is there is {nearest}"
    )
