"""What every data set is to the rest of the package: labels at hand, inputs taken by index.

Inputs stay as they are stored (uint8 for images) and are normalised batch by batch, so a board holds its own share
only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import DataError


class Inputs(Protocol):
    """Inputs of many examples; may live on disk."""

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """uint8 or float32 [len(indices), *shape], C-contiguous, in the order asked for."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """Inputs that are one array (or a memory map), [n, *shape]."""

    array: NDArray[Any]

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return np.ascontiguousarray(self.array[indices])


@dataclass(frozen=True, slots=True)
class Examples:
    """n inputs with their labels."""

    labels: NDArray[np.int64]  # int64[n], 0..classes-1
    inputs: Inputs

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of a data set without opening it."""

    shape: tuple[int, ...]  # one input; images are (channels, height, width)
    classes: int
    mean: tuple[float, ...] = ()  # per channel, in stored units; empty: inputs are used as they are
    std: tuple[float, ...] = ()
    dtype: str = "uint8"  # uint8: images. float32: numbers. int64: tokens
    target: str = "class"  # class, places, labels, values, tokens or none
    target_shape: tuple[int, ...] = ()  # one target

    @property
    def outputs(self) -> int:
        """How many values a model gives for one input (for "places" and "tokens": at each place)."""
        if self.target in ("class", "places", "labels", "tokens"):
            return self.classes
        return math.prod(self.target_shape if self.target == "values" else self.shape)


@dataclass(frozen=True, slots=True)
class DataSet:
    """A training and a test part."""

    name: str
    about: Description
    train: Examples
    test: Examples

    @property
    def classes(self) -> int:
        return self.about.classes


def check_counts(source: str, images: int, labels: int, top_label: int, classes: int) -> None:
    """Raises DataError unless there are as many labels as images, at least one, and every label is a class."""
    if images != labels or images == 0:
        raise DataError(f"{source}: expected as many labels as images and at least one, found {images} and {labels}")
    if top_label >= classes:
        raise DataError(f"{source}: expected labels 0 to {classes - 1}, found {top_label}")
