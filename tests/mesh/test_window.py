"""The window on simulated links: it fills a fast link and keeps a slow one awake."""

from __future__ import annotations

import pytest

from edgegossip.mesh.window import MAX_BYTES, QUEUE_S, Window


def simulate(rate: float, round_trip_s: float, total: int) -> tuple[float, float, Window]:
    """Send `total` bytes over a link of `rate` bytes/s: seconds taken, longest queueing delay after the first second."""
    window, now, left, free_at, worst = Window(256 << 10), 0.0, total, 0.0, 0.0
    acks: list[tuple[float, int]] = []
    while left or acks:
        while left and window.has_room:
            size = min(window.chunk_bytes, left)
            left -= size
            free_at = max(free_at, now) + size / rate
            if window.send(size, now) or not left:
                acks.append((free_at + round_trip_s, window.position))
            if now > 1.0:
                worst = max(worst, free_at - now)
        assert acks, "nothing may go out and nothing is under way: the stream would stand still"
        now, position = acks.pop(0)
        window.acknowledge(position, now)
    return now, worst, window


@pytest.mark.parametrize("round_trip_s", [0.0005, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("rate", [16e3, 125e3, 1e6, 12e6, 500e6])
def test_a_link_is_used_and_not_clogged(rate, round_trip_s):
    total = min(int(rate * 30), 200 << 20)
    took_s, worst_s, window = simulate(rate, round_trip_s, total)
    reachable = min(rate, MAX_BYTES / max(round_trip_s, MAX_BYTES / rate))
    assert took_s <= total / reachable * 1.25 + 20 * round_trip_s
    assert worst_s <= QUEUE_S + 2 * round_trip_s + 3.0 * window.chunk_bytes / rate
    assert window.size_bytes <= MAX_BYTES
