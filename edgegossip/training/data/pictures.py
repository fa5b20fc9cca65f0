"""Pictures, of a folder or of a column: what a file becomes, and what all of them are.

    grey, colour, palette, CMYK   as Pillow converts them to one channel or to three
    transparent                   laid on white, as who looks at it sees it
    grey of more than 8 bits      only with data.params.range, for nobody knows what is white
    turned (EXIF)                 as the camera was held
    of several frames             refused: nobody knows which is meant

Every picture is decoded once when they are opened, as training does it later, so one that is cut
off is known before the first round; after that each is decoded when it is needed, and memory does
not grow with their number.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.recipe import DataSection
from edgegossip.training.data.base import Batch, Examples, ItemInputs, Items
from edgegossip.types import ConfigError, DataError, HostError

PARAMS = ("size", "grey", "range")  # of data.params
File: TypeAlias = tuple[str, Path | BytesIO]  # what an error calls it, and where it is
_TRANSPARENT = ("LA", "PA", "RGBA", "RGBa")
_AT_A_TIME = 64  # files, while they are looked through
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class PictureForm:
    """Says what pictures are brought to."""

    size: tuple[int, int] | None  # height and width; None: their own, which then is the same of all
    grey: bool  # one channel; else red, green and blue
    span: tuple[float, float] | None = None  # what becomes 0 and 255, of more than 8 bits

    @classmethod
    def of(cls, section: DataSection) -> PictureForm:
        """Read data.params and data.shape. Raises ConfigError, and HostError without Pillow."""
        if find_spec("PIL") is None:
            raise HostError(f"data.name = {section.name} needs Pillow for pictures: pip install pillow")
        grey = section.params.get("grey", False)
        if type(grey) is not bool:
            raise ConfigError(f"data.params.grey = {grey!r}: say true or false")
        channels = 1 if grey else 3
        if section.shape and (len(section.shape) != 3 or section.shape[0] != channels):
            raise ConfigError(
                f"data.shape = {section.shape}: pictures are [{channels}, height, width] (grey pictures have one channel, "
                "data.params.grey = true)"
            )
        return cls(_size(section), grey, _span(section.params.get("range")))


def _size(section: DataSection) -> tuple[int, int] | None:
    """Height and width that pictures are brought to; None: nothing is said. Raises ConfigError."""
    declared = (section.shape[1], section.shape[2]) if section.shape else None
    if "size" not in section.params:
        return declared
    given = section.params["size"]
    sides = [given, given] if type(given) is int else given
    fits = isinstance(sides, list) and all(type(v) is int and 0 < v <= 8192 for v in sides)
    if not fits or len(sides) != 2:
        raise ConfigError(f"data.params.size = {given!r}: say [height, width], or one number for both, from 1 to 8192")
    if declared is not None and tuple(sides) != declared:
        raise ConfigError(f"data.params.size = {given!r}, but data.shape = {section.shape}; leave one out")
    return sides[0], sides[1]


def _span(given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    numbers = isinstance(given, list) and all(type(v) in (int, float) and math.isfinite(v) for v in given)
    if not numbers or len(given) != 2 or not given[0] < given[1]:
        raise ConfigError(
            f"data.params.range = {given!r}: say [black, white], two numbers of which the second is larger"
        )
    return float(given[0]), float(given[1])


class Decoded(NamedTuple):
    """Is a picture as training takes it, and what it was."""

    pixels: NDArray[np.uint8]  # [channels, height, width]
    kind: str  # such as "PNG RGB"
    size: tuple[int, int]  # width and height, as stored


def decode(file: File, form: PictureForm) -> Decoded:
    """Read one picture. Raises DataError that names it."""
    from PIL import Image, ImageOps

    name, place = file
    mode = "L" if form.grey else "RGB"
    try:
        with Image.open(place) as opened:
            kind, size = f"{opened.format} {opened.mode}", opened.size
            if getattr(opened, "is_animated", False) and opened.format != "MPO":  # a camera's: the first is the picture
                raise DataError(f"{name} has several frames: save the one that is meant as a picture of its own")
            if form.size is not None:  # a JPEG need not be decoded in full; it may lie on its side
                opened.draft(None, (2 * max(form.size), 2 * max(form.size)))
            picture: Any = _in_bytes(name, ImageOps.exif_transpose(opened), form.span).convert(mode)
        if form.size is not None and picture.size != (form.size[1], form.size[0]):
            picture = picture.resize((form.size[1], form.size[0]), Image.Resampling.BILINEAR)
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise anything
        raise DataError(f"{name} cannot be read as a picture: {error}") from None
    pixels = np.asarray(picture, np.uint8)
    return Decoded(pixels[None] if form.grey else np.ascontiguousarray(pixels.transpose(2, 0, 1)), kind, size)


def _in_bytes(name: str, picture: Any, span: tuple[float, float] | None) -> Any:
    """The picture with values of 8 bits and nothing transparent."""
    from PIL import Image

    if picture.mode not in ("I", "F") and not picture.mode.startswith("I;16"):
        if span is not None:
            raise DataError(f"{name} has 8 bits a channel, and data.params.range is for pictures of more; leave it out")
        if picture.mode in _TRANSPARENT or "transparency" in picture.info:
            white = Image.new("RGBA", picture.size, "white")
            return Image.alpha_composite(white, picture.convert("RGBA"))
        return picture
    values = np.asarray(picture).astype(np.float64)
    if span is None:
        raise DataError(
            f"{name} has {values.min():g} to {values.max():g} in more than 8 bits, of which nobody knows what is black and "
            "white: say data.params.range = [black, white], such as [0, 65535]"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{name} holds a NaN or an infinity")
    levels = np.clip((values - span[0]) / (span[1] - span[0]), 0.0, 1.0) * 255.0
    return Image.fromarray(np.rint(levels).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class _Statistics:
    """What each picture has in it, as training takes it."""

    sums: NDArray[np.int64]  # [n, channels]
    squares: NDArray[np.int64]
    ends: NDArray[np.uint8]  # [n, 2]: the least and the largest value
    kinds: Sequence[str]
    sizes: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, found: Sequence[tuple[Any, ...]]) -> _Statistics:
        sums, squares, ends, kinds, sizes = zip(*found, strict=True)
        return cls(np.stack(sums), np.stack(squares), np.array(ends, np.uint8), kinds, sizes)


@dataclass(frozen=True, slots=True)
class Pictures(Items):
    """Gives pictures, each decoded when it is needed, after all were looked through."""

    form: PictureForm
    statistics: _Statistics

    @classmethod
    def of(
        cls,
        file: Callable[[int], File],
        count: int,
        form: PictureForm,
        targets: NDArray[Any] | None,
        target: Callable[[int], NDArray[Any]] | None = None,
    ) -> Pictures:
        """Decode picture 0 to `count` - 1 once. `target`: makes the target of one, where they are
        not at hand. Raises DataError that names those that cannot be read."""
        statistics, size = _look_through(file, count, form)
        form = replace(form, size=size)

        def item(k: int) -> Batch:
            given = targets[k] if targets is not None else target(k) if target is not None else None
            return Batch(decode(file(k), form).pixels, given)

        return cls(targets, ItemInputs(item, count), form, statistics)

    @override
    def only(self, indices: NDArray[np.int64]) -> Pictures:
        s = self.statistics
        kept = replace(s, sums=s.sums[indices], squares=s.squares[indices])
        fewer = Items.only(self, indices)
        return replace(self, targets=fewer.targets, inputs=fewer.inputs, statistics=kept)

    @override
    def known_sums(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        assert self.form.size is not None  # of all that were looked through
        pixels = len(self) * math.prod(self.form.size)
        return pixels, self.statistics.sums.sum(0).astype(np.float64), self.statistics.squares.sum(0).astype(np.float64)

    @override
    def account(self) -> dict[str, Any]:
        sizes = sorted(set(self.statistics.sizes), key=math.prod)
        shown = [f"{width}x{height}" for width, height in sizes]
        least, most = (int(v) for v in (self.statistics.ends[:, 0].min(), self.statistics.ends[:, 1].max()))
        return {
            **self.told,
            "pictures": dict(Counter(self.statistics.kinds).most_common()),
            "sizes": shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}, {len(shown)} different",
            "range": [least, most],
        }


def check_together(parts: Sequence[Examples], names: Sequence[str]) -> None:
    """Raise DataError for pictures of a training and a test part (`names`) that have another size,
    or other channels."""
    shown = [(part, name) for part, name in zip(parts, names, strict=True) if isinstance(part, Pictures)]
    if len({(part.form.size, part.form.grey) for part, _ in shown}) > 1:
        said = " and ".join(
            f"{list(part.form.size or ())}{' and grey' * part.form.grey} in {name}" for part, name in shown
        )
        raise DataError(
            f"pictures are {said}: say what all are brought to, data.params.size = [height, width] (and grey = true or false)"
        )


def _look_through(file: Callable[[int], File], count: int, form: PictureForm) -> tuple[_Statistics, tuple[int, int]]:
    """Decode all, on as many cores as there are, with no more than a few in memory."""
    found, broken, size, first = [], [], form.size, ""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def look(one: File) -> tuple[Any, ...] | DataError:
        try:
            pixels, kind, stored = decode(one, form)
        except DataError as error:
            return error
        values = pixels.reshape(len(pixels), -1).astype(np.int64)
        ends = (pixels.min(), pixels.max())
        return pixels.shape[1:], (values.sum(1), np.square(values).sum(1), ends, kind, stored)

    with ThreadPoolExecutor(workers) as pool:  # Pillow decodes without Python's lock
        for start in range(0, count, _AT_A_TIME):
            files = [file(k) for k in range(start, min(start + _AT_A_TIME, count))]
            for (name, _), seen in zip(files, pool.map(look, files), strict=True):
                if isinstance(seen, DataError):
                    broken.append((name, seen))
                    continue
                size, first = size or seen[0], first or name
                if seen[0] != size:
                    raise DataError(
                        f"{name} is {seen[0][1]}x{seen[0][0]} and {first} is {size[1]}x{size[0]}: say what all pictures are "
                        "brought to, data.params.size = [height, width]"
                    )
                found.append(seen[1])
    if broken:
        also = ", ".join(name for name, _ in broken[1:_MOST_NAMED])
        more = f" and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
        raise DataError(f"{broken[0][1]}" + (f" (and so with {also}{more})" if also else ""))
    assert size is not None  # there is a picture
    return _Statistics.of(found), size
