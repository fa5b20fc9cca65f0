"""The table of classes that may stand in a checkpoint, and how each is taken apart and put together
again.

A frozen dataclass is its fields, each checked against its annotation. What a state holds of the
outside (the view of the run, whose topology and codec are objects of this process) has an
*adapter*: the few values that belong to the state, and a function that puts them into what the
present process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from edgegossip.checkpoint.annotations import misfit
from edgegossip.types import DataError, EdgegossipError, UsageError


class Adapter(NamedTuple):
    """For a class whose fields are not all a state's own."""

    apart: Callable[[Any], Mapping[str, Any]]
    together: Callable[[Mapping[str, Any], Any], Any]  # (fields, what is outside); KeyError, TypeError: refused
    hints: Mapping[str, Any]


class Entry(NamedTuple):
    """One class. Imported when it is first met, so that a table costs a waiting board nothing. What
    it is called in files stays when it moves: `stored` is its first name, `renamed` has the first
    names of fields that have others by now."""

    module: str
    attribute: str
    adapter: Adapter | None = None
    stored: str = ""  # where it is not that of its place, such as "gossip.state.State"
    renamed: Mapping[str, str] = MappingProxyType({})  # field -> its name in files
    later: tuple[str, ...] = ()  # fields that came after the first version: not written where they are None

    @property
    def name(self) -> str:
        """As it stands in files."""
        return self.stored or f"{self.module.removeprefix('edgegossip.')}.{self.attribute}"


class Classes:
    """Entries by name and by class. Nothing else can be written or read."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._by_place = {(e.module, e.attribute): e for e in self._entries.values()}
        self._hints: dict[str, Mapping[str, Any]] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def take_apart(self, value: Any, where: str) -> tuple[str, Mapping[str, Any]]:
        """Name and fields. Raises UsageError on a class that is not in the table, a field that is
        not of its type."""
        cls = type(value)
        entry = self._by_place.get((cls.__module__, cls.__qualname__))
        if entry is None:
            raise UsageError(
                f"{where} is a {cls.__module__}.{cls.__qualname__}, which is not in the table of what a checkpoint keeps "
                "(edgegossip/checkpoint/table.py)"
            )
        if isinstance(value, Enum):
            return entry.name, {"value": value.value}
        if entry.adapter is not None:
            found = entry.adapter.apart(value)
        else:
            found = {f.name: getattr(value, f.name) for f in fields(value)}
            found = {name: v for name, v in found.items() if v is not None or name not in entry.later}
        if fault := self._fault(entry, cls, found):
            raise UsageError(f"{where}: {fault}")
        return entry.name, {entry.renamed.get(field, field): value for field, value in found.items()}

    def put_together(self, name: str, found: Mapping[str, Any], outside: Any) -> Any:
        """The object. Raises DataError on an unknown name or field, one that is missing and has no
        default, or a value that is not of the field's type or that the class refuses."""
        entry = self._entries.get(name)
        if entry is None:
            raise DataError(f"it holds a {name!r}, which this version of edgegossip does not know")
        cls = getattr(import_module(entry.module), entry.attribute)
        try:
            if issubclass(cls, Enum):
                return cls(found["value"])
            if entry.renamed:
                now = {stored: field for field, stored in entry.renamed.items()}
                found = {now.get(stored, stored): value for stored, value in found.items()}
            if entry.adapter is None:
                self._check_names(name, cls, found)
            if fault := self._fault(entry, cls, found):
                raise DataError(f"it holds a {fault}")
            return cls(**found) if entry.adapter is None else entry.adapter.together(found, outside)
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, EdgegossipError) as error:
            raise DataError(f"it holds a {name} that cannot be: {error}") from None

    def _check_names(self, name: str, cls: type, found: Mapping[str, Any]) -> None:
        if not is_dataclass(cls):
            raise TypeError("not a dataclass")
        known = {f.name: f for f in fields(cls)}
        if unknown := sorted(found.keys() - known.keys()):
            raise DataError(f"its {name} has a field {unknown[0]!r}, which this version of edgegossip does not know")
        for field in known.values():
            if field.name not in found and field.default is MISSING and field.default_factory is MISSING:
                raise DataError(f"its {name} has no {field.name}: it was written by another version of edgegossip")

    def _fault(self, entry: Entry, cls: type, found: Mapping[str, Any]) -> str | None:
        hints = self._hints.get(entry.name)
        if hints is None:
            hints = entry.adapter.hints if entry.adapter else get_type_hints(cls)
            self._hints[entry.name] = hints
        for field, value in found.items():
            if field not in hints:
                return f"{entry.name} with an unknown field {field!r}"
            if fault := misfit(value, hints[field]):
                return f"{entry.name} whose {field} is {fault}"
        return None
