"""Messages before their round: order, duplicates, bounds, and that old values stay usable."""

from __future__ import annotations

from edgegossip.frame import Frame, Kind
from edgegossip.gossip.streams import PendingMessages


def frame(round: int) -> Frame:
    return Frame(Kind.MODEL, 1, b"", 0, b"r" * 16, round, 1, 0, b"body")


def put(inbox: PendingMessages, sender: int, *rounds: int) -> PendingMessages:
    for round in rounds:
        after = inbox.put(sender, frame(round), max_frames=3)
        assert after is not None
        inbox = after
    return inbox


def test_take_gives_one_round_by_sender_and_keeps_what_is_later() -> None:
    inbox = put(put(PendingMessages(), 2, 5, 7, 6), 1, 6, 5)
    now, later = inbox.take(6)
    assert list(now) == [1, 2] and {f.round for f in now.values()} == {6}
    assert later.newest(2) == 7 and later.newest(1) == -1 and [f.round for f in later.of(2)] == [7]
    assert [f.round for f in inbox.of(2)] == [5, 6, 7] and inbox.newest(1) == 6


def test_a_second_frame_of_a_sender_and_round_is_a_duplicate() -> None:
    assert put(PendingMessages(), 1, 5).put(1, frame(5), 3) is None


def test_only_the_newest_frames_of_a_sender_stay() -> None:
    inbox = put(PendingMessages(), 1, 9, 5, 8, 7)
    assert [inbox.take(r)[0] != {} for r in (5, 7, 8, 9)] == [False, True, True, True]
