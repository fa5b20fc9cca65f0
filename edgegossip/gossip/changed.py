"""`dataclasses.replace` for the states of a state machine, which change several times a message: eight times as fast.

Such records are frozen but not slotted: to copy one dictionary takes less time than to copy fifteen slots."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")

_new, _set = object.__new__, object.__setattr__


def changed(record: T, **changes: Any) -> T:
    """A copy of a frozen dataclass without slots, with some fields changed. `__post_init__` is not called. Raises
    TypeError on a field that it does not have."""
    before = record.__dict__
    fields = before | changes
    if len(fields) != len(before):
        unknown = sorted(changes.keys() - before.keys())
        raise TypeError(f"{type(record).__name__} has no field {', '.join(unknown)}")
    new = _new(type(record))
    _set(new, "__dict__", fields)
    return new
