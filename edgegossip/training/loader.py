"""A board's data loader: which examples each step sees, and how they become a batch.

Epoch e of a board is one seeded permutation of its examples, cut into whole batches; step t
(counted over all rounds) takes batch t mod b of epoch t div b, where b is the number of whole
batches. The examples left over sit out that epoch. So the batches of a round are a pure function of
(seed, node, round), and resuming needs no sampler state. A stream has no index: it is mixed in a
buffer, and begins anew when a board does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from edgegossip.recipe import Recipe
from edgegossip.training.data import schema
from edgegossip.training.data.base import (
    IGNORED,
    Batch,
    DataSet,
    Description,
    Examples,
    ExampleStream,
    Part,
    in_memory,
    stacked,
)
from edgegossip.training.partition import Partitions, partition_data
from edgegossip.training.rng import Purpose, permutation, words
from edgegossip.types import DataError

# What a target becomes, by its kind (`Description.target`). Labels of which any may apply are
# numbers, as binary cross-entropy takes them.
_TARGETS = {"class": np.int64, "places": np.int64, "labels": np.float32, "values": np.float32}


class DataLoader(Protocol):
    """Gives a board's training examples, a batch at a time."""

    @property
    def holds(self) -> int:
        """The number of the board's examples, by which its updates are weighted; 0 where nobody
        knows."""

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """The number of examples of each class, int64[classes], where that is known without reading
        inputs."""

    @property
    def part(self) -> Part:
        """The board's own training examples."""

    def sums(self) -> schema.Sums:
        """Add up the board's inputs. Raises DataError for those that are not finite, and for
        a stream."""

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from the start of training; its size may vary."""


def make_loader(data: DataSet, recipe: Recipe, node: int, share: NDArray[np.int64] | None = None) -> DataLoader:
    """Return the loader of board number `node`: of all of `data` where the partition is local, else
    of its partition alone, which is copied out of an array.

    `share`: that partition, indices into data.train, where it is at hand. Raises ConfigError and
    DataError."""
    section, seed = recipe.data, recipe.run.seed
    about, augmentation = data.about, Augmentation(seed, node) if section.augment else None
    if isinstance(data.train, ExampleStream):
        if section.partition != "local":
            data.indexed()  # says why not
        return _StreamLoader(data, recipe, node, augmentation)
    if section.partition == "local" and share is None:
        mine = data.train
    else:
        mine = data.train.apart(partition_data(data, recipe)[node] if share is None else share)
    return _IndexedLoader(
        data.name,
        mine,
        about,
        Sampler(len(mine), recipe.training.batch_size, seed, node),
        augmentation,
        checked=_is_checked(data.train),  # a share is a copy, and no word on where it came from
    )


def shares_of(data: DataSet, recipe: Recipe) -> Partitions | None:
    """Return every board's partition of one data set, or None where each board has its own."""
    return None if recipe.data.partition == "local" else partition_data(data, recipe)


def in_order(source: str, examples: Examples, about: Description, first: int, size: int) -> Iterator[Batch]:
    """Yield the `first` examples in their order, `size` at a time: a test set, of which no more is
    in memory than that."""
    for start in range(0, first, size):
        chosen = np.arange(start, min(start + size, first), dtype=np.int64)
        yield _fit(source, examples.take(chosen), about, None if _is_checked(examples) else chosen)


class Sampler:
    """Orders one board's `size` examples, in batches of at most `batch_size` (torch's
    `BatchSampler`)."""

    def __init__(self, size: int, batch_size: int, seed: int, node: int) -> None:
        self.size, self.seed, self.node = size, seed, node
        self.batch_size = min(batch_size, size)
        self.batches_per_epoch = size // self.batch_size
        self._epoch, self._order = -1, np.empty(0, np.int64)  # a cache of the last permutation

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return indices into the partition, int64[batch_size], for a step counted from the start
        of training."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            order = permutation(self.seed, Purpose.BATCHES, self.size, self.node, epoch)
            self._epoch, self._order = epoch, order
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]


PADDING = 4  # pixels on each side


