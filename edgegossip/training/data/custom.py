"""A user's own data: `data.name = "module:function"`.

The function is called with the recipe's data.dir (a str, "" when not set). Where it has a parameter
`board` or `index` it also gets the board's name or number, and data.params are its further keyword
arguments. It returns a training part, or a pair of a training and a test part. A part is one of

    inputs                    an array [n, ...]: nothing is given, as for an autoencoder
    (inputs, targets)         two arrays of n rows
    a torch Dataset           with a length and an index; its `targets`, where it has them, are used
    a torch IterableDataset   a stream of (input, target)
    a torch DataLoader        a stream of its own batches, in its own order

or four arrays (train_inputs, train_targets, test_inputs, test_targets) at once. Two arrays are
inputs and targets of one part, never two parts. Arrays may be memory maps or torch tensors. A test
part may be None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data.base import (
    Batch,
    Board,
    Examples,
    ExampleStream,
    InMemory,
    ItemInputs,
    Items,
    Part,
    native,
    stacked,
)
from edgegossip.training.names import call_custom, import_function
from edgegossip.types import DataError

Parts: TypeAlias = tuple[Part, Examples | None, tuple[str, ...]]  # training, test, names of classes
_TEST_LIMIT = 100_000  # examples of a stream that are held as a test set
_COMPARED = 5  # examples of a data set whose targets are held against its list of them
_END = object()
_EXPECTED = (
    "must return four numpy arrays (train_inputs, train_targets, test_inputs, test_targets), or a "
    "training part or a pair of training and test part, each an array, (inputs, targets), a torch "
    "Dataset or a DataLoader"
)


def find(spec: str) -> None:
    """Raise ConfigError unless `spec` names a function."""
    import_function("data.name", spec)


def load(section: DataSection, folder: str, board: Board) -> Parts:
    """Call the function. Raises UsageError when it fails, DataError for what it must not return."""
    spec = section.name
    function = import_function("data.name", spec)
    keywords = dict(section.params) | _who(function, board)
    return parts(spec, call_custom(spec, function, folder, **keywords))


def parts(source: str, given: Any) -> Parts:
    """Return what a user's function returned as a training and a test part. Raises DataError."""
    size = len(given) if isinstance(given, tuple | list) else 0
    if size == 4 and all(a is None or _array(a) is not None for a in given):
        train, test = tuple(given[:2]), tuple(given[2:])
        if test[0] is None:
            return _part(source, train), None, ()
    elif size == 2 and not _is_arrays(given):
        train, test = given
    else:
        train, test = given, None
    made = None if test is None else _part(f"{source}, test part", test)
    if isinstance(made, ExampleStream):
        made = _collected(f"{source}, test part", made)
    return _part(f"{source}, training part", train), made, ()


def _who(function: Callable[..., Any], board: Board) -> dict[str, Any]:
    """Those of `board` and `index` that the function has a parameter for."""
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    asked = {"board": board.name, "index": board.index}
    return {name: value for name, value in asked.items() if name in takes}


def _array(value: Any) -> NDArray[Any] | None:
    """`value` as an array, or None where it is none: torch tensors, tables of pandas and all that
    numpy takes for an array. Memory is shared where that can be. What is masked becomes NaN, which
    is refused with its place."""
    if np.ma.is_masked(value):
        value = value.astype(np.float64).filled(np.nan)
    if isinstance(value, np.memmap):
        return value
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # which numpy lacks
    return np.asarray(value) if hasattr(type(value), "__array__") else None


def _is_arrays(given: Any) -> bool:
    """Whether a pair is (inputs, targets) of one part, rather than two parts."""
    return _array(given[0]) is not None and (given[1] is None or _array(given[1]) is not None)


def _part(source: str, given: Any) -> Part:
    if isinstance(given, tuple | list) and len(given) == 2 and _is_arrays(given):
        return _arrays(source, _array(given[0]), None if given[1] is None else _array(given[1]))
    if (inputs := _array(given)) is not None:
        return _arrays(source, inputs, None)
    if hasattr(given, "dataset") and hasattr(given, "collate_fn"):
        return _loader(source, given)
    plain = isinstance(given, tuple | list | dict | str | Iterator)  # an iterator has one pass only
    if not plain and hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return _items(source, given)
    if not plain and hasattr(given, "__iter__"):
        return ExampleStream(lambda: _pairs(source, given), length=_length(given))
    raise DataError(f"{source} {_EXPECTED}; found {_shown(given)}")


