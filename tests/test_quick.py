"""Quick records are frozen dataclasses like any others."""

import copy
import pickle
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest

from edgegossip.gossip.messages import LARGEST, squared_norm
from edgegossip.quick import quick
from edgegossip.types import PeerError


@quick
@dataclass(frozen=True, slots=True)
class Record:
    one: int
    two: str = "b"
    three: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plain:
    one: int
    two: str = "b"
    three: Mapping[int, int] = field(default_factory=dict)


@quick
@dataclass(frozen=True)
class Slotless:
    one: int
    two: str = "b"
    three: Mapping[int, int] = field(default_factory=dict)


@pytest.mark.parametrize("cls", [Record, Slotless])
@pytest.mark.parametrize("arguments", [(1,), (1, "c"), (1, "c", {2: 3})])
def test_is_made_as_a_plain_one(cls: type[Any], arguments: tuple[Any, ...]) -> None:
    quickly, plainly = cls(*arguments), Plain(*arguments)
    assert type(quickly) is cls
    assert [getattr(quickly, f.name) for f in fields(cls)] == [getattr(plainly, f.name) for f in fields(Plain)]
    assert repr(quickly) == repr(plainly).replace("Plain", cls.__name__)
    with pytest.raises(FrozenInstanceError):
        quickly.one = 2


def test_compares_copies_replaces_and_pickles() -> None:
    record = Record(1, three={2: 3})
    assert record == Record(one=1, two="b", three={2: 3}) != Record(2, three={2: 3})
    assert record == copy.deepcopy(record) == pickle.loads(pickle.dumps(record))
    assert replace(record, two="c") == Record(1, "c", {2: 3})
    assert Record(1).three is not Record(1).three


def test_stays_frozen() -> None:
    record = Record(1)
    with pytest.raises(FrozenInstanceError):
        record.one = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del record.two
    with pytest.raises((TypeError, AttributeError)):
        record.four = 2  # type: ignore[attr-defined]


def test_wrong_calls_say_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"Record\.__init__\(\) missing 1 required positional argument: 'one'"):
        Record()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="four"):
        Record(1, four=2)  # type: ignore[call-arg]


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(TypeError, match="nothing may inherit from Record"):

        class Heir(Record):
            __slots__ = ()

    @dataclass(frozen=True, slots=True)
    class Made:
        one: int = field(init=False)

    @dataclass(frozen=True, slots=True)
    class Checked:
        one: int

        def __post_init__(self) -> None:
            assert self.one

    for cls in (Made, Checked):
        with pytest.raises(TypeError, match="not a record of plain fields"):
            quick(cls)


@pytest.mark.parametrize("values", [[3e19, 3e19], [np.inf, 1.0], [np.nan, 1.0], [LARGEST * 2, 0.0]])
def test_values_that_overflow_are_refused_without_a_word_of_numpy(values: list[float]) -> None:
    with np.errstate(all="raise"), pytest.raises(PeerError, match="too large to average"):
        squared_norm("board-1", np.array(values, np.float32), np.ones(2, np.float32))


@quick
@dataclass(frozen=True, slots=True)
class Wide:
    a: int
    b: int
    c: int = 3
    d: int = 4
    e: list[int] = field(default_factory=list)


@pytest.mark.parametrize("names", [(), ("a",), ("b", "a"), ("e", "c", "b"), ("a", "b", "c", "d", "e"), ("d", "a")])
@pytest.mark.parametrize("positional", range(7))
def test_is_called_as_python_would(positional: int, names: tuple[str, ...]) -> None:
    """Whatever the order of the names, and with Python's own words on what is wrong."""
    values, named = [k + 10 for k in range(positional)], dict(zip(names, range(20, 30), strict=False))

    def outcome(call: Any) -> Any:
        try:
            made = call(*values, **named)
        except TypeError as error:
            return str(error)
        return made.a, made.b, made.c, made.d, made.e

    def in_python(*args: Any, **kwargs: Any) -> Any:
        made = Wide.__new__(Wide)
        type(made).__init__(made, *args, **kwargs)
        return made

    assert outcome(Wide) == outcome(in_python)


def test_a_default_factory_that_fails_leaves_nothing_behind() -> None:
    @quick
    @dataclass(frozen=True, slots=True)
    class Failing:
        a: Any
        b: int = field(default_factory=lambda: 1 // 0)

    held = object()
    before = sys.getrefcount(held)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            Failing(held)
    after = sys.getrefcount(held)
    assert after == before
