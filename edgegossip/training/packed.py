"""State of a user's own objects, such as a `state_dict`, as bytes that are read back without
running any code: torch's format, as `torch.load(weights_only=True)` takes it. That takes no numpy,
so arrays go as tensors and come back as arrays; numpy's single numbers become Python's."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ARRAY = "edgegossip: a numpy array"  # before the tensor that was one


def pack(value: Any) -> NDArray[np.uint8]:
    """Return the bytes of tensors, numbers, text, arrays, and dicts, lists and tuples of them.

    Of other things it may raise whatever pickle does, or make bytes that `unpack` refuses: see
    `problem`."""
    return np.frombuffer(_saved(value).getbuffer(), np.uint8)


def unpack(packed: NDArray[Any]) -> Any:
    """Return what `pack` was given. Raises what `torch.load` does for anything else."""
    data = packed.tobytes()
    if not data.startswith(b"PK"):  # torch's older files are plain pickles
        raise ValueError("its state is no file of torch")
    return _as_it_was(torch.load(io.BytesIO(data), weights_only=True))


def problem(value: Any) -> str:
    """Say where in `value` is something that could not be read back, such as "['at'] is a
    PosixPath"; "" if nowhere."""
    try:
        # On the meta device no tensor takes memory for a second time.
        torch.load(_saved(value), map_location="meta", weights_only=True)
    except Exception:  # of whatever a user's object does when it is pickled
        inside = value.items() if isinstance(value, dict) else enumerate(value) if _is_row(value) else ()
        for key, part in inside:
            if found := problem(part):
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