def _arrays(source: str, inputs: NDArray[Any] | None, targets: NDArray[Any] | None) -> Examples:
    assert inputs is not None
    if inputs.ndim < 2:
        raise DataError(f"{source}: expected inputs [n, ...], found {_shown(inputs)}; reshape them to [n, 1]")
    if not len(inputs):
        raise DataError(f"{source}: there are no examples; at least one is needed")
    if targets is not None and (not targets.ndim or len(targets) != len(inputs)):
        raise DataError(f"{source}: expected a target for each of {len(inputs)} inputs, found {_shown(targets)}")
    return Examples(targets, InMemory(inputs))


def _items(source: str, dataset: Any) -> Items:
    """A torch `Dataset`. Its targets are at hand where it says so as torchvision's do, and the few
    examples that are looked at have the same."""

    def item(k: int) -> Batch:
        return _pair(source, call_custom(f"{source}, example {k}", dataset.__getitem__, k))

    targets, count = getattr(dataset, "targets", None), len(dataset)
    if targets is not None:
        try:
            targets = np.asarray(targets)
        except (TypeError, ValueError, RuntimeError):
            targets = None
    if targets is not None and (targets.dtype.kind not in "iubf" or len(targets) != count):
        targets = None
    # A wrapper may show those of what it wraps, before a transform or in another order.
    places = {count * k // _COMPARED for k in range(_COMPARED)} if count else set()
    if targets is not None and not all(_same(item(k).targets, targets[k]) for k in sorted(places)):
        targets = None
    return Items(targets, ItemInputs(item, count))


def _same(target: NDArray[Any] | None, listed: Any) -> bool:
    return target is not None and np.array_equal(target, listed)


def _loader(source: str, loader: Any) -> ExampleStream:
    """A torch `DataLoader`: its batches, as its own collate function made them."""
    sized = hasattr(loader.dataset, "__len__")
    return ExampleStream(
        lambda: _pairs(source, loader),
        batched=True,
        length=len(loader.dataset) if sized else 0,
    )


def _pairs(source: str, given: Iterable[Any]) -> Iterator[Batch]:
    """One pass over a user's stream; what goes wrong in it is reported with its name."""
    items = call_custom(source, iter, given)
    while (item := call_custom(source, next, items, _END)) is not _END:
        yield _pair(source, item)


def _pair(source: str, item: Any) -> Batch:
    """One example, or one batch of a loader: an input, alone or with its target."""
    if isinstance(item, tuple | list) and len(item) == 2:
        targets = None if item[1] is None else _number(source, item[1])
        return Batch(_number(source, item[0]), targets)
    if isinstance(item, tuple | list) and len(item) == 1:
        return Batch(_number(source, item[0]), None)
    return Batch(_number(source, item), None)


def _number(source: str, value: Any) -> NDArray[Any]:
    array = _array(value)
    if array is None and isinstance(value, int | float | bool | np.generic | list):
        array = np.asarray(value)
    if array is None or array.dtype.kind not in "iufb":
        raise DataError(
            f"{source}: an example must be an input or (input, target), of arrays, tensors or "
            f"numbers; found {_shown(value)}"
        )
    return native(array)


def _collected(source: str, stream: ExampleStream) -> Examples:
    """A stream that is a test set, in memory. Raises DataError for one that does not end."""
    batches = list(islice(stream.begin(), _TEST_LIMIT + 1))
    if not batches:
        raise DataError(f"{source}: the stream ends before its first example")
    if len(batches) > _TEST_LIMIT:
        raise DataError(f"{source}: a stream of more than {_TEST_LIMIT} examples is no test set; end it earlier")
    if stream.batched:
        targets = None
        if all(b.targets is not None for b in batches):
            targets = np.concatenate([b.targets for b in batches if b.targets is not None])
        return _arrays(source, np.concatenate([b.inputs for b in batches]), targets)
    whole = stacked(batches)
    return _arrays(source, whole.inputs, whole.targets)


def _length(given: Any) -> int:
    try:
        return len(given)
    except TypeError:
        return 0


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
