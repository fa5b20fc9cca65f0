"""Off the critical path: the newest wins, no more than one is pending, and a disk that fails is
reported and holds nobody."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from edgegossip.checkpoint import writer as writers
from edgegossip.checkpoint.store import Store
from edgegossip.checkpoint.writer import Writer
from edgegossip.threads import Threads
from lab.sim.disk import FakeDisk

PATIENCE_S = 60.0  # only bounds a failing test
FOLDER = Path("/checkpoint/board-0")


class Latch:
    """A disk whose syncs of a file wait for `open`."""

    def __init__(self) -> None:
        self.open, self.at = threading.Event(), threading.Semaphore(0)

    def __call__(self, operation: str, path: str) -> None:
        if operation == "sync":
            self.at.release()
            assert self.open.wait(PATIENCE_S)


class Events(list[tuple[str, str]]):
    def __call__(self, event: str, text: str) -> None:
        self.append((event, text))

    def names(self) -> list[str]:
        return [event for event, _ in self]


class Times(Threads):
    def __init__(self, now: list[float]) -> None:
        self.now = lambda: now[0]  # type: ignore[method-assign]


class Pauses(threading.Condition):
    """Says when the thread that writes waits for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and threading.current_thread() is not threading.main_thread():
            self.begun.set()
        return super().wait(timeout)


class Waits(threading.Condition):
    """Where nothing can come of waiting, the time has gone by at once."""

    def __init__(self, now: list[float], latch: Latch) -> None:
        super().__init__()
        self._now, self._latch = now, latch

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or self._latch.open.is_set():
            return super().wait(timeout)
        self._now[0] += timeout
        return False


def make(disk: FakeDisk, events: Events | None = None, **settings: Any) -> tuple[Store, Writer]:
    store = Store(FOLDER, {}, keep=100, files=disk)
    store.load()
    return store, Writer(store, Events() if events is None else events, **settings)


def kept(disk: FakeDisk) -> list[int]:
    """The rounds on the disk."""
    return [
        Store(FOLDER, {}, files=disk)._read(f"{FOLDER}/{n}", None)[0]["round"] for n in sorted(disk.names(str(FOLDER)))
    ]


def test_the_newest_wins_and_nobody_waits_within_the_slack() -> None:
    disk = FakeDisk(latch := Latch())
    _, writer = make(disk, slack_s=1e9)
    writer.offer(1, "one")
    assert latch.at.acquire(timeout=PATIENCE_S)
    for round in range(2, 50):
        writer.offer(round, "more")
    assert writer.durable is None
    latch.open.set()
    assert writer.close(PATIENCE_S)
    assert writer.durable == 49 and kept(disk) == [1, 49]


def test_short_rounds_are_not_written_one_by_one() -> None:
    disk = FakeDisk()
    threads, pauses = Times([0.0]), Pauses()  # no time passes between the rounds
    threads.condition = lambda: pauses  # type: ignore[method-assign]
    _, writer = make(disk, slack_s=1.0, threads=threads)
    writer.offer(1, "one")
    assert writer.flush(PATIENCE_S)
    writer.offer(2, "more")
    assert pauses.begun.wait(PATIENCE_S) and writer.durable == 1
    for round in range(3, 10):
        writer.offer(round, "more")
    assert writer.close(PATIENCE_S)
    assert kept(disk) == [1, 9]


def test_a_day_takes_no_more_bytes_than_it_may_and_they_are_those_on_the_disk() -> None:
    disk = FakeDisk()
    now, value = [0.0], b"x" * 200
    store, writer = make(disk, slack_s=0.0, daily_bytes=10_000 * writers.DAY_S, threads=Times(now))  # in a second
    for round in range(1, 201):
        now[0] += 0.002
        writer.offer(round, value)
        writer.ready()
    assert writer.close(PATIENCE_S)
    sizes = [disk.open(f"{FOLDER}/{name}").size for name in sorted(disk.names(str(FOLDER)))]
    assert store.save(value, round=1) == sizes[0] > 200
    assert kept(disk)[-2] == round and len(sizes) >= 3
    assert sum(sizes[:-2]) <= 10_000 * now[0]
    _, writer = make(FakeDisk(), daily_bytes=1.0)
    for round in (1, 2):  # whoever waits for what was offered waits for no day
        writer.offer(round, value)
        assert writer.flush(PATIENCE_S)
    writer.close(PATIENCE_S)


