"""A board's clock under time dilation: CPU time while it computes, nothing while it waits for its
turn, the wall while it sends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip.types import HostError, RunError
from lab.netns.dilation import DilatedClock, DilatedRuntime
from lab.netns.run_cell import first_settled
from lab.netns.scheduler import Exchange, TimeDilationScheduler, dilation_after


class Ticks:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def test_a_clock_is_charged_with_what_it_goes_by() -> None:
    wall, cpu = Ticks(), Ticks()
    clock = DilatedClock(wall, cpu)
    wall.ns, cpu.ns = 10, 4
    assert clock.now_ns() == 10
    clock.by_cpu()
    wall.ns, cpu.ns = 100, 7
    assert clock.now_ns() == 13
    assert clock.stop() == 13
    wall.ns, cpu.ns = 200, 50
    assert clock.now_ns() == 13
    assert clock.put_on(20) == 7 and clock.put_on(5) == 0
    clock.by_wall()
    wall.ns += 5
    assert clock.now_ns() == 25
    clock.by_wall(dilation=4.0)
    wall.ns += 40
    assert clock.now_ns() in (34, 35, 36)
    at = clock.now_ns()
    clock.by_cpu(slower=3.0)
    cpu.ns += 10
    assert clock.now_ns() == at + 30


class Wire:
    rate_bps = 1e6

    def carried_bytes(self) -> tuple[int, ...]:
        return (0,)

    def slow_down(self, dilation: float) -> None:
        raise AssertionError("nothing was sent")


@pytest.mark.parametrize(
    ("seconds", "cpu_s", "dilation", "link_s", "wanted"),
    [
        (1.0, 2.0, 1.0, 0.99, 1.0),  # the link is full
        (2.0, 1.0, 1.0, 1.0, 1.0),  # neither link nor cores are: latency
        (3.0, 6.0, 1.0, 1.0, 4.5),  # the cores were in the way
        (4.6, 5.0, 4.5, 1.0, 4.5),  # not any more
        (9.0, 18.0, 4.5, 1.0, 13.5),  # again
        (900.0, 1800.0, 1.0, 1.0, 24.0),
        (1.0, 2.0, 0.1, 5.0, 0.3),  # boards ten times slower: ten seconds for what the link needs five for
    ],
)
def test_time_is_dilated_while_cores_are_in_the_way(
    seconds: float, cpu_s: float, dilation: float, link_s: float, wanted: float
) -> None:
    assert dilation_after(Exchange(seconds, 1, cpu_s, dilation), link_s, 2) == pytest.approx(wanted)


def connected(path: Path, name: str) -> DilatedRuntime:
    device = DilatedRuntime(path, name)
    device.connect()
    return device


def _play(path: Path, name: str, rounds: int, log: list[tuple[str, str]], times: dict[str, Any], busy: int) -> None:
    device = connected(path, name)
    for round in range(rounds):
        device.turn(round)
        log.append((name, "computes"))
        sum(range(busy))
        device.computed()
        log.append((name, "computed"))
        device.meet()
        device.meet()  # nothing more to wait for
        log.append((name, "sends"))
        device.clock.finish_round()
    times[name] = device.time.now_ns()
    device.turn(-1)
    device.leave()


def test_one_computes_at_a_time_and_all_send_together(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    times: dict[str, Any] = {}
    with TimeDilationScheduler(tmp_path / "socket", 3, 1, Wire()) as scheduler:
        boards = [
            threading.Thread(target=_play, args=(tmp_path / "socket", f"b{k}", 3, log, times, 10_000)) for k in range(3)
        ]
        for board in boards:
            board.start()
        for board in boards:
            board.join(30)
    words = [word for _, word in log]
    for at in range(0, len(words), 9):
        assert words[at : at + 6] == ["computes", "computed"] * 3 and words[at + 6 : at + 9] == ["sends"] * 3
    assert len(scheduler.timings.exchanges) == 3 and len(scheduler.timings.marks) == 9
    last = [m for m in scheduler.timings.marks if m["round"] == 2]
    assert len({m["go"] for m in last}) == 1 and all(m["ready"] <= m["go"] <= m["done"] for m in last)


def test_a_board_that_dies_is_not_waited_for(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    with TimeDilationScheduler(tmp_path / "socket", 2, 1, Wire()):
        dead = connected(tmp_path / "socket", "dead")
        alive = threading.Thread(target=_play, args=(tmp_path / "socket", "alive", 2, log, {}, 10))
        alive.start()
        dead.turn(0)
        dead.close()
        alive.join(30)
    assert log.count(("alive", "sends")) == 2


def test_boards_with_links_of_their_own_are_held_up_by_the_busiest(tmp_path: Path) -> None:
    """By the sum of all links, as if one had carried it, the cores would never be seen to be in the
    way."""

    class Links(Wire):
        counts = iter(((0, 7, 0), (500, 1007, 900)))

        def carried_bytes(self) -> tuple[int, ...]:
            return next(self.counts)

        def slow_down(self, dilation: float) -> None: ...

    log: list[tuple[str, str]] = []
    with TimeDilationScheduler(tmp_path / "socket", 1, 1, Links()) as scheduler:
        _play(tmp_path / "socket", "b", 1, log, {}, 10)
    assert [e.carried_bytes for e in scheduler.timings.exchanges] == [1000]


def test_a_scheduler_that_fails_lets_boards_go_and_says_why(tmp_path: Path) -> None:
    class Broken(Wire):
        def carried_bytes(self) -> tuple[int, ...]:
            raise HostError("tc failed: cannot allocate memory")

    ended: list[str] = []

    def play(name: str) -> None:
        with pytest.raises(RunError) as error:
            _play(tmp_path / "socket", name, 2, [], {}, 10)
        ended.append(str(error.value))

    with TimeDilationScheduler(tmp_path / "socket", 2, 1, Broken()) as scheduler:
        boards = [threading.Thread(target=play, args=(f"b{k}",)) for k in range(2)]
        for board in boards:
            board.start()
        for board in boards:
            board.join(30)
        assert scheduler.failure == "HostError: tc failed: cannot allocate memory"
    assert len(ended) == 2 and all("time-dilation scheduler" in why for why in ended)


def test_rounds_count_once_time_is_dilated_enough() -> None:
    def exchanges(*dilations: float) -> list[Exchange]:
        return [Exchange(1.0, 1, 1.0, dilation) for dilation in dilations]

    assert first_settled(exchanges(1, 1, 1, 1)) == 2  # the warm-up never counts
    assert first_settled(exchanges(1, 4, 6, 6, 6)) == 2
    assert first_settled(exchanges(1, 4, 6, 9, 9)) == 3
    assert first_settled(exchanges(1, 1, 1, 9)) == 3
    with pytest.raises(RunError):
        first_settled(exchanges(1, 1))
