"""Writes the state of a user's objects, such as a `state_dict`, as bytes that are read back without
running any code: torch's format, as `torch.load(weights_only=True)` takes it.

That takes no numpy, so arrays go as tensors and come back as arrays; numpy's single numbers become
Python's."""

from __future__ import annotations

import io
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ARRAY = "edgegossip: a numpy array"  # before the tensor that was one


def pack(value: Any) -> NDArray[np.uint8]:
    """Return the bytes of tensors, numbers, text, arrays, and dicts, lists and tuples of them.

    Of other things it may raise whatever pickle does, or make bytes that `unpack` refuses: see
    `find_unserializable`."""
    return np.frombuffer(_saved(value).getbuffer(), np.uint8)


def unpack(packed: NDArray[Any]) -> Any:
    """Return what `pack` was given. Raises what `torch.load` does for anything else."""
    data = packed.tobytes()
    if not data.startswith(b"PK"):  # torch's older files are plain pickles
        raise ValueError("its state is no file of torch")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # in which torch compresses nothing
        if any(entry.compress_type for entry in archive.infolist()):
            raise ValueError("its state is larger than its file")
    return _as_it_was(torch.load(io.BytesIO(data), weights_only=True))


def find_unserializable(value: Any) -> str:
    """Say where in `value` is something that could not be read back, such as "['at'] is a
    PosixPath"; "" if nowhere."""
    try:
        # On the meta device no tensor takes memory for a second time.
        torch.load(_saved(value), map_location="meta", weights_only=True)
    except Exception:  # of whatever a user's object does when it is pickled
        inside = value.items() if isinstance(value, dict) else enumerate(value) if _is_row(value) else ()
        for key, part in inside:
            if found := find_unserializable(part):
                return f"[{key!r}]{found}"
        return f" is a {type(value).__name__}"
    return ""


def _saved(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(_plain(value), buffer)
    buffer.seek(0)
    return buffer


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.isnative:
        return _ARRAY, torch.from_numpy(np.require(value, requirements=("C", "W")))
    return _within(value, _plain)


def _as_it_was(value: Any) -> Any:
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], str) and value[0] == _ARRAY:
        return value[1].numpy()
    return _within(value, _as_it_was)


def _within(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same dict, list or tuple of changed values; anything else as it is."""
    if type(value) in (dict, OrderedDict):  # others, such as a Counter, update in ways of their own
        changed = copy(value)  # with what a module's state_dict has beside its keys
        changed.clear()
        changed.update((change(key), change(part)) for key, part in value.items())
        return changed
    return type(value)(change(part) for part in value) if _is_row(value) else value


def _is_row(value: Any) -> bool:
    return type(value) in (list, tuple)  # no named tuple: those are a user's own types


def rng_state() -> dict[str, Any]:
    """Return the states of the global generators of torch, numpy and Python, in what `unpack` reads
    back."""
    cuda: Any = torch.cuda  # not all of it is typed
    numpy_state: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    _, keys, *more = numpy_state
    return {
        "torch": torch.get_rng_state(),
        "numpy": (torch.from_numpy(keys.astype(np.int64)), *more),
        "python": random.getstate(),
        "cuda": torch.cuda.get_rng_state_all() if cuda.is_initialized() else [],
        "mps": [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else [],
    }


def set_rng_state(kept: Mapping[str, Any]) -> None:
    """Put back what `rng_state` gave."""
    torch.set_rng_state(kept["torch"])
    keys, *more = kept["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *more))  # noqa: NPY002
    version, words, gauss = kept["python"]
    random.setstate((version, tuple(words), gauss))
    if kept["cuda"]:
        torch.cuda.set_rng_state_all(kept["cuda"])
    if kept["mps"]:
        torch.mps.set_rng_state(*kept["mps"])
