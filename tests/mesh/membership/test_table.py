"""Laws of the table: merging is a join, and the hash tells tables apart."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh.membership.table import Entry, Status, bits, digest_of, merge, rows_of

ENTRIES = st.builds(
    Entry,
    st.sampled_from(Status),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["", "10.0.0.1:7700", "10.0.0.2:7700"]),
    st.integers(0, 7),
)


@given(ENTRIES, ENTRIES, ENTRIES)
@settings(deadline=None)
def test_merging_is_a_join(a: Entry, b: Entry, c: Entry) -> None:
    assert merge(a, a) == a
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), b) == merge(a, b)


@given(ENTRIES, ENTRIES)
def test_only_a_higher_incarnation_takes_back_what_was_said(a: Entry, b: Entry) -> None:
    merged = merge(a, b)
    assert merged.incarnation == max(a.incarnation, b.incarnation)
    if a.incarnation == b.incarnation:
        assert merged.status == max(a.status, b.status)


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.lists(ENTRIES, min_size=1, max_size=4))
def test_the_digest_tells_tables_apart(a: list[Entry], b: list[Entry]) -> None:
    assert (digest_of(a) == digest_of(b)) == (a == b)


def test_rows_leave_out_who_was_never_seen() -> None:
    here = Entry(Status.ALIVE, 1, 5, "10.0.0.1:7700")
    assert rows_of([Entry(), here, Entry()]) == ((1, here),)
    assert list(bits(0b1011)) == [0, 1, 3]
