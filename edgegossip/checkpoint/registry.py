"""Says which classes a checkpoint may hold, how each becomes named fields and comes back, and
whether what was read is what it must be.

Allowed are dataclasses and enums of `_PACKAGES`, and of packages that add a codec or an algorithm.
A frozen dataclass is its fields, each checked against its annotation. What a state holds of the run
around it (its view, whose topology and codec are objects of this process) has an *adapter*: the few
values that belong to the state, and a function that puts them into what the present process has.

`tests/checkpoint/test_states.py` keeps a state of every algorithm with every codec.
`check_structure` then holds a state that was read against one of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np

from edgegossip import plugins
from edgegossip.choices import hints_of
from edgegossip.frame import Frame
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.scheme import RoundContext
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DataError, EdgegossipError, UsageError

_PACKAGES = tuple(f"edgegossip.{name}." for name in ("gossip", "codecs", "engine", "agreement", "frame", "layout"))
_PLAIN = (str, bytes, bool, memoryview)
_OF_THE_RUN = (NodeView, RoundContext, Layout, Frame)  # their adapters, or the engine, check them


class Adapter(NamedTuple):
    """Takes apart and puts together a class whose fields are not all a state's own."""

    to_fields: Callable[[Any], Mapping[str, Any]]
    from_fields: Callable[[Mapping[str, Any], Any], Any]  # (fields, RunContext); KeyError, TypeError: refused
    hints: Mapping[str, Any]  # field -> its annotation


