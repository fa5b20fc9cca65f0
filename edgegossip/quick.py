"""Frozen records that are made as quickly as others.

The `__init__` of a frozen dataclass calls `object.__setattr__` once a field, because its own refuses: two to four times as
long as plain assignment. Here the fields are assigned while the new object is of a class with the same slots that does not
refuse; then it becomes what it was asked for. Everything else is the dataclass's own. Where the kernels can, calls of those
with slots do not even get to `__init__` (`called_by`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

# (class, a row a field: name, 0 (needed), 1 (has a default) or 2 (has a default factory), default or factory)
Take: TypeAlias = Callable[[type[Any], tuple[tuple[str, int, Any], ...]], None]


def quick(cls: type[T]) -> type[T]:
    """For the most frequent of them, above `@dataclass(frozen=True)`, with slots or without. Raises TypeError on a class with
    `__post_init__`, with fields that `__init__` does not take, or with other slots than its fields; nothing may inherit."""
    own = fields(cls)  # type: ignore[arg-type]
    names = tuple(f.name for f in own)
    slots = getattr(cls, "__slots__", None)
    if hasattr(cls, "__post_init__") or slots not in (None, names) or not all(f.init for f in own):
        raise TypeError(f"{cls.__name__} is not a record of plain fields")
    room = {} if slots is None else {"__slots__": names}
    scope: dict[str, Any] = {"Open": type(cls.__name__, (), room), "Own": cls, "MISSING": MISSING}
    scope["become"] = object.__dict__["__class__"].__set__
    words, lines = ["self"], ["become(self, Open)"]
    for f in own:
        value = f.name
        if f.default is not MISSING:
            scope[f"default_{f.name}"] = f.default
            words.append(f"{f.name}=default_{f.name}")
        elif f.default_factory is not MISSING:
            scope[f"make_{f.name}"] = f.default_factory
            words.append(f"{f.name}=MISSING")
            value = f"make_{f.name}() if {f.name} is MISSING else {f.name}"
        else:
            words.append(f.name)
        lines.append(f"self.{f.name} = {value}")
    code = "\n ".join([f"def __init__({', '.join(words)}):", *lines, "self.__class__ = Own"])
    exec(code, scope)  # the fields' names are known only here, as in dataclasses itself
    scope["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    scope["__init__"].__annotations__ = cls.__init__.__annotations__
    type.__setattr__(cls, "__init__", scope["__init__"])
    type.__setattr__(cls, "__init_subclass__", classmethod(_refuse))
    if slots is not None:
        _slotted.append((cls, tuple(_row(f) for f in own)))
        if _take:
            _take[0](*_slotted[-1])
    return cls


def called_by(take: Take) -> None:
    """From now on `take` is told of every quick class with slots, and at once of those that are there: it has their calls made
    by native code, where that does the same. This module comes before the kernels, and so does not ask for them."""
    _take[:] = [take]
    for known in _slotted:
        take(*known)


_slotted: list[tuple[type[Any], tuple[tuple[str, int, Any], ...]]] = []
_take: list[Take] = []


def _row(f: Field[Any]) -> tuple[str, int, Any]:
    if f.default is not MISSING:
        return f.name, 1, f.default
    return (f.name, 0, None) if f.default_factory is MISSING else (f.name, 2, f.default_factory)


def _refuse(cls: type[Any], **_: Any) -> None:
    raise TypeError(f"{cls.__name__}: nothing may inherit from {cls.__mro__[1].__name__}")