def crop_and_flip(images: NDArray[Any], random: NDArray[np.uint64]) -> NDArray[Any]:
    """Augment images [n, channels, height, width] as the CIFAR experiments do: a random crop after
    4 pixels of zero padding, and a random horizontal flip (He et al. 2016, "Deep residual
    learning", section 4.2). Returns a new array of that shape and dtype.

    `random` uint64[n] holds one word an image: bit 0 flips, bits 8-31 and 32-55 choose the row and
    the column of the crop. Padding is zero in stored units (black), that is, before
    normalisation."""
    n, _, height, width = images.shape
    offsets = 2 * PADDING + 1
    rows = (random >> np.uint64(8) & np.uint64(0xFFFFFF)).astype(np.int64) % offsets
    columns = (random >> np.uint64(32) & np.uint64(0xFFFFFF)).astype(np.int64) % offsets
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    crops = sliding_window_view(padded, (height, width), axis=(2, 3))[np.arange(n), :, rows, columns]
    flipped = (random & np.uint64(1)).astype(bool)
    crops[flipped] = crops[flipped, :, :, ::-1]
    return crops


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Crops and flips one board's images at random, as a pure function of (seed, node, step)."""

    seed: int
    node: int

    def __call__(self, images: NDArray[Any], step: int) -> NDArray[Any]:
        """Return the images of a step, [n, channels, height, width], as they are augmented."""
        return crop_and_flip(images, words(self.seed, Purpose.AUGMENT, len(images), self.node, step))


@dataclass(frozen=True, slots=True)
class Normalize:
    """Gives (x - mean) / std per channel, in stored units; x itself where the data set has no mean.
    Tokens stay the whole numbers that they are (torchvision's `Normalize`)."""

    mean: Tensor  # float32[channels, 1, 1, ...] or empty
    inverse_std: Tensor
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, about: Description) -> Normalize:
        """Return the normalisation of a data set."""
        shape = (len(about.mean), *(1,) * (len(about.shape) - 1))
        std = torch.tensor(about.std, dtype=torch.float32)
        mean = torch.tensor(about.mean, dtype=torch.float32)
        dtype = torch.int64 if about.dtype == "int64" else torch.float32
        return cls(mean.reshape(shape), (1.0 / std).reshape(shape), dtype)

    def __call__(self, inputs: NDArray[Any]) -> Tensor:
        """Return stored inputs [batch, *shape] as a tensor of the same shape, in memory of its
        own."""
        if inputs.dtype.kind == "u" and inputs.dtype.itemsize > 1:  # torch has hardly any arithmetic for these
            inputs = inputs.astype(np.int64 if self.dtype == torch.int64 else np.float32)
        batch = torch.tensor(inputs, dtype=self.dtype)
        return batch.sub_(self.mean).mul_(self.inverse_std) if len(self.mean) else batch


class _IndexedLoader(DataLoader):
    """Gives batches of examples that can be taken in any order."""

    def __init__(
        self,
        source: str,
        examples: Examples,
        about: Description,
        sampler: Sampler,
        augmentation: Augmentation | None,
        *,
        checked: bool,
    ) -> None:
        self._source, self._examples, self._about = source, examples, about
        self._sampler, self._augmentation, self._checked = sampler, augmentation, checked

    @property
    @override
    def holds(self) -> int:
        return len(self._examples)

    @property
    @override
    def counts(self) -> NDArray[np.int64] | None:
        return schema.counts(self._examples, self._about)

    @property
    @override
    def part(self) -> Part:
        return self._examples

    @override
    def sums(self) -> schema.Sums:
        found = schema.Sums.of(self._examples)
        if not np.isfinite(found.squares).all():
            raise DataError(f"{self._source}: an input holds a NaN or an infinity")
        return found

    @override
    def batch(self, step: int) -> Batch:
        chosen = self._sampler.batch(step)
        taken = self._examples.take(chosen)
        inputs, targets = _fit(self._source, taken, self._about, None if self._checked else chosen)
        return Batch(self._augmentation(inputs, step) if self._augmentation else inputs, targets)


