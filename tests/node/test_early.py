"""Frames that come too early: bounded, and each sender for itself."""

from __future__ import annotations

from edgegossip.mesh.base import Received
from edgegossip.node.early import Early


def sizes(early: Early) -> list[tuple[str, int]]:
    found = []
    while (frame := early.pop()) is not None:
        found.append((frame.sender, len(frame.data)))
    return found


def test_each_sender_has_its_share_and_the_order_stays() -> None:
    early = Early(2, 20_000)
    for sender, size in (("b", 6_000), ("d", 2_000), ("b", 6_000), ("b", 3_000), ("d", 7_000)):
        early.keep(Received(sender, bytes(size)))
    assert sizes(early) == [("b", 6_000), ("d", 2_000), ("b", 3_000), ("d", 7_000)]
    assert early.keep(Received("b", bytes(9_000)))  # what was taken out makes room


def test_a_tiny_frame_counts_for_what_it_costs() -> None:
    early = Early(1, 64 << 10)
    assert sum(early.keep(Received("b", b"x")) for _ in range(1000)) == 64 == len(early)


def test_a_frame_larger_than_what_may_wait_is_kept_when_it_is_the_first() -> None:
    early = Early(2, 2_000)
    for sender, size in (("b", 4_000), ("b", 10), ("d", 10)):
        early.keep(Received(sender, bytes(size)))
    assert sizes(early) == [("b", 4_000)]
