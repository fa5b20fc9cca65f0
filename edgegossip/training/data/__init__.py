"""Data sets by name, a user's own files, or a user's own function: opened on a board.

A new data set is a reader and one line here. Readers are imported on use; none of the package's own
needs torch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data import schema
from edgegossip.training.data.base import Batch, Board, DataSet, Description, Examples, ExampleStream, Part
from edgegossip.training.names import is_custom_function, unknown
from edgegossip.training.rng import Purpose, permutation
from edgegossip.types import ConfigError, DataError

__all__ = [
    "Batch",
    "Board",
    "DataSet",
    "Description",
    "Examples",
    "Stream",
    "boards_of",
    "describe",
    "is_custom",
    "is_declared",
    "locate",
    "open_data",
]

P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class DataEntry:
    """Names the `module` that has load(name, dir, about) -> DataSet and locate(name, dir), which
    raises DataError when files are missing."""

    module: str
    about: Description


# Means and standard deviations are those of the training part, per channel, in stored units.
_ENTRIES = {
    "digits": DataEntry("vision", Description((1, 8, 8), 10, (4.885,), (6.017,))),
    "mnist": DataEntry("vision", Description((1, 28, 28), 10, (33.32,), (78.57,))),
    "fashion-mnist": DataEntry("vision", Description((1, 28, 28), 10, (72.94,), (90.02,))),
    "ag-news": DataEntry(
        "text",
        Description((128,), 4, dtype="int64", names=("World", "Sports", "Business", "Sci/Tech")),
    ),
    "sentence-length": DataEntry(
        "text",
        Description((48,), 6, dtype="int64", names=("5-8", "9-12", "13-16", "17-20", "21-25", "26-28")),
    ),
    "cifar10": DataEntry(
        "vision",
        Description((3, 32, 32), 10, (125.3, 122.95, 113.87), (62.99, 62.09, 66.70)),
    ),
}

# Readers of files that a user has: `module`.load(section, dir, board) -> Parts and
# `module`.locate(section, dir), which raises ConfigError, DataError and HostError.
_READERS = {
    "image-folder": "image_folder",
    "csv": "tables",
    "parquet": "tables",
    "huggingface": "huggingface",
    "npz": "npz",
}


def is_custom(section: DataSection) -> bool:
    """Tell whether the data are a user's own files or function, of which only its reader knows what
    is in them."""
    return is_custom_function(section.name) or section.name in _READERS


def boards_of(nodes: int) -> list[Board]:
    """Return the boards of a local fleet: board-0, board-1, ...; zero-padded so that they sort in
    order."""
    width = len(str(nodes - 1))
    return [Board(f"board-{k:0{width}}", k) for k in range(nodes)]


def folder_of(section: DataSection, board: Board) -> str:
    """Return data.dir with {board} and {index} filled in."""
    folder = section.dir.replace("{board}", board.name)
    return folder.replace("{index}", str(board.index))


def locate(section: DataSection, board: Board | None = None) -> None:
    """Raise ConfigError for an unknown name and contradictions between keys, and DataError for
    files that are not there. Reads no data.

    `board`: whose files are looked for; None: those that all boards share out, none with
    data.partition = local."""
    schema.class_names(section)
    _check_sharing(section)
    if board is None and section.partition != "local":
        board = Board()
    if is_custom_function(section.name):
        from edgegossip.training.data import custom

        custom.find(section.name)
        return
    if section.name in _READERS:
        if not section.dir:
            raise ConfigError(
                f"data.name = {section.name} needs data.dir, the folder that holds the data; "
                "{board} in it stands for the board's name"
            )
        module = importlib.import_module(f"edgegossip.training.data.{_READERS[section.name]}")
        module.check(section)
        if board is not None:
            module.locate(section, folder_of(section, board))
        return
    entry = _entry(section.name)
    if board is not None:
        module = importlib.import_module(f"edgegossip.training.data.{entry.module}")
        module.locate(section.name, folder_of(section, board))


def is_declared(section: DataSection) -> bool:
    """Tell whether the recipe says all that a model is built by, so that nobody needs data for
    it."""
    return not is_custom(section) or schema.declared(section) is not None


def describe(section: DataSection, board: Board | None = None) -> Description:
    """Return input shape, classes and the rest of what a model is built by.

    Opens nothing for a data set of the package and where the recipe declares enough; else the
    `board`'s own data."""
    if is_custom(section):
        return schema.declared(section) or open_data(section, board or Board()).about
    return _scaled(_entry(section.name).about, None, section)


