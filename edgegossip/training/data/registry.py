"""The list of data sets. A new one is a loader file and one line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

from edgegossip.recipe import DataSection
from edgegossip.training.data.base import DataSet, Description, Examples
from edgegossip.training.names import is_own, unknown


@dataclass(frozen=True, slots=True)
class Entry:
    """`module`.load(name, dir, about) -> DataSet and `module`.locate(name, dir) -> folder, which raises DataError
    when files are missing."""

    module: str
    about: Description


# Means and standard deviations are those of the training part, per channel, in stored units.
_ENTRIES = {
    "digits": Entry("digits", Description((1, 8, 8), 10, (4.885,), (6.017,))),
    "mnist": Entry("idx", Description((1, 28, 28), 10, (33.32,), (78.57,))),
    "fashion-mnist": Entry("idx", Description((1, 28, 28), 10, (72.94,), (90.02,))),
    "ag-news": Entry("text", Description((128,), 4, (), ())),
    "sentence-length": Entry("text", Description((48,), 6, (), ())),
    "cifar10": Entry("cifar10", Description((3, 32, 32), 10, (125.3, 122.95, 113.87), (62.99, 62.09, 66.70))),
}


def names() -> tuple[str, ...]:
    """Data sets of the package."""
    return tuple(_ENTRIES)


def _entry(name: str) -> Entry:
    if name not in _ENTRIES:
        raise unknown("data.name", name, [*_ENTRIES, "module:function"])
    return _ENTRIES[name]


def locate(section: DataSection) -> None:
    """Raises ConfigError for an unknown name and DataError for files that are not there. Reads no data."""
    if is_own(section.name):
        from edgegossip.training.data import own

        own.find(section.name)
        return
    entry = _entry(section.name)
    importlib.import_module(f"edgegossip.training.data.{entry.module}").locate(section.name, section.dir)


def describe(section: DataSection) -> Description:
    """Input shape and classes. Opens nothing for a data set of the package; a user's own has to be loaded."""
    return open_data(section).about if is_own(section.name) else _entry(section.name).about


def open_data(section: DataSection) -> DataSet:
    """The data set that a recipe names, cut to `train_examples` and `test_examples`.

    Raises ConfigError for an unknown name, DataError for missing or corrupt files."""
    if is_own(section.name):
        from edgegossip.training.data import own

        data = own.load(section.name, section.dir)
    else:
        entry = _entry(section.name)
        module = importlib.import_module(f"edgegossip.training.data.{entry.module}")
        data = module.load(section.name, section.dir, entry.about)
    return replace(
        data, train=_first(data.train, section.train_examples), test=_first(data.test, section.test_examples)
    )


def _first(examples: Examples, count: int) -> Examples:
    """The first `count` examples; 0 means all. Inputs need no cutting: they are taken by index."""
    return replace(examples, labels=examples.labels[:count]) if count else examples
