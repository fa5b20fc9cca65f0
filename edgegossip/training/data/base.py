"""What every data set is to the rest of the package: examples that are taken by index, or streamed.

Inputs stay as they are stored (uint8 for images, files for pictures) and are normalised batch by
batch, so a board holds its own share only, and of a memory map or a folder of pictures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.agreement import Fact, names_fact
from edgegossip.types import DataError

IGNORED = -100  # a place in a mask or a sequence that does not count; torch's own default


@dataclass(frozen=True, slots=True)
class Board:
    """Says whose data are opened: a board of the run, or the coordinator with number -1."""

    name: str = "board-0"
    index: int = 0


class Batch(NamedTuple):
    """Holds some examples as stored: inputs [k, *shape] and targets [k, ...], or None without."""

    inputs: NDArray[Any]
    targets: NDArray[Any] | None


class Inputs(Protocol):
    """Gives inputs of many examples; they may live on disk."""

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return inputs [len(indices), *shape], C-contiguous, in the order asked for."""


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same values as this machine computes with them, C-contiguous: no bytes in another
    order, and float64 for wider numbers, which torch lacks. As a rule the array itself."""
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    # not ascontiguousarray, which makes a scalar a vector
    return np.asarray(array, np.float64 if wide else array.dtype.newbyteorder("="), order="C")


@dataclass(frozen=True, slots=True)
class InMemory(Inputs):
    """Holds inputs that are one array (or a memory map), [n, *shape]."""

    array: NDArray[Any]

    def __len__(self) -> int:
        return len(self.array)

    @override
    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return native(self.array[indices])


@dataclass(frozen=True, slots=True)
class Selected(Inputs):
    """Gives some of other inputs, which stay where they are (torch's `Subset`)."""

    inputs: Inputs
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    @override
    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self.inputs.take(self.indices[indices])


@dataclass(frozen=True, slots=True)
class Examples:
    """Holds n inputs with their targets, in any order one likes (torch's map-style `Dataset`).

    targets is [n, ...] (labels: int64[n], 0..classes-1), or None where there is none, or where a
    target comes only together with its input (`Items`). `told`: what their reader has to say of
    them, such as the columns that one is made of."""

    targets: NDArray[Any] | None
    inputs: Inputs
    told: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def labels(self) -> NDArray[Any]:
        """Return the targets, where it is known that there are some."""
        assert self.targets is not None
        return self.targets

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """Return these examples, in this order."""
        return Batch(
            self.inputs.take(indices),
            None if self.targets is None else native(self.targets[indices]),
        )

    def only(self, indices: NDArray[np.int64]) -> Examples:
        """Return these examples alone. Nothing is read or copied."""
        targets = None if self.targets is None else self.targets[indices]
        return replace(self, targets=targets, inputs=Selected(self.inputs, indices))

    def apart(self, indices: NDArray[np.int64]) -> Examples:
        """Return these examples alone, read into memory, so that nothing of the others is held."""
        inputs, targets = self.take(indices)
        return Examples(targets, InMemory(inputs), told=self.told)

    def known_sums(self) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
        """Return count, sums and squares of the values of each channel, where they are known
        without reading (`schema.Sums`)."""
        return None

    def account(self) -> dict[str, Any]:
        """Return what was read and what was not, by words, where there is something to say."""
        return dict(self.told)


@dataclass(frozen=True, slots=True)
class ItemInputs(Inputs):
    """Gives inputs of `count` examples that come one at a time; `item` makes one as a `Batch`
    without its first dimension."""

    item: Callable[[int], Batch]
    count: int

    def __len__(self) -> int:
        return self.count

    @override
    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return stacked([self.item(int(k)) for k in indices]).inputs


@dataclass(frozen=True, slots=True)
class Items(Examples):
    """Gives examples one at a time, input and target together, each time anew: a folder of images,
    a torch `Dataset`."""

    inputs: ItemInputs

    @override
    def take(self, indices: NDArray[np.int64]) -> Batch:
        return stacked([self.inputs.item(int(k)) for k in indices])

    @override
    def only(self, indices: NDArray[np.int64]) -> Items:
        targets = None if self.targets is None else self.targets[indices]
        item, kept = self.inputs.item, np.asarray(indices, np.int64)
        return replace(self, targets=targets, inputs=ItemInputs(lambda k: item(int(kept[k])), len(kept)))

    @override
    def apart(self, indices: NDArray[np.int64]) -> Items:
        """Do as `only`: they are read when they are needed, as they may be larger than memory."""
        return self.only(indices)


@dataclass(frozen=True, slots=True)
class ExampleStream:
    """Gives examples without an index, of which there may be any number, such as a torch
    `IterableDataset` or `DataLoader`.

    `begin` starts from the front: one item an example, or where `batched`, one a batch. `length` is
    the number of examples of one pass, 0 where nobody knows."""

    begin: Callable[[], Iterator[Batch]]
    batched: bool = False
    length: int = 0


Part: TypeAlias = Examples | ExampleStream


def in_memory(part: Part) -> NDArray[Any] | None:
    """Return the array of inputs that are in memory as a whole; None where they are mapped,
    streamed, read one by one, or some of others."""
    inputs = part.inputs if isinstance(part, Examples) else None
    return inputs.array if isinstance(inputs, InMemory) and not isinstance(inputs.array, np.memmap) else None


def with_targets(part: Part, turned: Callable[[NDArray[Any]], NDArray[Any]]) -> Part:
    """Return a part whose targets [n, ...] are `turned` into others, at once where they are at
    hand, else as they come."""

    def batch(taken: Batch) -> Batch:
        return taken if taken.targets is None else Batch(taken.inputs, turned(np.asarray(taken.targets)))

    def one(taken: Batch) -> Batch:
        return taken if taken.targets is None else Batch(taken.inputs, turned(np.asarray(taken.targets)[None])[0])

    if isinstance(part, ExampleStream):
        change = batch if part.batched else one
        return replace(part, begin=lambda: map(change, part.begin()))
    targets = None if part.targets is None else turned(part.targets)
    if isinstance(part, Items):
        item = part.inputs.item
        return replace(part, targets=targets, inputs=replace(part.inputs, item=lambda k: one(item(k))))
    return replace(part, targets=targets)


@dataclass(frozen=True, slots=True)
class Description:
    """Says what is known of a data set without opening it.

    `target` is the kind of what a model is to give for one input:
        "class"     a label 0..classes-1                                int64[n]
        "places"    a label at each place: masks, tokens; -100 is none  int64[n, *target_shape]
        "labels"    which of `classes` labels apply                     bool[n, classes]
        "values"    numbers                                             float32[n, *target_shape]
        "tokens"    nothing given; inputs are whole numbers below `classes`: the next one
        "none"      nothing given: the input itself
    """

    shape: tuple[int, ...]  # one input; images are (channels, height, width)
    classes: int  # 0 where there are none
    mean: tuple[float, ...] = ()  # per channel, in stored units; empty: inputs are used as they are
    std: tuple[float, ...] = ()
    dtype: str = "uint8"  # uint8: images. float32: numbers. int64: tokens
    target: str = "class"
    target_shape: tuple[int, ...] = ()  # one target
    names: tuple[str, ...] = ()  # of the classes, where they have names
    declared: bool = True  # that there are these classes; else they are those found in the data
    columns: tuple[str, ...] = ()  # that an input is made of, where it comes from a table
    # where mean and std come from: "none", "board", "declared"; "together": the model has its own
    scale: str = "declared"

    @property
    def outputs(self) -> int:
        """Count the values that a model gives for one input; for "places" and "tokens" at each
        place."""
        if self.target in ("class", "places", "labels", "tokens"):
            return self.classes
        return math.prod(self.target_shape if self.target == "values" else self.shape)

    def facts(self) -> Mapping[str, Fact]:
        """Return what boards compare of their data before they train together; see `agreement`."""
        places = "x".join(map(str, self.target_shape))
        target = {
            "class": f"{self.classes} classes",
            "places": f"{self.classes} classes at {places} places",
            "labels": f"{self.classes} labels of which any may apply",
            "values": f"float32 {places}".strip(),
            "tokens": f"{self.classes} classes of tokens, the next one",
            "none": "the input itself",
        }[self.target]
        facts: dict[str, Fact] = {
            "input": f"{self.dtype} {'x'.join(map(str, self.shape))}",
            "target": target,
            "scale": self._scale(),
        }
        if self.names:
            facts["labels"] = names_fact(self.names)
        if self.columns:
            facts["columns"] = names_fact(self.columns)
        return facts

    def _scale(self) -> str:
        """Normalisation in words; by a board's own statistics it differs, and is meant to."""
        if self.scale == "together":
            return "together"
        if self.scale == "board" or not self.mean:
            return "by each board's own mean and std" if self.mean else "none"
        mean, std = (", ".join(f"{v:.4g}" for v in values[:8]) for values in (self.mean, self.std))
        more = ", ..." if len(self.mean) > 8 else ""
        return f"mean {mean}{more} std {std}{more}"


@dataclass(frozen=True, slots=True)
class DataSet:
    """Holds a training part, and a test part where there is one."""

    name: str
    about: Description
    train: Part
    test: Examples | None

    def indexed(self) -> Examples:
        """Return the training part, where it can be partitioned by index. Raises DataError for a
        stream."""
        if isinstance(self.train, ExampleStream):
            raise DataError(
                f"{self.name} is a stream, which cannot be shared out by index: give each board a "
                'stream of its own, and set data.partition = "local"'
            )
        return self.train


def stacked(items: list[Batch]) -> Batch:
    """Return examples as one batch. Raises DataError when their shapes differ."""
    try:
        inputs = np.stack([item.inputs for item in items])
        if any(item.targets is None for item in items):
            return Batch(inputs, None)
        return Batch(inputs, np.stack([np.asarray(item.targets) for item in items]))
    except ValueError:
        shapes = sorted({str(np.shape(item.inputs)) for item in items})
        raise DataError(
            f"examples of one batch must have one shape, and these have {', '.join(shapes[:4])} (or "
            "their targets differ): pad or resize them"
        ) from None
