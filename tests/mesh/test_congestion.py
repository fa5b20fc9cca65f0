"""What is learnt from acknowledgements: windows on simulated links, and silent peers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Notice, Received
from edgegossip.mesh.congestion import MAX_BYTES, QUEUE_S, CongestionWindow, StallDetector
from edgegossip.types import PeerError
from tests.mesh.support import QUICK, RUN, connect_all, wait_for


def simulate(rate: float, round_trip_s: float, total: int) -> tuple[float, float, CongestionWindow]:
    """Send `total` bytes over a link of `rate` bytes/s: seconds taken, longest queueing delay after
    the first second."""
    window, now, left, free_at, worst = CongestionWindow(256 << 10), 0.0, total, 0.0, 0.0
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


def watch(hung_s: float, alive: bool, seconds: float, *, heard: bool = False) -> list[tuple[float, bool]]:
    """What is told of a peer that stays silent."""

    async def run() -> list[tuple[float, bool]]:
        told: list[tuple[float, bool]] = []

        async def is_alive(_limit_s: float) -> bool:
            return alive

        silence = StallDetector(hung_s, is_alive, lambda silent_s, alive: told.append((silent_s, alive)))
        watcher = asyncio.ensure_future(silence.watch())
        await asyncio.sleep(0.03)  # nothing is owed: no deadline
        assert not told
        silence.sent(time.monotonic())
        if heard:
            silence.heard(time.monotonic(), more=False)
        done, _ = await asyncio.wait({watcher}, timeout=seconds)
        watcher.cancel()
        for task in done:
            task.result()
        return told

    return asyncio.run(run())


def test_a_peer_that_is_alive_is_told_of_and_never_given_up():
    told = watch(0.2, alive=True, seconds=0.5)
    assert [alive for _, alive in told] == [True] * len(told)
    assert 2 <= len(told) <= 10 and sorted(told) == told


def test_a_peer_that_answers_nothing_is_given_up():
    with pytest.raises(PeerError, match=r"it does not answer: silent for \d+ s"):
        watch(0.1, alive=False, seconds=30.0)
    assert [alive for _, alive in watch(0.4, alive=False, seconds=0.2)] == [False]


def test_a_peer_that_owes_nothing_may_be_silent():
    assert watch(0.02, alive=False, seconds=0.1, heard=True) == []


def virtual(hung_s: float, monkeypatch: pytest.MonkeyPatch, alive_until_s: float = 0.0) -> tuple[float, list[float]]:
    """When a peer that owes an acknowledgement from 0 s on, and hangs from `alive_until_s` on, is
    given up; and when it was asked. In virtual time."""
    now_s, asked_s = [0.0], []

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds
        assert now_s[0] < 1000 and len(asked_s) < 1000

    async def is_alive(limit_s: float) -> bool:
        asked_s.append(now_s[0])
        if now_s[0] < alive_until_s:
            return True
        await sleep(limit_s)
        return False

    async def run() -> float:
        silence = StallDetector(hung_s, is_alive, lambda *_told: None)
        silence.sent(0.0)
        with pytest.raises(PeerError, match="it does not answer"):
            await silence.watch()
        return now_s[0]

    with monkeypatch.context() as patch:
        patch.setattr("edgegossip.mesh.congestion.loop_s", lambda: now_s[0])
        patch.setattr("edgegossip.mesh.congestion.asyncio.sleep", sleep)
        return asyncio.run(run()), asked_s


@pytest.mark.parametrize("hung_s", [3.0, 30.0])
@pytest.mark.parametrize("alive_until_s", [0.0, 10.0, 29.0, 200.0])
def test_a_peer_that_hangs_is_given_up_in_time(monkeypatch, hung_s: float, alive_until_s: float) -> None:
    """Even when the peer was alive at first."""
    given_up_s, asked_s = virtual(hung_s, monkeypatch, alive_until_s)
    assert 0.2 * hung_s <= given_up_s - alive_until_s <= 1.1 * hung_s + 0.01
    if not alive_until_s:
        assert given_up_s >= 0.99 * hung_s
    assert len(asked_s) <= 5 + 4 * alive_until_s / hung_s


def test_a_peer_whose_inbox_is_full_is_told_of_and_kept():
    limits = replace(QUICK, hung_s=0.4)
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
