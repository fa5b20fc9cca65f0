"""What one example is: found from the data, held against what the recipe declares.

What the recipe declares holds for every board, so boards that hold other classes build the same
model. What it leaves open is found here, on each board by itself, and compared when boards meet
(`Description.facts`).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.choices import did_you_mean
from edgegossip.recipe import DataSection
from edgegossip.training.data import labels
from edgegossip.training.data.base import (
    IGNORED,
    Batch,
    Description,
    Examples,
    ExampleStream,
    Items,
    Part,
    Selected,
    in_memory,
)
from edgegossip.types import ConfigError, DataError

MOST_CLASSES = 10_000_000  # as many as data.classes may be
_VALUES = 1 << 20  # numbers that are looked at together
_CHUNK = 4096  # rows of an array looked at together, so that a memory map is never read as a whole
_DECODED = 64  # the same of pictures
_CHANNELS = (1, 3, 4)  # of pictures: grey, colour, and with transparency
_SIDE = 8  # pixels that a picture has at least
_MIDDLE = 127.5  # of a byte: images go to -1..1 where nobody has agreed on anything better


def composed(name: str) -> str:
    """Return a name as Unicode composes it (NFC): a Mac writes a letter with an accent as two."""
    return unicodedata.normalize("NFC", name)


def class_names(section: DataSection) -> tuple[str, ...]:
    """Return the declared names of the classes, composed. Raises ConfigError when they contradict
    data.classes, or one is there twice."""
    names = tuple(map(composed, section.labels))
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if twice is not None:
        raise ConfigError(f"data.labels names {twice!r} twice; each class has one name")
    if section.target == "values" and (names or section.classes):
        raise ConfigError('data.target = "values" has no classes: leave data.classes and data.labels out')
    if names and section.classes and len(names) != section.classes:
        raise ConfigError(
            f"data.classes = {section.classes}, but data.labels has {len(names)} names; "
            f"leave data.classes out, or say {len(names)}"
        )
    return names


def twins(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two names of classes that differ in capitals or spaces alone, and are hardly meant to
    be two; None where there are none."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault("".join(name.casefold().split()), name)) != name:
            return other, name
    return None


def undeclared(what: str, near: str) -> DataError:
    """Return the error for a class that is not declared. `what` begins its sentence; `near`: what
    may be meant."""
    return DataError(f"{what} not one of data.labels{near} (rename it, or add it to data.labels on every board)")


def numbered(source: str, found: Sequence[str], section: DataSection) -> dict[str, int]:
    """Return the number of each class by its name: its place in data.labels, or among those found
    when nothing is declared. Raises DataError for a name that is not declared."""
    names = class_names(section) or tuple(sorted(set(found)))
    unknown = next((name for name in found if name not in names), None)
    if unknown is not None:
        raise undeclared(f"{source}: {unknown!r} is", did_you_mean(unknown, names))
    return {name: k for k, name in enumerate(names)}


def declared(section: DataSection) -> Description | None:
    """Return the description that the recipe gives without any data, or None where it leaves
    something open. So a coordinator without data knows the model."""
    names = class_names(section)
    classes = section.classes or len(names)
    target = section.target if section.target != "auto" else "class" if classes else ""
    if not section.shape or not target:
        return None
    if target in ("class", "places", "labels", "tokens") and not classes:
        return None
    dtype = section.dtype
    if dtype == "auto":
        dtype = "int64" if target == "tokens" else "uint8" if len(section.shape) == 3 else "float32"
    about = Description(
        shape=tuple(section.shape),
        classes=classes,
        dtype=dtype,
        target=target,
        target_shape=_declared_places(section, target, classes),
        names=names,
    )
    return scaled(about, None, section)


def _declared_places(section: DataSection, target: str, classes: int) -> tuple[int, ...]:
    if target == "labels":
        return (classes,)
    return tuple(section.target_shape) if target in ("values", "places") else ()


def describe(
    source: str, train: Part, test: Examples | None, names: Sequence[str], section: DataSection
) -> tuple[Description, Part, Examples | None]:
    """Return what one example of these parts is, without its normalisation, and the parts, whose
    targets are int64[n] where they are classes.

    `names`: of the classes, where the data themselves have names. Raises DataError where the parts
    do not fit each other, or not what is declared; ConfigError where only a declaration helps."""
    first = sample(source, train)
    if first.targets is not None and labels.are_classes(source, train, first.targets, section):
        train, test = labels.settled(source, train, test, named=bool(names), section=section)
        first = Batch(first.inputs, labels.as_labels(source, first.targets))
    dtype = _input_type(source, first.inputs, section)
    shape = first.inputs.shape[1:]
    if not shape:
        raise DataError(f"{source}: an input is a single number; reshape inputs to [n, 1]")
    if section.shape and tuple(section.shape) != shape:
        raise DataError(f"{source}: an input has the shape {list(shape)}, but data.shape = {section.shape}")
    if not section.shape and dtype != "int64":
        _check_channels(source, first.inputs)
    kind = _target_kind(source, first, dtype, section)
    parts = [(f"{source}, training part", train)]
    if test is not None:
        _check_alike(source, first, sample(source, test))
        parts.append((f"{source}, test part", test))
    for where, part in parts:
        unsaid = dtype == "int64" and section.dtype == "auto" and kind != "tokens"
        _check_numbers(where, part, dtype, tokens=unsaid)
    target_shape = () if first.targets is None else first.targets.shape[1:]
    shaped = tuple(section.target_shape) if kind in ("values", "places") else ()
    if shaped and shaped != target_shape:
        raise DataError(
            f"{source}: a target has the shape {list(target_shape)}, but data.target_shape = {section.target_shape}"
        )
    about = Description(
        shape=shape,
        classes=0,
        dtype=dtype,
        target=kind,
        target_shape=() if kind == "class" else target_shape,
        names=class_names(section) or tuple(names),
        declared=bool(section.classes or section.labels),
        columns=tuple(train.account().get("columns", ())) if isinstance(train, Examples) else (),
    )
    return replace(about, classes=_classes(parts, about, section)), train, test


def sample(source: str, part: Part) -> Batch:
    """Return the first example of a part, a batch of one. Raises DataError when there is none."""
    if isinstance(part, ExampleStream):
        first = next(part.begin(), None)
        if first is None or (part.batched and not len(first.inputs)):
            raise DataError(f"{source}: the stream ends before its first example")
        if not part.batched:
            targets = None if first.targets is None else np.asarray(first.targets)[None]
            return Batch(np.asarray(first.inputs)[None], targets)
        return Batch(first.inputs[:1], None if first.targets is None else first.targets[:1])
    if not len(part):
        raise DataError(f"{source}: there are no examples; at least one is needed")
    return part.take(np.zeros(1, np.int64))


def scaled(about: Description, train: Part | None, section: DataSection) -> Description:
    """Return the description with the normalisation that data.normalise asks for.

    `train`: the examples whose statistics may be taken. None: nobody has opened them, and
    statistics that only they can tell stay open; no model is built by these. Raises ConfigError for
    what cannot be done, with what can."""
    how, local = section.normalise, section.partition == "local"
    if section.mean or section.std:
        if how not in ("auto", "declared"):
            raise ConfigError(
                f"data.normalise = {how}: data.mean and data.std are declared; say declared, or drop them"
            )
        return _declared_scale(about, section)
    if how == "declared":
        raise ConfigError("data.normalise = declared needs data.mean and data.std, one number a channel or one for all")
    if how == "none" or about.dtype == "int64" or (how == "auto" and not _is_image(about)):
        if how in ("board", "together") and about.dtype == "int64":
            raise ConfigError(f"data.normalise = {how}: the inputs are tokens, which are not normalised; say none")
        return replace(about, mean=(), std=(), scale="none")
    if how == "auto" and local:
        middle = (_MIDDLE,) * about.shape[0]
        return replace(about, mean=middle, std=middle, scale="declared")
    if how == "together" and not isinstance(train, ExampleStream):
        return replace(about, mean=(), std=(), scale="together")
    if train is None:
        return replace(about, mean=(), std=(), scale="board" if local else "declared")
    if isinstance(train, ExampleStream):
        raise ConfigError(
            f"data.normalise = {how}: a stream cannot be looked through first; declare data.mean and "
            "data.std, or say none"
        )
    mean, std = Sums.of(train).moments()
    return replace(about, mean=mean, std=std, scale="board" if local else "declared")


@dataclass(frozen=True, slots=True)
class Sums:
    """Holds sums over examples, per channel, which is the first dimension of an input. All that is
    needed of a board's data to normalise alike on all boards; those of several boards add up."""

    count: int  # values a channel
    sum: NDArray[np.float64]  # [channels]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, examples: Examples) -> Sums:
        """Add up these examples, a few at a time."""
        if (known := examples.known_sums()) is not None:
            return cls(*known)
        total: Sums | None = None
        for inputs, _ in chunks(examples):
            part = inputs.reshape(len(inputs), inputs.shape[1], -1).astype(np.float64)
            count = part.shape[0] * part.shape[2]
            sums = cls(count, part.sum((0, 2)), np.square(part).sum((0, 2)))
            total = sums if total is None else total + sums
        assert total is not None  # there is an example
        return total

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.sum + other.sum, self.squares + other.squares)

    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation per channel; a channel that never changes gets the
        deviation 1."""
        mean = self.sum / self.count
        variance = self.squares / self.count - mean**2
        # what rounding leaves of a channel that never changes is not a deviation
        still = variance <= 1e-12 * np.maximum(np.square(mean), 1e-30)
        std = np.where(still, 1.0, np.sqrt(np.maximum(variance, 0.0)))
        return tuple(mean.tolist()), tuple(std.tolist())


def blurred(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each number of an example whether float32 cannot tell its values apart, over
    examples [n, ...]: whether rounding moves one by more than a hundredth of their range."""
    shape, kind, size = array.shape[1:], array.dtype.kind, array.dtype.itemsize
    low, high, moved = np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros(shape)
    if size > {"f": 4, "i": 2, "u": 2}.get(kind, size):  # others fit into float32
        rows = max(1, _VALUES // max(1, math.prod(shape)))
        for start in range(0, len(array), rows):
            exact = array[start : start + rows].astype(np.longdouble)  # holds every uint64
            low, high = np.minimum(low, exact.min(0)), np.maximum(high, exact.max(0))
            moved = np.maximum(moved, np.abs(exact.astype(np.float32) - exact).max(0))
    return np.asarray((high > low) & (moved > 0.01 * (high - low)))


def counts(train: Part, about: Description) -> NDArray[np.int64] | None:
    """Return int64[classes], the examples of each class, where that can be known without reading
    every input."""
    if about.target != "class" or isinstance(train, ExampleStream) or train.targets is None:
        return None
    return np.bincount(train.targets, minlength=about.classes).astype(np.int64)


def _is_image(about: Description) -> bool:
    return about.dtype == "uint8" and len(about.shape) == 3


def _declared_scale(about: Description, section: DataSection) -> Description:
    channels = about.shape[0]
    for key, values in (("mean", section.mean), ("std", section.std)):
        if len(values) not in (1, channels):
            raise ConfigError(
                f"data.{key} has {len(values)} numbers, and an input has {channels} channels (the "
                f"first of its shape {list(about.shape)}): give {channels}, or one for all"
            )
    if about.dtype == "int64":
        raise ConfigError(
            "data.mean: the inputs are tokens, which are not normalised; leave data.mean and data.std out"
        )
    mean, std = (tuple(v) * (channels if len(v) == 1 else 1) for v in (section.mean, section.std))
    return replace(about, mean=mean, std=std, scale="declared")


def chunks(examples: Examples) -> Iterator[Batch]:
    """Yield all examples in their order, a few at a time."""
    step = _DECODED if isinstance(examples, Items) else _CHUNK
    for start in range(0, len(examples), step):
        yield examples.take(np.arange(start, min(start + step, len(examples)), dtype=np.int64))


def _input_type(source: str, inputs: NDArray[Any], section: DataSection) -> str:
    """The type that a model gets. Whole numbers of 32 and 64 bits are tokens; of 8 and 16 bits,
    which pixels and sound have, they are numbers."""
    kind, bits = inputs.dtype.kind, 8 * inputs.dtype.itemsize
    if kind not in "fiub":
        raise DataError(f"{source}: inputs are {inputs.dtype}; expected real numbers")
    found = "int64" if kind in "iu" and bits > 16 else "float32"
    if inputs.dtype == np.uint8:
        found = "uint8"
    wanted = found if section.dtype == "auto" else section.dtype
    if wanted == "int64" and kind == "f":
        raise DataError(f"{source}: inputs are {inputs.dtype}, but data.dtype = int64; tokens are whole numbers")
    if wanted == "uint8" and inputs.dtype != np.uint8:
        raise DataError(f"{source}: inputs are {inputs.dtype}, but data.dtype = uint8; say float32")
    return wanted


def _check_channels(source: str, inputs: NDArray[Any]) -> None:
    """Raise DataError for inputs that look like pictures whose channels come last, or have no
    dimension of their own: nobody says so, and a model would take rows of pixels for channels."""
    shape = inputs.shape[1:]
    last = len(shape) == 3 and shape[2] in _CHANNELS and shape[0] > max(_CHANNELS)
    if not last and not (len(shape) == 2 and inputs.dtype == np.uint8 and min(shape) >= _SIDE):
        return
    wanted = [shape[2], *shape[:2]] if last else [1, *shape]
    raise DataError(
        f"{source}: inputs are {inputs.dtype}{list(shape)}; if these are pictures, channels come first: "
        f"{'transpose' if last else 'reshape'} them to {wanted}; else declare data.shape = {list(shape)}"
    )


def _target_kind(source: str, first: Batch, dtype: str, section: DataSection) -> str:
    """The kind of target that the first example has, or that is declared and fits it."""
    targets, wanted = first.targets, section.target
    fitting: tuple[str, ...]
    if targets is None:
        found, fitting = ("tokens" if dtype == "int64" else "none"), ("tokens", "none")
        shown = "there are no targets"
    elif targets.dtype.kind in "iu":
        found = "class" if targets.ndim == 1 else "places"
        fitting = ("class", "values") if targets.ndim == 1 else ("places", "labels", "values")
        shown = f"targets are {targets.dtype}{list(targets.shape[1:])}"
    elif targets.dtype.kind == "b":
        found = {1: "class", 2: "labels"}.get(targets.ndim, "places")
        fitting = (found, "values")
        shown = f"targets are bool{list(targets.shape[1:])}"
    elif targets.dtype.kind == "f":
        found, fitting = "values", ("values", "labels") if targets.ndim == 2 else ("values",)
        shown = f"targets are {targets.dtype}{list(targets.shape[1:])}"
    else:
        raise DataError(
            f"{source}: targets are {targets.dtype}; expected whole or real numbers, or bool: number classes from 0"
        )
    if wanted == "auto":
        return found
    if wanted not in (*fitting, "none"):
        raise DataError(f"{source}: {shown}, but data.target = {wanted}; expected {' or '.join(fitting)}")
    if wanted == "tokens" and dtype != "int64":
        raise DataError(f"{source}: inputs are {dtype}, but data.target = tokens; inputs must be int64")
    return wanted


def _check_alike(source: str, train: Batch, test: Batch) -> None:
    """Raises DataError unless test examples are as training examples are; labels may differ in
    their number of bits."""
    for what, a, b in zip(Batch._fields, train, test, strict=True):
        if a is None and b is None:
            continue
        alike = False
        if a is not None and b is not None and a.shape[1:] == b.shape[1:]:
            labels = what == "targets" and "f" not in (a.dtype.kind, b.dtype.kind)
            alike = labels or a.dtype == b.dtype
        if not alike:
            shown = ["none" if v is None else f"{v.dtype}{list(v.shape[1:])}" for v in (a, b)]
            raise DataError(f"{source}: training {what} are {shown[0]}, test {what} {shown[1]}; expected the same")


def finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each value whether float32 has it as a finite number, or of a whole number whether
    int64 has it."""
    if values.dtype.kind != "f":
        return np.asarray(values <= np.iinfo(np.int64).max)
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32, copy=False))


def _check_numbers(source: str, part: Part, dtype: str, *, tokens: bool) -> None:
    """Look through arrays in memory: each value is a number of float32, and not the same there as
    all others. Maps of files may be larger than memory and wait for their batches (`DataLoader`).
    `tokens`: nobody has said that whole numbers of many bits are these."""
    inputs, targets = in_memory(part), part.targets if isinstance(part, Examples) else None
    for what, array in (("inputs", inputs), ("targets", targets)):
        looked_at = array is not None and (array.dtype.kind == "f" or (what == "inputs" and dtype == "int64"))
        if array is None or not looked_at or isinstance(array, np.memmap) or isinstance(part, Items):
            continue
        for start in range(0, len(array), _CHUNK):
            if not (fine := finite(array[start : start + _CHUNK])).all():
                k = start + int(np.argwhere(~fine)[0][0])
                raise DataError(f"{source}: {what}[{k}] holds a NaN, an infinity, or a number too large for its type")
    if inputs is None:
        return
    for place in np.argwhere(blurred(inputs))[:1].tolist() if dtype == "float32" else ():
        raise DataError(
            f"{source}: inputs are {inputs.dtype}, and float32 cannot tell the values at {place} of an input apart: "
            "subtract a constant from them"
        )
    for place in np.argwhere(inputs < 0)[:1].tolist() if tokens else ():
        raise DataError(
            f"{source}: inputs[{place[0]}] holds {inputs[tuple(place)]}, and whole numbers of {inputs.dtype} "
            'are taken for tokens, which are not below 0: if these are numbers, set data.dtype = "float32"'
        )


def _classes(parts: Sequence[tuple[str, Part]], about: Description, section: DataSection) -> int:
    """The number of classes: declared, or found by looking at all targets."""
    wanted = section.classes or len(about.names)
    if about.target == "labels":
        found = about.target_shape[0]
        if wanted and wanted != found:
            source = parts[0][0]
            raise DataError(f"{source}: a target has {found} labels, but data.classes = {wanted}")
        return found
    if about.target not in ("class", "places", "tokens"):
        return 0
    most = -1
    for source, part in parts:
        if isinstance(part, ExampleStream):
            if not wanted:
                raise ConfigError(
                    f"{source} is a stream, which cannot be looked through first: say the number of "
                    "its classes, data.classes = N"
                )
            continue
        if wanted and _unread(part, about):
            continue  # each batch is looked at
        low, high, different = _range(part, about)
        if about.target == "places" and not wanted:
            labels.check_masks(source, different, high)
        if low < 0:
            what = "tokens" if about.target == "tokens" else "labels"
            raise DataError(f"{source}: expected {what} from 0, found {low}")
        if wanted and high >= wanted:
            declared, cure = f"data.classes = {wanted}", f"set data.classes = {high + 1} on every board"
            if about.names:
                declared, cure = f"{wanted} names", "number the labels from 0, in the order of the names"
            raise DataError(
                f"{source}: found the label {high}, but with {declared} labels are 0 to {wanted - 1}: {cure}"
            )
        most = max(most, high)
    if not wanted and most >= MOST_CLASSES:
        raise DataError(
            f"{parts[0][0]}: found the label {most}; if these are numbers and no classes, set data.target = values"
        )
    _check_several(*parts[0], wanted or most + 1, about, section)
    return wanted or most + 1


def _check_several(source: str, train: Part, classes: int, about: Description, section: DataSection) -> None:
    """Raise DataError where all training examples are of one class, those of all boards as far as
    is known here: then a loss of 0 is no success."""
    labels = None if isinstance(train, ExampleStream) or about.target != "class" else train.targets
    same = labels is not None and len(labels) > 1 and bool((labels == labels[0]).all())
    if about.target in ("class", "places") and (classes == 1 or (same and section.partition != "local")):
        raise DataError(
            f"{source}: all examples are of one class, so there is nothing to learn: look at the column or the folders that "
            "classes are read from (if a board has one class of several, declare data.labels or data.classes)"
        )


def _unread(part: Examples, about: Description) -> bool:
    """Whether all targets are known only after every input has been read."""
    if about.target == "tokens":
        return in_memory(part) is None and not isinstance(part.inputs, Selected)
    return part.targets is None or isinstance(part.targets, np.memmap)


def _range(part: Examples, about: Description) -> tuple[int, int, int]:
    """The smallest and largest label of a part, those that do not count apart, and how many
    different ones there are up to 255."""
    low, high = 0, -1
    bytes_seen = np.zeros(256, bool)
    if about.target == "tokens":
        found: Iterator[Any] = (batch.inputs for batch in chunks(part))
    elif part.targets is None:
        found = (batch.targets for batch in chunks(part))
    else:
        targets = part.targets
        found = (targets[k : k + _CHUNK] for k in range(0, len(targets), _CHUNK))
    for values in found:
        if about.target == "places":
            values = values[values != IGNORED]
        if values.size:
            low, high = min(low, int(values.min())), max(high, int(values.max()))
        if about.target == "places" and 0 <= low <= high < 256:
            bytes_seen[np.asarray(values, np.int64)] = True
    return low, high, int(bytes_seen.sum())
