"""The inbox of early messages: order, duplicates, bounds, and that old values stay usable."""

from __future__ import annotations

import pytest

from edgegossip.frame import Frame, Kind
from edgegossip.gossip.streams import EarlyMessages
from edgegossip.types import PeerError


def frame(round: int, size: int = 4) -> Frame:
    return Frame(Kind.MODEL, 1, b"", 0, b"r" * 16, round, 1, 0, bytes(size))


def put(inbox: EarlyMessages, sender: int, *rounds: int) -> EarlyMessages:
    for round in rounds:
        after = inbox.put(sender, frame(round), max_frames=3, max_bytes=1000)
        assert after is not None
        inbox = after
    return inbox


def test_take_gives_one_round_by_sender_and_keeps_what_is_later() -> None:
    inbox = put(put(EarlyMessages(), 2, 5, 7, 6), 1, 6, 5)
    now, later = inbox.take(6)
    assert list(now) == [1, 2] and {f.round for f in now.values()} == {6}
    assert later.newest(2) == 7 and later.newest(1) == -1 and later.size_bytes == 4
    assert inbox.size_bytes == 20 and inbox.newest(1) == 6


def test_a_second_frame_of_a_sender_and_round_is_a_duplicate() -> None:
    assert put(EarlyMessages(), 1, 5).put(1, frame(5), 3, 1000) is None


def test_only_the_newest_frames_of_a_sender_stay() -> None:
    inbox = put(EarlyMessages(), 1, 9, 5, 8, 7)
    assert [inbox.take(r)[0] != {} for r in (5, 7, 8, 9)] == [False, True, True, True]


def test_bytes_are_bounded_over_all_senders() -> None:
    inbox = put(EarlyMessages(), 1, 5)
    assert inbox.put(2, frame(5, 6), 3, 10) is not None
    with pytest.raises(PeerError, match="round 5 came too early: to keep it would take 11 bytes, more than the 10"):
        inbox.put(2, frame(5, 7), 3, 10)
    assert inbox.newest(2) == -1
