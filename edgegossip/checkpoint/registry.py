"""The registry of classes that a checkpoint may hold, how each becomes named fields and comes back,
and whether what was read is what it must be.

A frozen dataclass is its fields, each checked against its annotation. What a state holds of the run
around it (its view, whose topology and codec are objects of this process) has an *adapter*: the few
values that belong to the state, and a function that puts them into what the present process has.

`STATES` has gossip's and the codecs' states. A new state class is one line there, and none where it
is of another package that adds a codec or an algorithm;
`tests/checkpoint/test_states.py` keeps a state of every algorithm with every codec, and fails when
one is missing. `check_structure` then holds a state that was read against one of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from importlib import import_module
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from edgegossip import plugins
from edgegossip.frame import Frame
from edgegossip.gossip.base import NodeView
from edgegossip.gossip.scheme import RoundContext
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DataError, EdgegossipError, UsageError

_PLAIN = (str, bytes, bool)
_OF_THE_RUN = (NodeView, RoundContext, Layout, Frame)  # their adapters, or the engine, check them


class Adapter(NamedTuple):
    """Takes apart and puts together a class whose fields are not all a state's own."""

    to_fields: Callable[[Any], Mapping[str, Any]]
    from_fields: Callable[[Mapping[str, Any], Any], Any]  # (fields, RunContext); KeyError, TypeError: refused
    hints: Mapping[str, Any]  # field -> its annotation


class Entry(NamedTuple):
    """Names one class, which is imported when it is first met, so that a registry costs a waiting
    board nothing. What it is called in files stays when it moves: `stored` is its first name,
    `renamed` has the first names of fields that have others by now."""

    module: str
    attribute: str
    adapter: Adapter | None = None
    stored: str = ""  # where it is not that of its place, such as "gossip.state.State"
    renamed: Mapping[str, str] = MappingProxyType({})  # field -> its name in files
    optional: tuple[str, ...] = ()  # fields that came after the first version: not written where they are None or empty

    @property
    def name(self) -> str:
        """The name that stands in files."""
        return self.stored or f"{self.module.removeprefix('edgegossip.')}.{self.attribute}"


class StateRegistry:
    """Holds entries by name and by class. Nothing else can be written or read."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._by_place = {(e.module, e.attribute): e for e in self._entries.values()}
        self._hints: dict[str, Mapping[str, Any]] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def to_fields(self, value: Any, where: str) -> tuple[str, Mapping[str, Any]]:
        """Return a value's name and fields. Raises UsageError on a class that is not in the
        registry, a field that is not of its type; `where` is the way to the value, for its text."""
        cls = type(value)
        entry = self._by_place.get((cls.__module__, cls.__qualname__)) or _foreign(cls.__module__, cls.__qualname__)
        if entry is None:
            raise UsageError(
                f"{where} is a {cls.__module__}.{cls.__qualname__}, which is not in the table of what a checkpoint keeps "
                "(edgegossip/checkpoint/registry.py)"
            )
        if isinstance(value, Enum):
            return entry.name, {"value": value.value}
        if entry.adapter is not None:
            found = entry.adapter.to_fields(value)
        else:
            found = {f.name: getattr(value, f.name) for f in fields(value)}
            empty = {name for name, v in found.items() if v is None or (isinstance(v, Mapping) and not v)}
            found = {name: v for name, v in found.items() if name not in empty.intersection(entry.optional)}
        if fault := self._fault(entry, cls, found):
            raise UsageError(f"{where}: {fault}")
        return entry.name, {entry.renamed.get(field, field): value for field, value in found.items()}

    def from_fields(self, name: str, found: Mapping[str, Any], run: Any) -> Any:
        """Return the object of this name with these fields, by their names in files. Raises
        DataError on an unknown name or field, one that is missing and has no default, or a value
        that is not of the field's type or that the class refuses."""
        entry = self._entries.get(name) or _foreign(*name.partition(_OF_PLUGIN)[::2])
        if entry is None:
            raise DataError(f"it holds a {name!r}, which this version of edgegossip does not know")
        try:
            cls = getattr(import_module(entry.module), entry.attribute)
            if issubclass(cls, Enum):
                return cls(found["value"])
            if entry.renamed:
                now = {stored: field for field, stored in entry.renamed.items()}
                found = {now.get(stored, stored): value for stored, value in found.items()}
            if entry.adapter is None:
                self._check_names(name, cls, found)
            if fault := self._fault(entry, cls, found):
                raise DataError(f"it holds a {fault}")
            return cls(**found) if entry.adapter is None else entry.adapter.from_fields(found, run)
        except DataError:
            raise
        except (ImportError, KeyError, TypeError, ValueError, AttributeError, EdgegossipError) as error:
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
            if fault := type_mismatch(value, hints[field]):
                return f"{entry.name} whose {field} is {fault}"
        return None


_OF_PLUGIN = " of plug-in "


def _foreign(module: str, attribute: str) -> Entry | None:
    """Return the entry of a dataclass of another package's codec or algorithm; None for any other
    class."""
    return Entry(module, attribute, stored=f"{module}{_OF_PLUGIN}{attribute}") if plugins.is_of_one(module) else None


# Whether a value is what an annotation says


