"""`data.name = "image-folder"`: pictures in folders that are named after their class.

    DIR/train/CLASS/*.jpg and DIR/test/CLASS/*.jpg     with a test set
    DIR/CLASS/*.jpg                                    without one (see data.test_share)
    DIR/*.jpg                                          without classes, for an autoencoder

data.params: size = [height, width] or one number for both; grey = true for one channel. The size is
data.shape's where that is declared, and that of the first picture where nothing is said. Pictures
are decoded when they are needed, so memory does not grow with their number. Needs Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data import schema
from edgegossip.training.data.base import Batch, Board, ItemInputs, Items
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.names import unknown
from edgegossip.types import ConfigError, DataError, HostError

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or contradicting parameters, HostError without Pillow."""
    _size(section)
    if find_spec("PIL") is None:
        raise HostError("data.name = image-folder needs Pillow: pip install pillow")


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless the folder is there."""
    own_folder("image-folder", folder)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """List the pictures; none is decoded. Raises DataError where there is none."""
    check(section)
    root = own_folder("image-folder", folder)
    train = root / "train" if (root / "train").is_dir() else root
    test = root / "test" if train != root and (root / "test").is_dir() else None
    parts = [part for part in (train, test) if part is not None]
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    numbers = schema.numbered(f"image-folder in {root}", classes, section) if classes else {}
    made: list[Items] = []
    for part in parts:
        size = made[0].inputs.item(0).inputs.shape[1:] if made else _size(section)
        made.append(_part(part, numbers, size, bool(section.params.get("grey", False))))
    return made[0], made[1] if test is not None else None, tuple(numbers)


def _folders(part: Path) -> list[Path]:
    return sorted(p for p in part.iterdir() if p.is_dir() and not p.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    """In an order that is the same on every file system."""
    seen = (p for p in folder.iterdir() if not p.name.startswith("."))
    return sorted(p for p in seen if p.suffix.lower() in _SUFFIXES)


def _part(part: Path, numbers: dict[str, int], size: Sequence[int] | None, grey: bool) -> Items:
    """The pictures below a folder, brought to one size: that of the first one, where none is
    given."""
    paths = _pictures(part) if not numbers else []
    targets: list[int] = []
    for folder in _folders(part) if numbers else ():
        found = _pictures(folder)
        paths += found
        targets += [numbers[folder.name]] * len(found)
    if not paths:
        raise DataError(f"{part}: there are no pictures, in it or in folders of classes ({', '.join(_SUFFIXES)})")
    height, width = size or _decode(paths[0], None, grey).shape[1:]
    labels = np.array(targets, np.int64) if numbers else None

    def item(k: int) -> Batch:
        picture = _decode(paths[k], (height, width), grey)
        return Batch(picture, None if labels is None else labels[k])

    return Items(labels, ItemInputs(item, len(paths)))


def _decode(path: Path, size: Sequence[int] | None, grey: bool) -> NDArray[np.uint8]:
    """uint8[channels, height, width] of one file, turned as the camera was held."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            mode = "L" if grey else "RGB"
            if size is not None:
                opened.draft(mode, (2 * size[1], 2 * size[0]))  # a JPEG need not be decoded in full
            picture: Any = ImageOps.exif_transpose(opened).convert(mode)
        if size is not None and picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's readers raise anything
        raise DataError(f"{path} cannot be read as a picture: {error}") from None
    pixels = np.asarray(picture, np.uint8)
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _size(section: DataSection) -> tuple[int, int] | None:
    """Height and width that pictures are brought to; None: nothing is said. Raises ConfigError."""
    params = section.params
    for key in params:
        if key not in ("size", "grey"):
            raise unknown("a key of data.params for image-folder", key, ("size", "grey"))
    channels = 1 if params.get("grey", False) else 3
    if section.shape and (len(section.shape) != 3 or section.shape[0] != channels):
        raise ConfigError(
            f"data.shape = {section.shape}: pictures are [{channels}, height, width] (grey pictures have one channel, "
            "data.params.grey = true)"
        )
    declared = (section.shape[1], section.shape[2]) if section.shape else None
    if "size" not in params:
        return declared
    given = params["size"]
    sides = [given, given] if type(given) is int else given
    fits = isinstance(sides, list) and all(type(v) is int and 0 < v <= 8192 for v in sides)
    if not fits or len(sides) != 2:
        raise ConfigError(f"data.params.size = {given!r}: say [height, width], or one number for both, from 1 to 8192")
    if declared is not None and tuple(sides) != declared:
        raise ConfigError(f"data.params.size = {given!r}, but data.shape = {section.shape}; leave one out")
    return sides[0], sides[1]