def to_fields(value: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a value's class, and its fields. Raises UsageError on a class that is not
    allowed, a field that is not of its type; `where` is the way to the value, for its text."""
    cls = type(value)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if not _allowed(cls.__module__, cls):
        raise UsageError(f"{where} is a {name}, which no checkpoint keeps (edgegossip/checkpoint/registry.py)")
    if isinstance(value, Enum):
        return name, {"value": value.value}
    adapter = _ADAPTERS.get(cls)
    found = adapter.to_fields(value) if adapter else {f.name: getattr(value, f.name) for f in fields(value)}
    if fault := _fault(cls, found):
        raise UsageError(f"{where}: {fault}")
    return name, found


def from_fields(name: str, found: Mapping[str, Any], run: Any) -> Any:
    """Return the object of the class of this name with these fields. Raises DataError on a class
    that is not allowed, an unknown field, one that is missing and has no default, or a value that
    is not of the field's type or that the class refuses."""
    module, _, attribute = name.partition(":")
    try:
        if not _is_ours(module):
            raise DataError(f"it holds a {name}, which this version of edgegossip does not know")
        cls = getattr(import_module(module), attribute)
        if not _allowed(module, cls):
            raise DataError(f"it holds a {name}, which no checkpoint keeps")
        if issubclass(cls, Enum):
            return cls(found["value"])
        adapter = _ADAPTERS.get(cls)
        if adapter is None:
            _check_names(name, cls, found)
        if fault := _fault(cls, found):
            raise DataError(f"it holds a {fault}")
        return cls(**found) if adapter is None else adapter.from_fields(found, run)
    except DataError:
        raise
    except (ImportError, KeyError, TypeError, ValueError, AttributeError, EdgegossipError) as error:
        raise DataError(f"it holds a {name} that cannot be: {error}") from None


def _is_ours(module: str) -> bool:
    return f"{module}.".startswith(_PACKAGES) or plugins.is_of_one(module)


def _allowed(module: str, cls: Any) -> bool:
    a_record = isinstance(cls, type) and (is_dataclass(cls) or issubclass(cls, Enum))
    return a_record and cls.__module__ == module and _is_ours(module)


def _check_names(name: str, cls: Any, found: Mapping[str, Any]) -> None:
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(found.keys() - known.keys()):
        raise DataError(f"its {name} has a field {unknown[0]!r}, which this version of edgegossip does not know")
    for field in known.values():
        if field.name not in found and field.default is MISSING and field.default_factory is MISSING:
            raise DataError(f"its {name} has no {field.name}: it was written by another version of edgegossip")


def _fault(cls: type, found: Mapping[str, Any]) -> str:
    """Return which field is not what its annotation says; "" where all are."""
    hints = _ADAPTERS[cls].hints if cls in _ADAPTERS else hints_of(cls)
    for field, value in found.items():
        if field not in hints:
            return f"{cls.__name__} with an unknown field {field!r}"
        if not fits(value, hints[field]):
            return f"{cls.__name__} whose {field} is a {type(value).__name__}, not {_words(hints[field])}"
    return ""


def _words(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


@cache  # typing takes longer to say it than a value to be checked
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is what its annotation says. Any and type variables take everything.
    Raises TypeError on a form of annotation that is not known here: a state must not have it."""
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is NoneType:
        return value is None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return type(value) in (int, float)
    if hint in _PLAIN:
        return type(value) is hint
    origin, args = _parts(hint)
    if alias := getattr(origin, "__value__", None):  # made by a `type` statement, as numpy 2.5's NDArray
        return fits(value, alias[args] if args else alias)
    if origin in (Union, UnionType):
        return any(fits(value, choice) for choice in args)
    if origin is np.ndarray:
        wanted = get_args(args[1])[0] if len(args) > 1 and get_args(args[1]) else Any
        any_type = wanted is Any or isinstance(wanted, TypeVar)
        return isinstance(value, np.ndarray) and (any_type or np.issubdtype(value.dtype, wanted))
    if origin is tuple and args and args[-1] is not ...:
        return type(value) is tuple and len(value) == len(args) and all(map(fits, value, args))
    if origin in (tuple, frozenset, list, Sequence):
        right = type(value) in (tuple, list) if origin is Sequence else type(value) is origin
        return right and (not args or all(fits(item, args[0]) for item in value))
    if origin in (dict, Mapping):
        right = isinstance(value, Mapping)
        return right and (not args or all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items()))
    if isinstance(origin, type) and (origin.__module__.startswith("edgegossip.") or is_dataclass(origin)):
        return isinstance(value, origin)
    raise TypeError(f"no checkpoint knows how to check the annotation {hint}")


# What a state holds of the run around it


@dataclass(frozen=True, slots=True)
class RunContext:
    """Holds what the present process has of the run, and no file needs to hold."""

    view: NodeView | None = None
    layout: Layout | None = None

    @classmethod
    def of(cls, view: NodeView) -> RunContext:
        """Return the context of a board's gossip state."""
        return cls(view, view.layout)


def _view_of(found: Mapping[str, Any], run: RunContext) -> NodeView:
    """Put the state's values into the present process's view, which has the run's members,
    topology, codec and layout."""
    view = run.view
    if view is None:
        raise ValueError("no run is given that it could belong to")
    if (view.node, view.run_id) != (found["node"], found["run_id"]):
        raise ValueError(f"it is of {found['node']} in run {found['run_id'].hex()}")
    return replace(view, down=found["down"], boot=found["boot"])


def _context_of(found: Mapping[str, Any], run: RunContext) -> RoundContext:
    view, index = found["view"], found["index"]
    if not 0 <= index < len(view.members) or not found["round"] >= 0:
        raise ValueError(f"member {index}, round {found['round']}")
    return RoundContext.at(view, index, found["round"])


def _layout_of(found: Mapping[str, Any], run: RunContext) -> Layout:
    """Return the run's own layout where it is that, so that all parts of a state share it."""
    if run.layout is not None and run.layout.hash == found["hash"]:
        return run.layout
    layout = Layout.of(TensorSpec(*t) for t in found["tensors"])
    if layout.hash != found["hash"]:
        raise ValueError("its tensors are not those of its hash")
    return layout


_ADAPTERS: Mapping[Any, Adapter] = {
    NodeView: Adapter(
        lambda view: {"node": view.node, "run_id": view.run_id, "down": view.down, "boot": view.boot},
        _view_of,
        {"node": str, "run_id": bytes, "down": frozenset[str], "boot": int},
    ),
    RoundContext: Adapter(
        lambda ctx: {"view": ctx.view, "index": ctx.index, "round": ctx.round},
        _context_of,
        {"view": NodeView, "index": int, "round": int},
    ),
    Layout: Adapter(
        lambda layout: {"hash": layout.hash, "tensors": layout.plain()},
        _layout_of,
        {"hash": int, "tensors": tuple[tuple[str, tuple[int, ...], bool], ...]},
    ),
}


# Sizes, and which scheme's state it is


def check_structure(value: Any, template: Any, layout: Layout) -> None:
    """Raise DataError unless `value` is built as `template` is, a state that this run's algorithm
    or codec has just made: the same classes where both have one, arrays of the same shape, and
    those that the template lacks of the layout's size. (Types were checked when it was read.)"""
    _check(value, template, layout.size, "the state")


def _check(value: Any, template: Any, size: int, where: str) -> None:
    if (is_dataclass(template) or isinstance(template, Mapping)) and type(value) is not type(template):
        raise DataError(f"{where} is a {type(value).__name__}, where the recipe makes a {type(template).__name__}")
    if isinstance(value, np.ndarray):
        shape = template.shape if isinstance(template, np.ndarray) else (size,)
        if value.shape != shape:
            raise DataError(f"{where} has the shape {value.shape}, where the model's is {shape}")
        if not (value.flags.c_contiguous and value.flags.aligned):
            raise DataError(f"{where} is not one piece of memory")
    elif isinstance(value, _OF_THE_RUN):
        return
    elif is_dataclass(value):
        own = getattr(value, "layout", None)
        size = own.size if isinstance(own, Layout) else size
        for field in fields(value):
            _check(getattr(value, field.name), getattr(template, field.name, None), size, f"{where}.{field.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(item, None, size, f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        same = type(template) is type(value) and len(template) == len(value)
        for k, item in enumerate(value):
            _check(item, template[k] if same else None, size, f"{where}[{k}]")
