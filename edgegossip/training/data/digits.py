"""The embedded default: 1,797 handwritten digits, 8x8 pixels of 0..16, in 44 kB.

The test part of the UCI "Optical Recognition of Handwritten Digits" data set (Alpaydin, Kaynak
1998), in the order of the copy that scikit-learn carries; digits-LICENSE.txt beside the file has
both licences. Split: of each class, in file order, every fifth example is a test example (355), the
others train (1,442). The same writers are in both parts, so this is an easy task.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgegossip.training.data.base import DataSet, Description, Examples, InMemory
from edgegossip.types import DataError

_FILE = Path(__file__).with_name("digits.npz")
_TEST_EVERY = 5


def locate(name: str, folder: str) -> None:
    """Always there; `folder` is not looked at. Raises DataError for a damaged installation."""
    if not _FILE.is_file():
        raise DataError(f"{_FILE} is missing; install the package again")


def load(name: str, folder: str, about: Description) -> DataSet:
    locate(name, folder)
    with np.load(_FILE, allow_pickle=False) as archive:
        images, labels = archive["images"][:, None], archive["labels"].astype(np.int64)
    rank = np.empty(len(labels), np.int64)  # the how-manieth of its class each example is
    for c in range(about.classes):
        members = np.flatnonzero(labels == c)
        rank[members] = np.arange(len(members))
    test = rank % _TEST_EVERY == _TEST_EVERY - 1
    return DataSet(
        name,
        about,
        Examples(labels[~test], InMemory(images[~test])),
        Examples(labels[test], InMemory(images[test])),
    )
