"""A user's own data: `data.name = "module:function"`.

The function is called with the recipe's data.dir (a str, "" when not set) and returns four numpy arrays
(train_inputs, train_labels, test_inputs, test_labels). Inputs are uint8 (images, (n, channels, height, width),
normalised by the package with the training part's mean and standard deviation per channel) or float32 (n, ...) (used
as they are); labels are whole numbers from 0. The number of classes is the largest label plus one. Every board calls
the function and keeps its share, so it must give every board the same arrays in the same order; memory-mapped arrays
keep the rest off the heap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.training.data.base import DataSet, Description, Examples, InMemory
from edgegossip.training.names import call_own, own_function
from edgegossip.types import DataError

_CHUNK = 4096  # examples looked at together, so that a memory map is never read as a whole


def find(spec: str) -> None:
    """Raises ConfigError unless `spec` names a function."""
    own_function("data.name", spec)


def load(spec: str, folder: str) -> DataSet:
    """Call the function and check what it gives. Raises LocalError when it fails, DataError for unfit arrays."""
    arrays = call_own(spec, own_function("data.name", spec), folder)
    if not isinstance(arrays, tuple | list) or len(arrays) != 4 or not all(isinstance(a, np.ndarray) for a in arrays):
        raise DataError(f"{spec} must return four numpy arrays: train_inputs, train_labels, test_inputs, test_labels")
    train_inputs, train_labels, test_inputs, test_labels = arrays
    train = _examples(f"{spec}, training part", train_inputs, train_labels)
    test = _examples(f"{spec}, test part", test_inputs, test_labels)
    if train_inputs.shape[1:] != test_inputs.shape[1:] or train_inputs.dtype != test_inputs.dtype:
        raise DataError(
            f"{spec}: training inputs are {train_inputs.dtype}{list(train_inputs.shape[1:])}, "
            f"test inputs {test_inputs.dtype}{list(test_inputs.shape[1:])}; expected the same"
        )
    classes = 1 + int(max(train.labels.max(), test.labels.max()))
    mean, std = _moments(train_inputs) if train_inputs.dtype == np.uint8 else ((), ())
    return DataSet(spec, Description(tuple(train_inputs.shape[1:]), classes, mean, std), train, test)


def _examples(source: str, inputs: NDArray[Any], labels: NDArray[Any]) -> Examples:
    if inputs.dtype not in (np.uint8, np.float32) or inputs.ndim < 2 or (inputs.dtype == np.uint8 and inputs.ndim != 4):
        raise DataError(
            f"{source}: expected inputs uint8[n, channels, height, width] or float32[n, ...], "
            f"found {inputs.dtype}{list(inputs.shape)}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != (len(inputs),) or not len(labels):
        raise DataError(
            f"{source}: expected one whole number as label for each of {len(inputs)} inputs (at least one), "
            f"found {labels.dtype}{list(labels.shape)}"
        )
    if labels.min() < 0:
        raise DataError(f"{source}: expected labels from 0, found {labels.min()}")
    for start in range(0, len(inputs), _CHUNK) if inputs.dtype == np.float32 else ():
        if not np.isfinite(inputs[start : start + _CHUNK]).all():
            raise DataError(f"{source}: inputs {start} to {start + _CHUNK - 1} hold a NaN or an infinity")
    return Examples(labels.astype(np.int64), InMemory(inputs))


def _moments(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel; a channel that never changes gets the deviation 1."""
    total, squares = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK].astype(np.float64)
        total += part.sum((0, 2, 3))
        squares += np.square(part).sum((0, 2, 3))
    count = images.size / images.shape[1]
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
