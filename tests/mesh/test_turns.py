"""The loop that takes turns, coroutines that begin at once, acknowledgements that wait for one another."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from linecache import getline
from types import FrameType

import pytest

from edgegossip.mesh import interrupts
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.answers import ACK_INTERVAL_S, Answers
from edgegossip.mesh.eager import Begun
from edgegossip.mesh.turns import TurnLoop
from edgegossip.mesh.turns import __file__ as turns_file
from tests.mesh.support import PATIENCE_S


@pytest.fixture
def turns():
    made = TurnLoop("mesh turns")
    yield made
    made.end(PATIENCE_S)
    assert made.loop.is_closed()


def where(turns: TurnLoop) -> str:
    """The thread that runs the loop."""
    found, told = [], threading.Event()
    turns.loop.call_soon_threadsafe(lambda: (found.append(threading.current_thread().name), told.set()))
    assert told.wait(PATIENCE_S)
    return found[0]


def test_the_one_who_waits_runs_the_loop(turns):
    assert where(turns) == "mesh turns"
    ran: list[str] = []

    def event() -> None:
        ran.append(threading.current_thread().name)
        turns.stop_wait()

    turns.loop.call_soon_threadsafe(lambda: turns.loop.call_later(0.05, event))
    assert turns.wait(lambda: bool(ran), PATIENCE_S)
    assert ran == [threading.current_thread().name]
    assert where(turns) == "mesh turns"  # and the thread behind when nobody does


def test_a_signal_ends_the_wait_and_no_coroutine(turns):
    """gRPC prints a traceback of every coroutine of its own that a KeyboardInterrupt ends."""
    went_on: list[str] = []

    async def interrupted() -> None:
        await asyncio.sleep(0.1)  # until we wait
        try:
            signal.raise_signal(signal.SIGINT)
            went_on.append("on")
        except KeyboardInterrupt:
            went_on.append("ended")

    asyncio.run_coroutine_threadsafe(interrupted(), turns.loop)
    with pytest.raises(KeyboardInterrupt):
        turns.wait(lambda: False, PATIENCE_S)
    assert went_on == ["on"] and where(turns) == "mesh turns"


def test_a_second_signal_is_not_put_off(turns):
    """The loop may be stuck."""

    async def stuck() -> None:
        await asyncio.sleep(0.1)
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was not ended")

    stuck_one = asyncio.run_coroutine_threadsafe(stuck(), turns.loop)
    with pytest.raises(KeyboardInterrupt):
        turns.wait(lambda: False, PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        stuck_one.result(PATIENCE_S)


def test_handlers_are_as_they_were_when_the_last_loop_has_ended(monkeypatch):
    monkeypatch.setattr(interrupts, "_users", 0)  # whatever other tests have left
    monkeypatch.setattr(interrupts, "_before", {})
    before = signal.default_int_handler
    now = {signal.SIGINT: before}
    monkeypatch.setattr(signal, "getsignal", lambda number: now.get(number))
    monkeypatch.setattr(signal, "signal", now.__setitem__)
    a, b = TurnLoop("a"), TurnLoop("b")
    assert signal.getsignal(signal.SIGINT) is not before
    a.end(PATIENCE_S)
    assert signal.getsignal(signal.SIGINT) is not before
    b.end(PATIENCE_S)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_wait_ends_in_time_and_early_alarms_do_no_harm(turns):
    for timeout_s in (0.15, 0.01, 0.1, 0.02):
        began_s = time.monotonic()
        assert turns.wait(lambda: False, timeout_s)
        assert time.monotonic() - began_s >= timeout_s - 0.002


@pytest.mark.parametrize("busy", [True, False])
def test_an_interrupted_wait_gives_the_loop_back(turns, busy):
    """Such as by SIGTERM, be it while the thread behind is still in the loop or later."""
    assert where(turns) == "mesh turns"
    if busy:
        turns.loop.call_soon_threadsafe(lambda: time.sleep(0.6))
        time.sleep(0.1)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        turns.wait(lambda: False, PATIENCE_S)
    assert where(turns) == "mesh turns"
    assert turns.wait(lambda: True, PATIENCE_S)


def test_an_interrupt_at_any_line_gives_the_loop_back(turns):
    """Also one that comes while the loop is being given back. Not of a `with`: Python looks for signals after calls, and the one
    that leaves a `with` has released the lock by then."""
    assert where(turns) == "mesh turns"
    lines = left = 0

    def trace(frame: FrameType, event: str, _arg: object):
        nonlocal left
        if frame.f_code.co_filename != turns_file:
            return None
        counts = event == "line" and not getline(turns_file, frame.f_lineno).lstrip().startswith("with ")
        left -= counts
        if counts and left == 0:
            raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    while left <= 0:
        lines += 1
        left = lines
        try:
            sys.settrace(trace)
            with suppress(KeyboardInterrupt):
                turns.wait(lambda: False, 0.002)
        finally:
            sys.settrace(old)
        assert where(turns) == "mesh turns", f"interrupted at line {lines} of the wait"
    assert lines > 15  # then one wait came to its end without


def test_one_caller_at_a_time(turns):
    done = threading.Event()
    first = threading.Thread(target=lambda: turns.wait(done.is_set, PATIENCE_S))
    first.start()
    while where(turns) != first.name:
        time.sleep(0.001)
    assert not turns.wait(lambda: True, PATIENCE_S)
    done.set()
    turns.stop_wait()
    first.join(PATIENCE_S)
    assert turns.wait(lambda: True, PATIENCE_S)


def test_a_wait_inside_another_loop_is_declined(turns):
    async def inside() -> bool:
        return turns.wait(lambda: True, 0.0)

    assert not asyncio.run(inside())


def test_work_is_done_whoever_runs_the_loop(turns):
    done: list[int] = []
    for i in range(200):
        turns.act(lambda i=i: done.append(i))
        if i % 7 == 0:
            turns.wait(lambda: True, 0.0)
    while len(done) < 200:
        turns.wait(lambda: len(done) == 200, 0.01)
    assert done == list(range(200))


def test_actions_keep_their_order_when_the_loop_stops_before_one_of_them(turns, monkeypatch):
    """As an alarm that the last caller left behind stops it: frames of one board would change places."""
    assert where(turns) == "mesh turns"
    begin, stopped, go_on = turns._begin, threading.Event(), threading.Event()

    def pause() -> bool:
        stopped.set()
        go_on.wait(PATIENCE_S)
        return begin()

    def first_and_stop() -> None:
        turns.act(lambda: done.append("first"))
        turns.loop.stop()

    done: list[str] = []
    monkeypatch.setattr(turns, "_begin", pause)
    turns.loop.call_soon_threadsafe(first_and_stop)
    assert stopped.wait(PATIENCE_S) and done == []
    turns.act(lambda: done.append("second"))
    assert done == []
    go_on.set()
    where(turns)
    assert done == ["first", "second"]
    turns.wait(lambda: True, PATIENCE_S)
    turns.act(lambda: done.append("third"))
    where(turns)
    assert done[2:] == ["third"]


def test_the_end_releases_the_one_who_waits():
    turns, left = TurnLoop("mesh turns"), []
    waiter = threading.Thread(target=lambda: left.append(turns.wait(lambda: False, None)))
    waiter.start()
    while where(turns) != waiter.name:
        time.sleep(0.001)
    turns.end(PATIENCE_S)
    waiter.join(PATIENCE_S)
    assert left == [True]
    assert not turns.wait(lambda: True, 0.0)
    turns.stop_wait()
    turns.act(lambda: None)  # nobody is there to do it; nothing happens


def test_a_begun_coroutine_has_run_to_its_first_wait_and_is_finished_later():
    seen: list[str] = []

    async def run() -> None:
        gate = asyncio.get_running_loop().create_future()

        async def work(fail: bool) -> None:
            seen.append("began")
            await gate
            seen.append("went on")
            await asyncio.sleep(0)
            if fail:
                raise ValueError("late")

        begun, failing = Begun(work(False)), Begun(work(True))
        assert seen == ["began", "began"]
        assert not begun.has_ended
        gate.set_result(None)
        await begun
        assert begun.has_succeeded
        with pytest.raises(ValueError, match="late"):
            await failing
        assert seen == ["began", "began", "went on", "went on"]

    asyncio.run(run())


def test_a_begun_coroutine_that_needs_no_wait():
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError("at once")

    async def run() -> None:
        assert Begun(work(False)).has_succeeded
        await Begun(work(False))
        failed = Begun(work(True))
        assert failed.has_ended
        assert not failed.has_succeeded
        with pytest.raises(ValueError, match="at once"):
            await failed

    asyncio.run(run())


def test_a_begun_coroutine_is_cancelled_with_the_one_who_awaits_it():
    async def run() -> None:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def wait_for(begun: Begun) -> None:
            await begun

        task = asyncio.ensure_future(wait_for(Begun(work())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]

    asyncio.run(run())


class Written:
    """Stands in for a call: keeps what is written, and when."""

    def __init__(self) -> None:
        self.acks: list[mesh_pb2.Ack] = []

    async def write(self, data: bytes) -> None:
        self.acks.append(mesh_pb2.ExchangeResponse.FromString(data).ack)


def acknowledge(*steps: tuple[int, int, bool] | float) -> list[mesh_pb2.Ack]:
    """Steps are (transfer, received, at once) or seconds to wait."""

    async def run() -> list[mesh_pb2.Ack]:
        written = Written()
        answers = Answers(written)
        answers.start()
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                answers.acknowledge(step[0], step[1], at_once=step[2])
        await answers.stop()
        return written.acks

    return asyncio.run(run())


def test_the_first_acknowledgement_goes_out_at_once_and_one_speaks_for_many():
    acks = acknowledge((1, 10, False), 0.0, *((i, 10, False) for i in range(2, 9)), 5 * ACK_INTERVAL_S)
    assert [ack.transfer for ack in acks] == [1, 8]
    assert acks[0].held_us < acks[1].held_us <= 5 * ACK_INTERVAL_S * 1e6


def test_what_was_asked_for_does_not_wait():
    acks = acknowledge((1, 10, False), 0.0, (2, 5, True), 0.0, 0.0, (2, 10, True), 0.0, 0.0)
    assert [(ack.transfer, ack.received) for ack in acks] == [(1, 10), (2, 5), (2, 10)]


def test_nothing_is_left_unsaid_at_the_end():
    assert [ack.transfer for ack in acknowledge((1, 10, False), 0.0, (2, 10, False))] == [1, 2]
    assert acknowledge() == []
