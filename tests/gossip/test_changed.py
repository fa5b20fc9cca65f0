"""`changed` does what `dataclasses.replace` does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from edgegossip.gossip.changed import changed


@dataclass(frozen=True)
class Record:
    a: int
    b: str = "b"


def test_it_changes_a_copy() -> None:
    record = Record(1)
    assert changed(record, b="c") == replace(record, b="c") == Record(1, "c")
    assert changed(record) == record == Record(1) and changed(record) is not record


def test_a_field_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TypeError, match="Record has no field d"):
        changed(Record(1), d=2)
