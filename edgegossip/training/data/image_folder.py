"""`data.name = "image-folder"`: pictures in folders that are named after their class.

    DIR/train/CLASS/*.jpg and DIR/test/CLASS/*.jpg     with a test set (or val/)
    DIR/CLASS/*.jpg                                    without one (see data.test_share)
    DIR/*.jpg                                          without classes, for an autoencoder

A class has the pictures of its folder and of all folders below that. What is no picture, hidden, or
left by a system is passed over, and `edgegossip data describe` counts it; whatever else may not be
meant so is refused, with its name. Names are compared as Unicode composes them (NFC): a Mac writes
letters with accents as two.

data.params: size = [height, width] or one number for both; grey = true for one channel; range =
[black, white] for pictures of more than 8 bits (`pictures`). The size is data.shape's where that is
declared; where nothing is said, all pictures have one. Needs Pillow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edgegossip.recipe import DataSection
from edgegossip.training.data import schema
from edgegossip.training.data.base import Board
from edgegossip.training.data.custom import Parts
from edgegossip.training.data.folders import own_folder
from edgegossip.training.data.pictures import PARAMS, PictureForm, Pictures, check_together
from edgegossip.training.names import check_params
from edgegossip.types import DataError

# Whoever has such a name must be a picture: what Pillow cannot read is not passed over.
_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff"),
    *(".jpe", ".jfif", ".heic", ".heif", ".avif", ".jxl", ".jp2"),
)
_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")  # the first that is there is the test set
_LEFT_BEHIND = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found")  # by macOS, a NAS, Windows, Linux


def check(section: DataSection) -> None:
    """Raise ConfigError for unknown or contradicting parameters, HostError without Pillow."""
    check_params("data.params", section.name, section.params, PARAMS)
    PictureForm.of(section)


def locate(section: DataSection, folder: str) -> None:
    """Raise DataError unless the pictures are there, each in the folder of a class. Decodes
    none."""
    _find(own_folder("image-folder", folder), section)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Look through the pictures. Raises DataError where there is none, and for those that cannot be
    read."""
    root, form = own_folder("image-folder", folder), PictureForm.of(section)
    parts, classes, skipped = _find(root, section)
    numbers = schema.numbered(f"image-folder in {root}", classes, section) if classes else {}
    made = [_pictures(part, numbers, form) for part in parts]
    check_together(made, [str(part.folder) for part in parts])
    folders = Counter(_shown(str(p.parent.relative_to(root))) for part in parts for p in part.paths)
    told = {"folders": dict(folders), "skipped": dict(skipped)}
    return replace(made[0], told=told), made[1] if len(made) > 1 else None, tuple(numbers)


@dataclass(slots=True)
class _Part:
    """Is what was found below a folder: pictures by the name of their class, and those of none."""

    folder: Path
    classes: dict[str, list[Path]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)  # of the classes
    stray: list[Path] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        return [path for paths in self.classes.values() for path in paths] or self.stray


def _pictures(part: _Part, numbers: Mapping[str, int], form: PictureForm) -> Pictures:
    paths = part.paths
    labels = [numbers[name] for name, found in part.classes.items() for _ in found]
    targets = np.array(labels, np.int64) if numbers else None
    return Pictures.of(lambda k: (str(paths[k]), paths[k]), len(paths), form, targets)


def _find(root: Path, section: DataSection) -> tuple[list[_Part], list[str], Mapping[str, int]]:
    """The training and perhaps the test part, the names of the classes, and how much was passed
    over, by reason."""
    walk = _Walk()
    labels = schema.class_names(section)
    parts = [walk.part(folder) for folder in _parts(root, labels, walk)]
    if not labels and not any(paths for part in parts for paths in part.classes.values()):
        for part in parts:
            walk.skipped.update(f"{folder.name}/ (no pictures)" for folder in part.folders.values())
            part.classes.clear()
            if not part.stray:
                raise DataError(
                    f"{part.folder}: there are no pictures, in it or in folders of classes ({', '.join(_SUFFIXES)})"
                )
        return parts, [], walk.skipped
    for part in parts:
        _check_part(part, labels)
    classes = sorted({name for part in parts for name in part.classes})
    _check_classes(root, parts, classes, section)
    return parts, classes, walk.skipped