def test_an_offer_waits_until_the_one_before_is_durable() -> None:
    disk = FakeDisk(latch := Latch())
    _, writer = make(disk, slack_s=0.0, patience_s=PATIENCE_S)
    writer.offer(1, "one")
    assert latch.at.acquire(timeout=PATIENCE_S)
    offered = threading.Event()

    def second() -> None:
        writer.offer(2, "two")
        offered.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not offered.wait(0.2)
    latch.open.set()
    assert offered.wait(PATIENCE_S)
    assert (writer.durable or 0) >= 1
    thread.join()
    assert writer.close(PATIENCE_S) and kept(disk) == [1, 2]


def test_a_round_is_ready_once_what_was_offered_is_durable() -> None:
    disk = FakeDisk(latch := Latch())
    _, writer = make(disk, slack_s=0.0, patience_s=PATIENCE_S)
    writer.ready()
    writer.offer(1, "one")
    assert latch.at.acquire(timeout=PATIENCE_S) and writer.durable is None
    threading.Timer(0.2, latch.open.set).start()
    writer.ready()
    assert writer.durable == 1 and writer.close(PATIENCE_S)


def test_a_disk_that_hangs_is_said_once_and_holds_nobody_twice() -> None:
    disk, events = FakeDisk(latch := Latch()), Events()
    threads = Times(now := [0.0])
    threads.condition = lambda: Waits(now, latch)  # type: ignore[method-assign]
    _, writer = make(disk, events, slack_s=0.0, threads=threads)
    for outage in (0, 20):
        writer.offer(outage + 1, "x")
        assert latch.at.acquire(timeout=PATIENCE_S)
        began_s = now[0]
        for round in range(outage + 2, outage + 20):
            writer.offer(round, "x")
        assert now[0] == began_s + writers.PATIENCE_S and len(writer._pending) == 2
        assert events.names() == ["waiting"] * 5 + ["checkpoint-failed"]
        assert "the disk has not finished a checkpoint for 30 s" in dict(events)["checkpoint-failed"]
        if not outage:  # it goes on, and hangs again
            latch.open.set()
            assert writer.flush(PATIENCE_S) and latch.at.acquire(timeout=PATIENCE_S)
            latch.open.clear()
            events.clear()
    assert not writer.close(0.05)
    latch.open.set()
    assert writer.close(PATIENCE_S) and kept(disk) == [1, 19, 21, 39]


def test_a_full_disk_is_said_seldom_and_so_is_that_it_does_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    disk, events = FakeDisk(), Events()
    store, writer = make(disk, events, slack_s=0.0, threads=Times(now))

    def no_memory(value: object, **meta: object) -> int:
        raise MemoryError

    def offer(round: int) -> None:
        writer.offer(round, "x" * 1000)
        with writer._condition:
            while writer._waiting or writer._writing:
                writer._condition.wait(PATIENCE_S)

    offer(1)
    disk.capacity_bytes = 100
    for round in range(2, 400):
        now[0] += 1.0
        offer(round)
    assert events.names() == ["checkpoint-failed"]
    text = events[0][1]
    assert "No space left on device" in text and "from round 1;" in text and "checkpoint.every = 0" in text
    now[0] += writers.WARN_S
    offer(400)
    assert events.names() == ["checkpoint-failed"] * 2
    disk.capacity_bytes = None
    now[0] += writers.MOST_RETRY_S
    offer(500)
    assert events.names()[2:] == ["checkpoint-back"] and writer.durable == 500
    assert 5 < int(events[2][1].split()[-3]) < 20  # tries get rare
    with monkeypatch.context() as short:
        short.setattr(store, "save", no_memory)
        offer(501)
    assert "there is no memory left; " in events[-1][1]
    now[0] += writers.RETRY_S
    offer(502)
    assert writer.durable == 502  # and begin as frequent as at first
    assert "after 1 that failed" in events[-1][1]
    assert writer.close(PATIENCE_S) and 500 in kept(disk)


def test_a_state_that_cannot_be_kept_is_said_and_not_tried_again() -> None:
    events = Events()
    _, writer = make(FakeDisk(), events)
    for round in range(5):
        writer.offer(round, object())
    writer.close(PATIENCE_S)
    assert events.names() == ["checkpoint-failed"] and "which no checkpoint keeps" in events[0][1]


def test_a_mistake_of_the_program_is_named_and_holds_nobody() -> None:
    disk, events = FakeDisk(), Events()
    store, writer = make(disk, events, slack_s=0.0)
    store.save = lambda *args, **meta: len(7)  # type: ignore[method-assign, arg-type]
    writer.offer(1, "one")
    assert writer.flush(PATIENCE_S)
    for round in (2, 3):
        writer.offer(round, "more")
        writer.ready()
    assert events.names() == ["checkpoint-failed"] and "TypeError: object of type 'int' has no len()" in events[0][1]
    assert "disk" not in events[0][1] and writer.close(PATIENCE_S)
