"""Messages before their round: order, duplicates, bounds, and that old values stay usable."""

from __future__ import annotations

from edgegossip.frame import Frame, Kind
from edgegossip.gossip.streams import PendingMessages


def frame(round: int, size: int = 4) -> Frame:
    return Frame(Kind.MODEL, 1, b"", 0, b"r" * 16, round, 1, 0, bytes(size))


def put(inbox: PendingMessages, sender: int, *rounds: int) -> PendingMessages:
    for round in rounds:
        after = inbox.put(sender, frame(round), max_frames=3, share_bytes=1000, max_bytes=1000)
        assert after is not None
        inbox = after
    return inbox


def test_take_gives_one_round_by_sender_and_keeps_what_is_later() -> None:
    inbox = put(put(PendingMessages(), 2, 5, 7, 6), 1, 6, 5)
    now, later = inbox.take(6)
    assert list(now) == [1, 2] and {f.round for f in now.values()} == {6}
    assert later.newest(2) == 7 and later.newest(1) == -1 and later.size_bytes == 4
    assert inbox.size_bytes == 20 and inbox.newest(1) == 6


def test_a_second_frame_of_a_sender_and_round_is_a_duplicate() -> None:
    assert put(PendingMessages(), 1, 5).put(1, frame(5), 3, 1000, 1000) is None


def test_only_the_newest_frames_of_a_sender_stay() -> None:
    inbox = put(PendingMessages(), 1, 9, 5, 8, 7)
    assert [inbox.take(r)[0] != {} for r in (5, 7, 8, 9)] == [False, True, True, True]


def test_of_a_sender_that_fills_its_share_the_newest_frames_stay() -> None:
    inbox = PendingMessages()
    for round in (9, 5, 8):
        inbox = inbox.put(1, frame(round), 3, 8, 16) or inbox
    assert [f.round for f in inbox.of(1)] == [8, 9]
    alone = inbox.put(1, frame(10, 10), 3, 8, 16)
    assert alone is not None and [f.round for f in alone.of(1)] == [10]  # larger than the share
    assert inbox.put(2, frame(5, 8), 3, 8, 16) is not inbox  # the others' shares are theirs


def test_a_frame_that_all_senders_leave_no_room_for_is_as_good_as_lost() -> None:
    inbox = put(PendingMessages(), 1, 5)
    after = inbox.put(2, frame(5, 6), 3, 5, 10)
    assert after is not None and after.size_bytes == 10
    assert inbox.put(2, frame(5, 7), 3, 5, 10) is inbox
