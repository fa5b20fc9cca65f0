"""Two words on every neighbour, the connection's and the members', make one sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh.base import PeerDown, PeerUp, Verdict
from edgegossip.node.members import Standing

DEAD, HERE = Verdict("b", False, "a and c got no answer"), Verdict("b", True, "b is here")
LOST = PeerDown("b", "connection refused")


def all_of(standing: Standing, *events: object) -> list:
    return [out for event in events for out in standing.take(event)]


def test_whichever_word_comes_first_counts_and_the_other_adds_nothing() -> None:
    died = PeerDown("b", DEAD.reason)
    assert all_of(Standing({"b"}), PeerUp("b"), LOST, DEAD) == [PeerUp("b"), LOST]
    assert all_of(Standing({"b"}), PeerUp("b"), DEAD, LOST) == [PeerUp("b"), died]


def test_a_neighbour_is_back_with_its_connection() -> None:
    assert all_of(Standing({"b"}), PeerUp("b"), LOST, DEAD, HERE) == [PeerUp("b"), LOST]
    assert all_of(Standing({"b"}), PeerUp("b"), LOST, DEAD, HERE, PeerUp("b")) == [PeerUp("b"), LOST, PeerUp("b")]
    assert all_of(Standing({"b"}), PeerUp("b"), DEAD, PeerUp("b"))[-1] == PeerUp(
        "b"
    )  # a fresh stream outdoes what was said


def test_a_neighbour_whose_connection_never_broke_is_back_when_it_objects() -> None:
    assert all_of(Standing({"b"}), PeerUp("b"), DEAD, HERE)[-1] == PeerUp("b")


def test_whom_we_closed_stays_closed() -> None:
    closed = PeerDown("b", "sent nonsense", closed=True)
    assert all_of(Standing({"b"}), PeerUp("b"), closed, HERE, PeerUp("b")) == [PeerUp("b"), closed]


@given(st.lists(st.sampled_from([PeerUp("b"), LOST, DEAD, HERE])))
def test_ups_and_downs_take_turns(events: list) -> None:
    out = all_of(Standing({"b"}), *events)
    assert all(type(a) is not type(b) for a, b in zip(out, out[1:], strict=False))
    if events and isinstance(events[-1], PeerUp):
        assert isinstance(out[-1], PeerUp)
    if events and events[-1] in (LOST, DEAD):
        assert isinstance(out[-1], PeerDown)