class _StreamLoader(DataLoader):
    """Gives batches of a stream. Single examples are mixed in a buffer of `data.shuffle_buffer`:
    each is drawn from it at random and the stream's next one takes its place, so one pass of the
    stream is one epoch, whatever its length. A stream of batches is taken as it is."""

    def __init__(self, data: DataSet, recipe: Recipe, node: int, augmentation: Augmentation | None) -> None:
        assert isinstance(data.train, ExampleStream)
        self._source, self._stream, self._about = data.name, data.train, data.about
        self._size, self._limit = recipe.training.batch_size, recipe.data.shuffle_buffer
        self._seed, self._node, self._augmentation = recipe.run.seed, node, augmentation
        self._items: Iterator[Batch] = iter(())
        self._buffer: list[Batch] = []
        self._drawn = 0

    @property
    @override
    def holds(self) -> int:
        return self._stream.length

    @property
    @override
    def counts(self) -> NDArray[np.int64] | None:
        return None

    @property
    @override
    def part(self) -> Part:
        return self._stream

    @override
    def sums(self) -> schema.Sums:
        raise DataError(f"{self._source} is a stream, which cannot be looked through first")

    @override
    def batch(self, step: int) -> Batch:
        taken = self._next() if self._stream.batched else stacked([self._draw() for _ in range(self._size)])
        drawn = np.arange(len(taken.inputs), dtype=np.int64)
        inputs, targets = _fit(self._source, taken, self._about, drawn)
        return Batch(self._augmentation(inputs, step) if self._augmentation else inputs, targets)

    def _next(self) -> Batch:
        """The stream's next item; after its last one, its first."""
        for _ in range(2):
            if (item := next(self._items, None)) is not None:
                return item
            self._items = self._stream.begin()
        raise DataError(f"{self._source}: the stream ends before its first example")

    def _draw(self) -> Batch:
        if not self._buffer:
            self._buffer.append(self._next())
        while len(self._buffer) < self._limit and (item := next(self._items, None)) is not None:
            self._buffer.append(item)
        random = words(self._seed, Purpose.BATCHES, 1, self._node, self._drawn)[0]
        self._drawn += 1
        place = int(random % np.uint64(len(self._buffer)))
        self._buffer[place], self._buffer[-1] = self._buffer[-1], self._buffer[place]
        return self._buffer.pop()


def _is_checked(examples: Examples) -> bool:
    """Whether all of these were looked at when they were opened (`schema.describe`)."""
    return in_memory(examples) is not None and not isinstance(examples.targets, np.memmap)


def _fit(source: str, batch: Batch, about: Description, places: NDArray[np.int64] | None) -> Batch:
    """The batch with targets of the type that a task takes. `places`: which examples these are,
    by which they are named; None: they were looked at before. Raises DataError for what is not as
    the data set was when it was opened."""
    inputs, targets = batch
    if about.target in ("tokens", "none"):
        targets = None
    if places is not None:
        _look(source, inputs, targets, about, places)
    if targets is not None:
        targets = targets.astype(_TARGETS[about.target], copy=False)
    return Batch(inputs, targets)


def _look(
    source: str, inputs: NDArray[Any], targets: NDArray[Any] | None, about: Description, places: NDArray[np.int64]
) -> None:
    if inputs.shape[1:] != about.shape:
        raise DataError(
            f"{source}: an input has the shape {list(inputs.shape[1:])}, the first one had "
            f"{list(about.shape)}: pad or resize them"
        )
    if (inputs.dtype.kind == "f" or about.dtype == "int64") and not (fine := schema.finite(inputs)).all():
        raise DataError(f"{source}: an input holds a NaN or an infinity, or is too large ({_which(~fine, places)})")
    if about.target == "tokens":
        _look_at_classes(source, "token", inputs, about.classes)
    if (targets is None) != (about.target in ("tokens", "none")):
        raise DataError(f"{source}: an example has no target, and the first one had")
    if targets is None:
        return
    if targets.dtype.kind == "f" and not (fine := schema.finite(targets)).all():
        raise DataError(f"{source}: a target holds a NaN or an infinity, or is too large ({_which(~fine, places)})")
    if about.target in ("class", "places"):
        counted = targets if about.target == "class" else targets[targets != IGNORED]
        _look_at_classes(source, "label", counted, about.classes)


def _which(bad: NDArray[np.bool_], places: NDArray[np.int64]) -> str:
    return f"example {places[np.argwhere(bad)[0][0]]} of this board's, counted from 0"


def _look_at_classes(source: str, what: str, values: NDArray[Any], classes: int) -> None:
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < classes:
        worst = int(values.min()) if values.min() < 0 else int(values.max())
        raise DataError(
            f"{source}: found the {what} {worst}; with data.classes = {classes} they are 0 to {classes - 1}"
        )