def _parts(root: Path, labels: tuple[str, ...], walk: _Walk) -> list[Path]:
    """The folders of the training and the test part; `root` where it has the classes itself. A
    folder that is a declared class is no part."""
    entries = list(walk.entries(root))
    named = {
        wanted: [
            p for p in entries if p.name.casefold() == wanted and p.is_dir() and schema.composed(p.name) not in labels
        ]
        for wanted in (*_TRAIN, *_TEST)
    }
    trains, tests = ([p for wanted in of for p in named[wanted]] for of in (_TRAIN, _TEST))
    if not trains and not tests:
        return [root]
    doubled = trains if len(trains) > 1 else next((found for found in named.values() if len(found) > 1), [])
    if doubled:
        raise DataError(
            f"{doubled[0]} and {doubled[1]} are both there: keep one (if these are classes, name all in data.labels)"
        )
    if not trains:
        raise DataError(f"{tests[0]} is there, and no train/ beside it (if it is a class, name all in data.labels)")
    for other in entries:
        if other in tests[1:]:
            walk.skipped[f"{other.name}/ (the test set is {tests[0].name}/)"] += len(walk.below(other))
        elif other not in (*trains, *tests) and (found := walk.pictures(other)):
            raise DataError(
                f"{found[0]} lies beside {trains[0].name}/, and would not be read: move it below a class in there (if "
                f"{trains[0].name} is a class, name all in data.labels)"
            )
    return [trains[0], *tests[:1]]


def _check_part(part: _Part, labels: tuple[str, ...]) -> None:
    if part.stray:
        more = f", as do {len(part.stray) - 1} more" if len(part.stray) > 1 else ""
        raise DataError(f"{part.stray[0]} lies in no folder of a class{more}: move it into one, or away")
    if not any(part.classes.values()):
        raise DataError(f"{part.folder}: there are no pictures in folders of classes ({', '.join(_SUFFIXES)})")
    empty = next((part.folders[name] for name, paths in part.classes.items() if not paths and name not in labels), None)
    if empty is not None:
        raise DataError(
            f"{empty} would be a class and holds no pictures: remove it, or name all classes in data.labels"
        )


def _check_classes(root: Path, parts: list[_Part], classes: list[str], section: DataSection) -> None:
    """Raises DataError for names that are hardly meant to be two classes, and for what cannot be
    learnt."""
    if section.labels:
        return
    if pair := schema.twins(classes):
        raise DataError(
            f"{root}: folders {pair[0]!r} and {pair[1]!r} would be two classes: give them one name (or name both in "
            "data.labels)"
        )
    if only := [name for name in classes if not parts[0].classes.get(name)]:
        raise DataError(
            f"{parts[-1].folders[only[0]]} is a class without pictures to train on: if that is meant, name all classes in "
            "data.labels"
        )
    if len(classes) == 1 and not section.classes and section.target != "none":
        folder = parts[0].folders[classes[0]]
        raise DataError(
            f"{folder} is the only class, and with one there is nothing to learn: name all classes in data.labels; or if the "
            f"classes lie below it, set data.dir = {folder}"
        )


class _Walk:
    """Goes through folders, in an order that is the same on every file system."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._met: dict[Path, Path] = {}

    def part(self, folder: Path) -> _Part:
        part = _Part(folder)
        for entry in self.entries(folder):
            if not entry.is_dir():
                part.stray += self.pictures(entry)
                continue
            name = schema.composed(entry.name)
            if _shown(name) != name:
                raise DataError(f"{folder} has a folder {name!a}, whose name is not in UTF-8: rename it")
            if name in part.folders:
                raise DataError(
                    f"{folder} has two folders {name!r}, written {part.folders[name].name!a} and {entry.name!a}: "
                    "make one of them"
                )
            part.folders[name], part.classes[name] = entry, self.below(entry)
        return part

    def entries(self, folder: Path) -> Iterator[Path]:
        """What a user sees in a folder."""
        real = folder.resolve()
        again = real in self._met
        if self._met.setdefault(real, folder) != folder:
            raise DataError(f"{folder} is the folder {self._met[real]} once more, by a link: remove one of them")
        try:
            found = sorted(folder.iterdir(), key=lambda p: (schema.composed(p.name), p.name))
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from None
        for entry in found:
            left = "hidden" if entry.name.startswith(".") else f"{entry.name}/" if entry.name in _LEFT_BEHIND else ""
            if not left:
                yield entry
            elif not again:
                self.skipped[left] += 1

    def below(self, folder: Path) -> list[Path]:
        return [path for entry in self.entries(folder) for path in self.pictures(entry)]

    def pictures(self, entry: Path) -> list[Path]:
        """The pictures below a folder, or the file itself if it is one. Raises DataError for what
        has such a name and is no file."""
        if entry.is_dir():
            return self.below(entry)
        suffix = entry.suffix.lower()
        if suffix in _SUFFIXES:
            if not entry.is_file():
                raise DataError(f"{entry} is no file, or a link that leads nowhere: remove it")
            return [entry]
        self.skipped[f"{suffix or entry.name} (no picture)"] += 1
        return []


def _shown(name: str) -> str:
    """A name of the file system as it can be printed."""
    return name.encode(errors="replace").decode()