def open_data(section: DataSection, board: Board | None = None) -> DataSet:
    """Open the data set that a recipe names, as `board` has it, cut to `train_examples` and
    `test_examples`.

    Raises ConfigError for an unknown name, DataError for missing or corrupt files, HostError for a
    missing optional package, UsageError for a user's own function that fails."""
    board = board or Board()
    folder = folder_of(section, board)
    if not is_custom(section):
        entry = _entry(section.name)
        module = importlib.import_module(f"edgegossip.training.data.{entry.module}")
        data: DataSet = module.load(section.name, folder, entry.about)
        train = _first(data.train, section.train_examples)
        test = None if data.test is None else _first(data.test, section.test_examples)
        return DataSet(section.name, _scaled(data.about, train, section), train, test)
    reader = _READERS.get(section.name)
    module = importlib.import_module(f"edgegossip.training.data.{reader or 'custom'}")
    if reader:
        module.check(section)
    train, test, class_names = module.load(section, folder, board)
    source = section.name if is_custom_function(section.name) else f"{section.name} in {folder}"
    train = _first(train, section.train_examples)
    if test is None and section.test_share:
        train, test = _held_out(source, train, section.test_share)
    about, train, test = schema.describe(source, train, test, class_names, section)
    about = schema.scaled(about, train, section)
    return DataSet(source, about, train, None if test is None else _first(test, section.test_examples))


def _entry(name: str) -> DataEntry:
    if name not in _ENTRIES:
        raise unknown("data.name", name, [*_ENTRIES, *_READERS, "module:function"])
    return _ENTRIES[name]


def _scaled(about: Description, train: Part | None, section: DataSection) -> Description:
    """A data set of the package with another normalisation than its own, if that is asked for."""
    own = section.normalise in ("auto", "declared") and not section.mean and not section.std
    return about if own else schema.scaled(about, train, section)


def _check_sharing(section: DataSection) -> None:
    """Raises ConfigError where boards would share out data that are not the same on each."""
    per_board = next((mark for mark in ("{board}", "{index}") if mark in section.dir), None)
    if per_board and section.partition != "local":
        raise ConfigError(
            f"data.dir = {section.dir} is another folder on each board, and with data.partition = "
            f'{section.partition} boards share out one data set: set data.partition = "local"'
        )
    if bool(section.partitioner) != (section.partition == "flwr"):
        raise ConfigError(
            f"data.partition = {section.partition} and data.partitioner = {section.partitioner!r}: "
            'set both for a partitioner of flwr-datasets, such as data.partition = "flwr" and '
            'data.partitioner = "IidPartitioner"'
        )


def _first(part: P, count: int) -> P:
    """The first `count` examples; 0 means all. Of a stream: of each pass."""
    if not count:
        return part
    if isinstance(part, ExampleStream):
        if part.batched:
            raise ConfigError(
                f"data.train_examples = {count}: a DataLoader makes batches of its own; let its data "
                "set end earlier, and set 0"
            )
        return replace(part, begin=lambda: islice(part.begin(), count), length=min(part.length, count))
    if count >= len(part):
        return part
    first = part.only(np.arange(count, dtype=np.int64))
    if count > 1 and len(_classes(part)) > 1 == len(_classes(first)):
        raise DataError(
            f"the first {count} of {len(part)} examples are all of one class, as they lie in the order of their classes: set "
            "data.train_examples (or test_examples) to 0, for all"
        )
    return first  # type: ignore[return-value]  # `only` keeps the kind


def _classes(part: Examples) -> NDArray[Any]:
    """The different labels, where targets are labels."""
    targets = part.targets
    return (
        np.unique(targets) if targets is not None and targets.ndim == 1 and targets.dtype == np.int64 else np.empty(0)
    )


def _held_out(source: str, train: Part, share: float) -> tuple[Examples, Examples]:
    """Part of the examples as a test set: the same ones whenever these data are opened, whatever
    the run's seed, so that a model goes on from a checkpoint without having seen its test set."""
    if isinstance(train, ExampleStream):
        raise ConfigError(
            f"data.test_share = {share:g}: {source} is a stream, of which nothing can be held out; "
            "return a test part beside it"
        )
    held = round(share * len(train))
    if not 0 < held < len(train):
        raise DataError(
            f"data.test_share = {share:g} of {len(train)} examples of {source} are {held}, which "
            "leaves one part empty; choose another share, or 0 for no test set"
        )
    order = permutation(0, Purpose.PARTITION, len(train))
    return train.only(np.sort(order[held:])), train.only(np.sort(order[:held]))
