"""A message and its content in one body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.flower._private.link import pack, unpack

OBJECTS = st.dictionaries(st.text("0123456789abcdef", min_size=1, max_size=64), st.binary(max_size=200), max_size=8)


@given(st.binary(max_size=100), OBJECTS)
def test_what_goes_in_comes_out(head: bytes, objects: dict[str, bytes]) -> None:
    assert unpack(pack(head, objects)) == (head, objects)


@given(st.binary(max_size=300))
def test_nothing_but_a_value_error_comes_of_anything_else(body: bytes) -> None:
    try:
        head, objects = unpack(body)
    except ValueError:
        return
    assert pack(head, objects) == body or len(objects) < body.count(b"\x00")  # an id may come twice


@given(st.binary(min_size=1, max_size=50), OBJECTS, st.data())
def test_a_body_that_was_cut_off_is_refused(head: bytes, objects: dict[str, bytes], data: st.DataObject) -> None:
    body = pack(head, objects)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        found, some = unpack(cut)
    except ValueError:
        return
    assert found == head and len(some) < len(objects)  # cut between two objects; whoever wanted the others misses them


def test_a_bundle_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed"):
        unpack(bytes(4 * 100_002))