def type_mismatch(value: Any, hint: Any) -> str | None:
    """Return what a value is instead of what its annotation says, in words; None where it is that.
    Any and type variables take everything. Raises TypeError on a form of annotation that is not
    known here: a state must not have it."""
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
    if alias := getattr(origin, "__value__", None):  # made by a `type` statement, as numpy 2.5's NDArray
        return type_mismatch(value, alias[args] if args else alias)
    if origin in (Union, UnionType):
        return None if any(type_mismatch(value, choice) is None for choice in args) else _is(value, "none of its types")
    if origin is np.ndarray:
        return _array(value, args)
    if origin in (tuple, frozenset, list):
        return _items(value, origin, args)
    if origin in (dict, Mapping):
        return _mapping(value, args)
    if origin is Sequence:
        return _items(value, list if isinstance(value, list) else tuple, (*args, ...))
    if isinstance(origin, type) and (origin.__module__.startswith("edgegossip.") or is_dataclass(origin)):
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
        faults = (type_mismatch(v, hint) for v, hint in zip(value, args, strict=True))
    else:
        faults = (type_mismatch(v, args[0]) for v in value)
    return next((f"a {kind.__name__} with {fault}" for fault in faults if fault), None)


def _mapping(value: Any, args: tuple[Any, ...]) -> str | None:
    if not isinstance(value, Mapping):
        return _is(value, "a mapping")
    if not args:
        return None
    for key, item in value.items():
        if fault := type_mismatch(key, args[0]) or type_mismatch(item, args[1]):
            return f"a mapping with {fault}"
    return None


# The states of a board and of its codec


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


_VIEW = Adapter(
    lambda view: {"node": view.node, "run_id": view.run_id, "down": view.down, "boot": view.boot},
    _view_of,
    {"node": str, "run_id": bytes, "down": frozenset[str], "boot": int},
)
_CONTEXT = Adapter(
    lambda ctx: {"view": ctx.view, "index": ctx.index, "round": ctx.round},
    _context_of,
    {"view": NodeView, "index": int, "round": int},
)
_LAYOUT = Adapter(
    lambda layout: {"hash": layout.hash, "tensors": layout.plain()},
    _layout_of,
    {"hash": int, "tensors": tuple[tuple[str, tuple[int, ...], bool], ...]},
)


def _of(module: str, *attributes: str, stored: str = "", **renamed: str) -> tuple[Entry, ...]:
    """Return entries of one module; `stored`: the one that they have in files, `renamed`: see
    `Entry`."""
    return tuple(
        Entry(f"edgegossip.{module}", attribute, None, f"{stored or module}.{attribute}", renamed)
        for attribute in attributes
    )


STATES = StateRegistry(
    (
        Entry("edgegossip.gossip.base", "NodeView", _VIEW),
        Entry("edgegossip.gossip.scheme", "RoundContext", _CONTEXT, "gossip.here.Here"),
        Entry("edgegossip.layout", "Layout", _LAYOUT),
        *_of("frame", "Frame", "Kind", "Aux"),
        Entry(
            "edgegossip.gossip.rounds",
            "State",
            stored="gossip.state.State",
            renamed={"ctx": "here", "incarnation": "life"},
            optional=("reliance",),
        ),
        Entry("edgegossip.gossip.rounds", "Stepped", stored="gossip.state.Stepped", optional=("waits_s",)),
        *_of("gossip.rounds", "Reliance"),
        *_of("gossip.streams", "OutEdge", incarnations="lives"),
        *_of("gossip.streams", "InEdge"),
        Entry("edgegossip.gossip.streams", "PendingMessages", stored="gossip.inbox.Inbox"),
        Entry("edgegossip.gossip.scheme", "Published", optional=("own",)),
        Entry("edgegossip.gossip.symmetric", "Mixing", optional=("body", "early", "own", "rates")),
        Entry("edgegossip.gossip.symmetric", "Gathered", stored="gossip.mixing.Gathered", optional=("distances",)),
        Entry("edgegossip.gossip.publish", "ErrorMemory", stored="gossip.publish.Residue"),
        Entry("edgegossip.gossip.publish", "PublicCopies", stored="gossip.publish.Told"),
        Entry("edgegossip.gossip.push", "Mass", renamed={"incarnation": "life"}, optional=("first",)),
        *_of("gossip.push", "Total", incarnation="life"),
        *_of("gossip.parallel", "Streams", "Stream"),
        *_of("gossip.tracking", "Tracked", "Edge", "Heard"),
        *_of("gossip.adpsgd", "State"),
        *_of("gossip.adpsgd", "Begun", "Taken", stored="gossip.exchange"),
        *_of("gossip.momentum", "State"),
        *_of("gossip.outer", "State"),
        *_of("gossip.overlap", "State"),
        *_of("gossip.fragments", "CodecState"),
        *_of("gossip.base", "RoundDone"),
        *_of("codecs.feedback", "FeedbackState"),
        *_of("codecs.sparse", "DgcState", stored="codecs.dgc"),
        *_of("codecs.lowrank", "PowerSgdState", stored="codecs.powersgd"),
        *_of("codecs.uniform", "ElastiClState", stored="codecs.elasticl"),
        *_of("codecs.levels", "LevelRule"),
        *_of("codecs.per_tensor", "PerTensorState", "_Run"),
    )
)


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
