"""What is learnt from acknowledgements: windows on simulated links, and silent peers."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Notice, Received
from edgegossip.mesh.congestion import MAX_BYTES, MIN_CHUNK_BYTES, QUEUE_S, CongestionWindow, StallDetector
from edgegossip.types import PeerError
from tests.mesh.support import QUICK, RUN, connect_all, wait_for


def simulate(
    rate: float, round_trip_s: float, total: int, every_s: float = math.inf
) -> tuple[float, float, CongestionWindow]:
    """Send `total` bytes over a link of `rate` bytes/s: seconds taken, longest queueing delay after
    the first second. `every_s` one chunk passes at once."""
    window, now, left, free_at, worst = CongestionWindow(256 << 10), 0.0, total, 0.0, 0.0
    burst_s = every_s
    acks: list[tuple[float, int]] = []
    while left or acks:
        while left and window.has_room:
            size = min(window.chunk_bytes, left)
            left -= size
            free_at = max(free_at, now) + (size / rate if now < burst_s else 0.0)
            burst_s += every_s if now >= burst_s else 0.0
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


@pytest.mark.parametrize("rate", [125e3, 1e6])
def test_chunks_that_pass_at_once_do_not_clog_a_link(rate):
    """As on a link that is shaped, or shared with others."""
    _, worst_s, window = simulate(rate, 0.02, int(rate * 30), every_s=0.5)
    assert worst_s <= QUEUE_S + 2 * 0.02 + 3.0 * window.chunk_bytes / rate


def test_one_acknowledgement_is_one_sample_and_at_most_doubles_the_window():
    window = CongestionWindow(256 << 10)
    before = window.size_bytes
    while not window.send(MIN_CHUNK_BYTES // 2, 0.0):
        pass
    while not window.send(MIN_CHUNK_BYTES // 2, 0.0):
        pass
    window.acknowledge(window.position, 0.001)
    assert window.size_bytes == 2 * before


class _Over(Exception):
    """Raised at the end of virtual time."""


def virtual(
    hung_s: float, monkeypatch: pytest.MonkeyPatch, alive_until_s: float = 0.0, *, heard: bool = False
) -> tuple[float, list[float], list[tuple[float, bool]]]:
    """When a peer that owes an acknowledgement from 0 s on, and hangs from `alive_until_s` on, is
    given up; when it was asked; and what was told. In virtual time, which ends after 1000 s."""
    now_s, asked_s, told = [0.0], [], []

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds
        if now_s[0] >= 1000:
            raise _Over
        assert len(asked_s) < 2000

    async def is_alive(limit_s: float) -> bool:
        asked_s.append(now_s[0])
        if now_s[0] < alive_until_s:
            return True
        await sleep(limit_s)
        return False

    async def run() -> float:
        silence = StallDetector(hung_s, is_alive, lambda silent_s, alive: told.append((silent_s, alive)))
        watcher = asyncio.ensure_future(silence.watch())
        await asyncio.wait({watcher}, timeout=0)
        assert not asked_s and not watcher.done()  # nothing is owed: no deadline
        silence.sent(0.0)
        if heard:
            silence.heard(0.0, more=False)
        done, _ = await asyncio.wait({watcher}, timeout=0 if heard else None)
        watcher.cancel()
        for task in done:
            with suppress(_Over), pytest.raises(PeerError, match=r"it does not answer: silent for \d+ s"):
                task.result()
        return now_s[0]

    with monkeypatch.context() as patch:
        patch.setattr("edgegossip.mesh.congestion.loop_s", lambda: now_s[0])
        patch.setattr("edgegossip.mesh.congestion.asyncio.sleep", sleep)
        return asyncio.run(run()), asked_s, told


def test_a_peer_that_is_alive_is_told_of_and_never_given_up(monkeypatch):
    ended_s, _, told = virtual(3.0, monkeypatch, alive_until_s=2000.0)
    assert ended_s >= 1000.0
    assert [alive for _, alive in told] == [True] * len(told)
    assert 200 <= len(told) <= 1400 and sorted(told) == told


def test_a_peer_that_answers_nothing_is_told_of_before_it_is_given_up(monkeypatch):
    given_up_s, _, told = virtual(4.0, monkeypatch)
    assert told[0] == (2.0, False)
    assert all(silent_s < given_up_s and not alive for silent_s, alive in told)


def test_a_peer_that_owes_nothing_may_be_silent(monkeypatch):
    assert virtual(0.02, monkeypatch, heard=True)[1:] == ([], [])


@pytest.mark.parametrize("hung_s", [3.0, 30.0])
@pytest.mark.parametrize("alive_until_s", [0.0, 10.0, 29.0, 200.0])
def test_a_peer_that_hangs_is_given_up_in_time(monkeypatch, hung_s: float, alive_until_s: float) -> None:
    """Even when the peer was alive at first."""
    given_up_s, asked_s, _ = virtual(hung_s, monkeypatch, alive_until_s)
    assert 0.2 * hung_s <= given_up_s - alive_until_s <= 1.1 * hung_s + 0.01
    if not alive_until_s:
        assert given_up_s >= 0.99 * hung_s
    assert len(asked_s) <= 5 + 4 * alive_until_s / hung_s


def test_a_peer_whose_inbox_is_full_is_told_of_and_kept():
    limits = replace(QUICK, hung_s=2.0)
    with (
        GrpcTransport("a", RUN, limits=limits) as a,
        GrpcTransport("b", RUN, limits=replace(QUICK, max_inbox_bytes=1_000)) as b,
    ):
        connect_all([a, b], ["a", "b"])
        for _ in range(9):
            a.send("b", [bytes(100)])
            wait_for(b, Received)
        for _ in range(20):
            a.send("b", [bytes(1_000_000)])
        notice = wait_for(a, Notice)
        assert notice.peer == "b"
        assert notice.text.startswith("b is alive, but takes no frames for ")
        for _ in range(20):
            wait_for(b, Received)
