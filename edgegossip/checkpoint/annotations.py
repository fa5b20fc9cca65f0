"""Whether a value is what an annotation says: the few forms that the fields of states have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import numpy as np

_PLAIN = (str, bytes, bool)


def misfit(value: Any, hint: Any) -> str | None:
    """None, or what is wrong, in words. Any and type variables take everything. Raises TypeError on
    a form of annotation that is not known here: a state must not have it."""
    if hint is Any or isinstance(hint, TypeVar):
        return None
    if hint is None or hint is NoneType:
        return None if value is None else _is(value, "nothing")
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else _is(value, "a whole number")
    if hint is float:
        return None if type(value) in (int, float) else _is(value, "a number")
    if hint in _PLAIN:
        return None if type(value) is hint else _is(value, hint.__name__)
    if hint is memoryview:
        return None if isinstance(value, memoryview) else _is(value, "bytes")
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return None if any(misfit(value, choice) is None for choice in args) else _is(value, "none of its types")
    if origin is np.ndarray:
        return _array(value, args)
    if origin in (tuple, frozenset, list):
        return _items(value, origin, args)
    if origin in (dict, Mapping):
        return _mapping(value, args)
    if origin is Sequence:
        return _items(value, list if isinstance(value, list) else tuple, (*args, ...))
    if isinstance(origin, type) and origin.__module__.startswith("edgegossip."):
        return None if isinstance(value, origin) else _is(value, f"a {origin.__name__}")
    raise TypeError(f"no checkpoint knows how to check the annotation {hint}")


def _is(value: Any, wanted: str) -> str:
    return f"a {type(value).__name__}, not {wanted}" if wanted != "none of its types" else f"a {type(value).__name__}"


def _array(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, np.ndarray):
        return _is(value, "an array")
    wanted = get_args(args[1])[0] if len(args) > 1 and get_args(args[1]) else Any
    if wanted is Any or isinstance(wanted, TypeVar) or np.issubdtype(value.dtype, wanted):
        return None
    return f"an array of {value.dtype}, not of {np.dtype(wanted).name}"


def _items(value: Any, kind: type[Any], args: tuple[Any, ...]) -> str | None:
    if type(value) is not kind:
        return _is(value, f"a {kind.__name__}")
    if not args:
        return None
    if kind is tuple and args[-1:] != (...,):
        if len(value) != len(args):
            return f"a tuple of {len(value)}, not of {len(args)}"
        faults = (misfit(v, hint) for v, hint in zip(value, args, strict=True))
    else:
        faults = (misfit(v, args[0]) for v in value)
    return next((f"a {kind.__name__} with {fault}" for fault in faults if fault), None)


def _mapping(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, Mapping):
        return _is(value, "a mapping")
    if not args:
        return None
    for key, item in value.items():
        if fault := misfit(key, args[0]) or misfit(item, args[1]):
            return f"a mapping with {fault}"
    return None
