"""When a board may start: with everybody there, or without those who are known to be gone. All in
virtual time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgegossip.engine.events import (
    Event,
    Failed,
    FrameReceived,
    Load,
    Loaded,
    MemberNews,
    NeighbourDown,
    NeighbourUp,
    Poll,
    Polled,
    Train,
)
from edgegossip.engine.joining import Patience, PeerStatus, PendingFrames, RemoteMembers
from edgegossip.engine.node import Stage
from tests.engine.boards import LAYOUT, Board, model_frame, received

GONE = NeighbourDown("d", "its process was killed", closed=True)
STALE = [NeighbourDown(peer, "pi-7 got no answer") for peer in "bd"]
LEFT = [NeighbourDown(peer, f"{peer} left", left=True) for peer in "bd"]


@pytest.mark.parametrize(
    ("events", "down"),
    [
        ([NeighbourUp("b"), NeighbourUp("d")], set()),
        ([NeighbourUp("b"), GONE], {"d"}),
        ([NeighbourUp("d"), NeighbourDown("d", "lost"), NeighbourUp("b")], {"d"}),
        ([NeighbourUp("d"), NeighbourDown("d", "lost"), NeighbourUp("d"), NeighbourUp("b")], set()),
        ([NeighbourUp("b"), NeighbourDown("d", "never reached"), received("b", 0)], {"d"}),
    ],
)
def test_a_board_starts_when_nobody_is_missing_who_is_worth_waiting_for(events: list[Event], down: set[str]) -> None:
    board = Board("a").give(*events)
    assert isinstance(board.question, Load) and board.engine.stage is Stage.LOADING and not board.engine.listens
    assert [name for name, _ in board.log] == ["peer-down"] * len(down) + ["joined"] and not board.timers
    board.load()
    assert board.engine.down == down and isinstance(board.question, Train)


@pytest.mark.parametrize("events", [[NeighbourUp("b")], [NeighbourUp("b"), NeighbourDown("d", "never reached")], []])
def test_a_neighbour_that_was_never_there_is_waited_for_and_named_every_five_seconds(events: list[Event]) -> None:
    board = Board("a").give(*events).wait(600.0)
    assert board.engine.stage is Stage.JOINING and board.engine.listens
    assert len(board.said("waiting")) == 120 and "missing" in board.said("waiting")[0]
    board.give(*(NeighbourUp(peer) for peer in "bd"))
    assert isinstance(board.question, Load)


def test_frames_of_neighbours_that_began_before_us_are_taken_in_once_the_model_is_there() -> None:
    board = Board("a").give(NeighbourUp("b"), received("b", 0, 3.0), NeighbourUp("d")).load().update()
    assert board.engine.stage is Stage.EXCHANGING and board.engine.algorithm.waiting_for(board.engine.state) == ("d",)
    board.give(received("d", 0, 3.0))
    assert board.engine.round == 1 and board.value == pytest.approx(2.0)


def test_a_late_board_waits_no_longer_than_the_grace_time_for_one_that_it_does_not_reach() -> None:
    board = Board("a").give(NeighbourUp("b"), received("b", 40))
    board.wait(2.9)
    assert board.engine.stage is Stage.JOINING
    board.give(received("b", 41)).wait(0.2)  # a second frame does not give it more time
    assert isinstance(board.question, Load)
    assert board.load().engine.down == {"d"}


@pytest.mark.parametrize(
    ("far_on", "there", "after_s"),
    [
        ("a", "a", None),
        ("a", "ac", 120.0),
        ("ac", "ac", 3.0),
        ("a", "acd", 120.0),
        ("ac", "acd", 3.0),
        ("e", "ac", None),
    ],
)
def test_a_round_far_ahead_is_believed_of_two_and_where_half_of_the_neighbours_are_there(
    far_on: str, there: str, after_s: float | None
) -> None:
    """Who lies of its round would else have a board train with nobody but it. f and g do not
    count: they will not come."""
    board = Board("b", topology="complete", members=tuple("abcdefg")).wait(200.0)
    board.give(NeighbourDown("f", "it was killed", closed=True), unfit("g", "b"))
    board.give(*(received(peer, 10**6) for peer in far_on), *(NeighbourUp(peer) for peer in there))
    board.wait((after_s or 600.0) - 0.1)
    assert board.engine.stage is Stage.JOINING
    if after_s is not None:
        board.wait(5.1 if after_s > 5.0 else 0.1)
        assert isinstance(board.question, Load)


def test_a_board_that_comes_again_when_all_have_left_says_so_and_ends() -> None:
    board = Board("a", restarted=True).give(*LEFT)
    assert isinstance(board.question, Failed) and board.engine.stage is Stage.FAILED
    assert board.question.reason == "a was started again when all its neighbours had left: the run is over"
    assert Board("a").give(*LEFT).engine.stage is Stage.JOINING  # one that comes for the first time waits
    back = Board("a", restarted=True).give(LEFT[0], NeighbourUp("b"), NeighbourDown("b", "lost"), LEFT[1])
    assert back.engine.stage is Stage.JOINING  # b was here again, and may come back


def test_how_long_all_have_been_gone_counts_anew_once_one_was_there() -> None:
    peers = PeerStatus(frozenset("bd"), True, Patience(3.0))
    for event in STALE:
        peers.note(event, 0.0)
    assert [peers.gone_for_s(now_s) for now_s in (0.0, 10.0)] == [0.0, 10.0]
    peers.heard("b", 10.0)
    assert peers.gone_for_s(15.0) == 0.0
    peers.note(STALE[0], 20.0)
    assert [peers.gone_for_s(now_s) for now_s in (20.0, 25.0)] == [0.0, 5.0]


HOWS = ["up", "", "left", "closed", "disagrees", "heard", "later"]


@given(st.lists(st.tuples(st.sampled_from("bd"), st.sampled_from(HOWS)), max_size=9))
@example([("b", "up"), ("b", "disagrees")])
@example([("b", ""), ("b", "heard"), ("b", "up"), ("b", "later")])
def test_what_is_known_of_neighbours_follows_from_what_was_said_of_each(said: list[tuple[str, str]]) -> None:
    peers, since, seen = PeerStatus(frozenset("bd"), True, Patience(3.0)), {"b": [""], "d": [""]}, set[str]()
    returning, now_s = set[str](), 0.0
    for peer, how in said:
        if how == "heard":
            peers.heard(peer, now_s)
            returning |= {peer} if len(since[peer]) > 1 and "disagrees" not in since[peer] else set()
        elif how == "later":
            now_s += 10.0
            assert peers.may_start(True, now_s) == ([""] not in since.values())
            returning.clear()
        else:
            down = NeighbourDown(peer, "gone", **dict.fromkeys({how} - {"up", ""}, True))
            peers.note(NeighbourUp(peer) if how == "up" else down, now_s)
            since[peer] = [how] if how == "up" else [*since[peer], how]
            seen |= {peer} if how in ("up", "closed") else set()
            returning.discard(peer)
    assert peers.up == {peer for peer in "bd" if since[peer] == ["up"]}
    assert peers.down.keys() == {peer for peer in "bd" if len(since[peer]) > 1} - returning
    assert peers.incompatible.keys() == {peer for peer in "bd" if "disagrees" in since[peer]}
    assert peers.never_compatible == peers.incompatible.keys() - seen
    assert peers.all_left == all({"left", "disagrees"} & {*since[peer]} for peer in "bd")
    assert peers.all_incompatible == (len(peers.incompatible) == 2)
    peers.gone_for_s(now_s + 1.0)
    assert peers.gone_for_s(now_s + 3.0) == 2.0 * (len(peers.down) == 2)


def test_a_board_that_comes_again_waits_while_others_than_its_neighbours_are_here() -> None:
    """Its neighbours are being restarted by their owner, as it was; the run goes on at c."""
    board = Board("a", restarted=True, remote=RemoteMembers({"c": True})).give(*LEFT).wait(30.0)
    assert board.engine.stage is Stage.JOINING and "waits, for the run goes on (c)" in board.said("waiting")[-1]
    board.give(MemberNews("c", False, left=True))
    assert isinstance(board.question, Failed)


def test_who_of_the_others_trains() -> None:
    remote = RemoteMembers({"c": True, "e": True, "f": False})
    assert remote.training == {"c", "e"}
    remote.note(MemberNews("e", True, restarted=True))  # it may be waiting for us
    remote.note(MemberNews("g", True))
    assert remote.training == {"c"} and not remote.nobody
    remote.note(MemberNews("c", False))
    assert not remote.training
    remote.note(MemberNews("c", True))
    assert remote.training == {"c"}
    for peer in "ceg":
        remote.note(MemberNews(peer, False, left=True))
    assert not remote.training and not remote.nobody  # f died: it may come back
    remote.note(MemberNews("f", False, left=True))
    assert remote.nobody


def test_a_neighbour_that_sends_is_not_down_whatever_was_said_before() -> None:
    """A board that joins takes over a table in which both of its neighbours are dead, by a mistake
    that is being put right."""
    board = Board("a", restarted=True).give(*STALE, received("b", 0), NeighbourUp("b"))
    assert board.load().engine.down == {"d"}
    board = Board("a", restarted=True).give(*STALE, received("b", 0)).wait(9.9)
    assert board.engine.stage is Stage.JOINING
    board.wait(5.1)  # it cannot be reached: it is not waited for without end
    assert board.load().engine.down == {"b", "d"}


def test_one_that_sends_again_may_take_as_long_again_to_come_back() -> None:
    peers = PeerStatus(frozenset("bd"), True, Patience(3.0))
    for event in STALE:
        peers.note(event, 0.0)
    for sends_s in (0.0, 20.0):
        peers.heard("b", sends_s)
        for after_s, down in ((9.9, {"d"}), (10.0, {"b", "d"})):
            peers.may_start(others_train=False, now_s=sends_s + after_s)
            assert peers.down.keys() == down


def test_a_board_that_comes_again_and_finds_all_dead_waits_for_a_while_only() -> None:
    board = Board("a", restarted=True).give(STALE[0]).wait(300.0)
    assert board.engine.stage is Stage.JOINING  # d was never heard of: it may still come
    board.give(STALE[1]).wait(119.0)
    assert board.engine.stage is Stage.JOINING
    board.wait(6.0)
    assert isinstance(board.question, Load)


def test_a_board_that_is_alone_in_its_run_starts_at_once() -> None:
    status = PeerStatus(frozenset(), restarted=False, patience=Patience(3.0))
    assert status.may_start(others_train=False, now_s=0.0)


def test_who_is_missing_is_said_with_the_reason_and_what_becomes_of_it() -> None:
    status = PeerStatus(frozenset("bd"), restarted=True, patience=Patience(3.0))
    status.note(NeighbourUp("d"), 100.0)
    status.note(NeighbourDown("b", "we got no answer; 2 of 3 members are here"), 100.0)
    text, missing = status.who_is_missing(frozenset(), 100.0)
    assert text == "waiting 1/2: missing b (down: we got no answer; 2 of 3 members are here)" and missing == ["b"]
    status.note(NeighbourDown("d", "lost d at 10.0.0.4:7700: connection refused; out of reach for 5 s"), 100.0)
    assert not status.may_start(others_train=False, now_s=100.0)
    text, _ = status.who_is_missing(frozenset(), 120.0)
    assert "d (last seen 20 s ago: at 10.0.0.4:7700: connection refused; out of reach for 5 s)" in text
    goes_on = "in 100 s this board goes on from its checkpoint, or ends if it has none"
    assert text.endswith(f"no neighbour is left: {goes_on}")
    assert status.may_start(others_train=False, now_s=220.0)


# -- frames that come too early


def sizes(pending: PendingFrames) -> list[tuple[str, int]]:
    found = []
    while (frame := pending.pop()) is not None:
        assert isinstance(frame.data, bytes)
        found.append((frame.sender, len(frame.data)))
    return found


def test_each_sender_has_its_share_and_the_order_stays() -> None:
    pending = PendingFrames(2, 20_000)
    for sender, size in (("b", 6_000), ("d", 2_000), ("b", 6_000), ("b", 3_000), ("d", 7_000)):
        pending.keep(FrameReceived(sender, bytes(size)))
    assert sizes(pending) == [("b", 6_000), ("d", 2_000), ("b", 3_000), ("d", 7_000)]
    assert pending.keep(FrameReceived("b", bytes(11_000)))  # what was taken out makes room; a first one may be larger


def test_a_tiny_frame_counts_for_what_it_costs() -> None:
    pending = PendingFrames(1, 64 << 10)
    assert sum(pending.keep(FrameReceived("b", b"x")) for _ in range(1000)) == 64 == len(pending)


def test_what_comes_before_training_begins_is_bounded_however_small_the_frames() -> None:
    board = Board("a", patience=Patience(3.0, pending_bytes=20_000)).give(NeighbourUp("b"))
    board.give(*[FrameReceived("b", b"x")] * 500, received("d", 0))
    assert len(board.engine.pending) == 9 + 1 and len(board.dropped()) == 491  # half of the room is d's
    board.give(NeighbourUp("d")).load()
    assert [c.peer for c in board.closed()] == ["b"]  # the first one is looked at, and no frame; the rest is dropped


def test_a_frame_that_is_none_does_not_make_a_board_late() -> None:
    board = Board("a").give(NeighbourUp("b"), FrameReceived("b", model_frame(90)[:-60][:40])).wait(100.0)
    assert board.engine.stage is Stage.JOINING


# -- neighbours that train something else


def unfit(peer: str, board: str = "a") -> NeighbourDown:
    words = f"{board} and {peer} do not fit together: the target is 9 classes on {board} and 8 classes on {peer}"
    return NeighbourDown(peer, words, disagrees=True)


def test_a_neighbour_that_disagrees_is_named_and_not_waited_for() -> None:
    board = Board("a").give(unfit("d"))
    assert board.engine.stage is Stage.JOINING  # b may still come
    assert board.said("disagrees") == [unfit("d").reason]
    assert "waiting 0/1: missing b" in board.wait(6.0).said("waiting")[0]
    board.give(NeighbourUp("b"))
    assert isinstance(board.question, Load) and not board.said("peer-down")
    assert board.load().engine.down == {"d"}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("before", [[], [received("b", 0)]])
def test_a_board_that_fits_no_neighbour_ends_and_says_why(restarted: bool, before: list[Event]) -> None:
    board = Board("a", restarted=restarted).give(*before, unfit("d"), unfit("b"))
    assert board.engine.stage is Stage.FAILED
    assert board.effects[-1] == Failed(f"a fits none of its neighbours: {unfit('b').reason}; {unfit('d').reason}")
    assert board.said("disagrees") == [unfit("d").reason, unfit("b").reason]


def test_one_that_turns_out_to_fit_nobody_while_it_loads_ends_before_its_first_round() -> None:
    board = Board("a").give(NeighbourUp("b"), unfit("d"))
    assert isinstance(board.question, Load)
    board.question = None
    view, x = board.view, np.zeros(LAYOUT.size, np.float32)
    polls = board.engine.handle(Loaded(view, x), 1.0)
    assert isinstance(polls[-1], Poll)
    assert not any(isinstance(e, Failed) for e in board.engine.handle(unfit("b"), 1.0))
    [failed] = board.engine.handle(Polled(), 1.0)
    assert isinstance(failed, Failed) and "a fits none of its neighbours" in failed.reason


@pytest.mark.parametrize(
    ("board", "others", "ends"),
    [
        ("c", "ab", True),
        ("b", "cd", False),
        ("a", "bcd", True),
        ("d", "abc", True),
        ("b", "ad", True),
        ("d", "b", False),
        ("a", "bc", False),
    ],
)
def test_of_a_fleet_that_is_split_the_larger_part_goes_on_or_that_of_the_first_board(
    board: str, others: str, ends: bool
) -> None:
    """Boards meet others than their neighbours, too: those have no say in whom a board waits
    for."""
    one = Board(board, topology="ring").give(*(unfit(peer, board) for peer in others))
    for peer in sorted(one.engine.config.neighbours - set(others)):
        one.give(NeighbourUp(peer))
    nobody = one.engine.config.neighbours <= set(others)
    assert isinstance(one.question, Failed if ends or nobody else Load)
    if ends and not nobody:
        assert one.question.reason.startswith(f"{board} does not fit {', '.join(others)}, who go on: ")


def test_a_board_that_has_begun_ends_between_two_rounds_where_it_is_of_the_smaller_part() -> None:
    board = Board("c", members=tuple("abcdef")).begin()
    board.give(*(unfit(peer, "c") for peer in "efa"))
    assert isinstance(board.question, Train)  # a question is open
    board.update().give(received("b", 0), received("d", 0))
    assert isinstance(board.question, Failed)
    assert board.question.reason == f"c does not fit a, e, f, who go on: {unfit('a', 'c').reason}"


def test_boards_that_did_fit_and_come_again_with_something_else_end_nobody() -> None:
    board = Board("b").begin().update().give(unfit("c", "b"), unfit("a", "b"))
    assert isinstance(board.question, Train) and board.engine.round == 1


def test_a_neighbour_that_disagreed_is_one_again_with_a_process_that_agrees() -> None:
    board = Board("a").give(unfit("d"), NeighbourUp("d"), unfit("b"))
    assert isinstance(board.question, Load)
    assert board.load().engine.down == {"b"}


def test_what_is_left_of_its_process_before_does_not_bring_it_back() -> None:
    board = Board("a").give(NeighbourUp("b"), unfit("b"), received("b", 0, 3.0), unfit("d"))
    assert board.engine.stage is Stage.FAILED


def test_one_that_comes_again_with_something_else_is_left_out_and_named() -> None:
    board = Board("a").begin().give(NeighbourDown("d", "d was restarted"), unfit("d"))
    assert board.engine.down == {"d"} and board.said("disagrees") == [unfit("d").reason]
    assert board.said("peer-down") == ["d was restarted"]
    board.give(NeighbourUp("d"))
    assert board.engine.down == frozenset() and board.said("peer-up") == ["d is back"]
