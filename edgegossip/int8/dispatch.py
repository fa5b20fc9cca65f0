"""Torch functions that have an int8 form, by the name of the function or method.

Each takes the function's own arguments and returns NotImplemented for those that it cannot serve; then, and for every other
function, the values go through float32."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
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


def _keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Those that it knows; None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


_KEYWORDS = {function: _keywords(function) for function in NATIVE.values()}


def native_form(name: str, keywords: Iterable[str]) -> Callable[..., Any] | None:
    """The int8 form of a function called with these keywords, if it knows them all: torch may have others."""
    function = NATIVE.get(name)
    known = None if function is None else _KEYWORDS[function]
    return function if known is None or known.issuperset(keywords) else None
