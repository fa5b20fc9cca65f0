"""`changed` does what `dataclasses.replace` does."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, replace

import pytest

from edgegossip.gossip.changed import Changed, changed, in_python
from edgegossip.native import _native
from edgegossip.quick import quick


@dataclass(frozen=True)
class Record:
    a: int
    b: str = "b"


@quick
@dataclass(frozen=True)
class Quick:
    a: int
    b: str = "b"


def test_the_kernels_have_one() -> None:
    assert changed is _native.changed


@pytest.mark.parametrize("change", [changed, in_python])
@pytest.mark.parametrize("kind", [Record, Quick])
def test_it_changes_a_copy(change: Changed, kind: type[Record]) -> None:
    record = kind(1)
    assert change(record, b="c") == replace(record, b="c") == kind(1, "c")
    assert change(record) == record == kind(1) and change(record) is not record
    assert change(change(record, a=2), b="d") == kind(2, "d") and record == kind(1)
    assert type(change(record)) is kind and gc.is_tracked(change(record))


@pytest.mark.parametrize("change", [changed, in_python])
def test_a_field_that_is_not_there_is_an_error(change: Changed) -> None:
    record = Record(1)
    with pytest.raises(TypeError, match="Record has no field d"):
        change(record, d=2)
    assert record == Record(1) and vars(record) == {"a": 1, "b": "b"}


def test_only_a_record_can_be_changed() -> None:
    with pytest.raises(AttributeError):
        changed(3, a=1)
    with pytest.raises(TypeError, match="one record"):
        changed()  # type: ignore[call-arg]


def test_nothing_is_kept_alive() -> None:
    value, record = object(), Record(1)
    before = sys.getrefcount(value)
    for _ in range(100):
        changed(record, a=value)
    assert sys.getrefcount(value) == before and sys.getrefcount(Record) < 1000
