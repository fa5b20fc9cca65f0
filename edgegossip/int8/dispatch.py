"""Torch functions that have an int8 form, by the name of the function or method.

Each takes the function's own arguments and returns NotImplemented for those that it cannot serve; then, and for every other
function, the values go through float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgegossip.int8.functional import add, relu
from edgegossip.int8.shaping import as_it_is, dropout, flatten, getitem, pad, reshape

NATIVE: dict[str, Callable[..., Any]] = {
    "add": add,
    "__add__": add,
    "__radd__": add,
    "__iadd__": add,
    "relu": relu,
    "flatten": flatten,
    "__getitem__": getitem,
    "pad": pad,
    "view": reshape,
    "reshape": reshape,
    "contiguous": as_it_is,
    "dropout": dropout,
    "dropout1d": dropout,
    "dropout2d": dropout,
}
