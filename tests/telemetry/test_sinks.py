from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from edgegossip.telemetry import sinks as tees
from edgegossip.telemetry.records import EventRecord, MetricsRecord, parse_record
from edgegossip.telemetry.sinks import PipeSink, RecordSink, Tee
from edgegossip.types import HostError, UsageError


class Kept(RecordSink):
    def __init__(self):
        super().__init__(0.0, lambda: 0.0)
        self.records, self.closed = [], False

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed = True


def test_pipe_sink_writes_what_parse_record_reads():
    read_fd, write_fd = os.pipe()
    now = [10.0]
    sink = PipeSink(write_fd, clock=lambda: now[0])
    now[0] = 11.5
    sink.metrics("board-0", 3, {"train/loss": 0.25})
    sink.event("board-0", "peer-down", "lost board-1", peer="board-1")
    sink.close()
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        records = [parse_record(line) for line in pipe]
    assert records == [
        MetricsRecord("board-0", 3, 1.5, {"train/loss": 0.25}),
        EventRecord("board-0", 1.5, "peer-down", "lost board-1", {"peer": "board-1"}),
    ]


def test_a_parent_that_is_gone_is_an_error_of_one_sentence():
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        with pytest.raises(HostError, match="is gone"):
            PipeSink(write_fd).event("a", "started", "x")
    finally:
        os.close(write_fd)


def test_tee_gives_every_sink_the_same_record_and_relays_others_as_they_are():
    a, b = Kept(), Kept()
    now = [5.0]
    tee = Tee(a, b, clock=lambda: now[0])
    now[0] = 7.0
    tee.metrics("x", 0, {"k": 1})
    relayed = EventRecord("y", 99.0, "started", "y started")
    tee.write(relayed)
    tee.close()
    assert a.records == b.records == [MetricsRecord("x", 0, 2.0, {"k": 1}), relayed]
    assert a.closed and b.closed


class Hanging(Kept):
    """A disk that answers while `answers` is set."""

    what = "the disk"

    def __init__(self):
        super().__init__()
        self.answers, self.held = threading.Event(), threading.Event()
        self.answers.set()

    def write(self, record):
        if not self.answers.is_set():
            self.held.set()
            assert self.answers.wait(30)
        super().write(record)


def test_a_sink_that_hangs_holds_nobody_and_gets_what_waited_when_it_is_back(monkeypatch):
    monkeypatch.setattr(tees, "MOST_RECORDS", 20)
    now_s, waits, wait = 0.0, [], tees.Queued._wait
    monkeypatch.setattr(tees, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(tees.Queued, "_wait", lambda self, seconds: waits.append(seconds) or wait(self, seconds))
    disk, other = Hanging(), Kept()
    tee = Tee(disk, other)
    disk.answers.clear()
    tee.metrics("a", 0, {})
    assert disk.held.wait(30)
    for step in range(1, 50):
        tee.metrics("a", step, {})
    assert waits == [tees.PATIENCE_S]
    now_s += tees.HANGS_S
    tee.event("a", "waiting", "for b")
    said = [r.text for r in other.records if isinstance(r, EventRecord)]
    assert said == ["for b", "the disk has not answered for 5 s; the run goes on, and the records for it wait"]
    disk.answers.set()
    tee.close()
    kept = [r.step for r in disk.records if isinstance(r, MetricsRecord)]
    assert kept == [*range(21)] and disk.closed and len(other.records) == 52
    lost = disk.records[-1]  # the rounds before it are older
    assert isinstance(lost, EventRecord) and (lost.name, lost.fields) == ("records-lost", {"records": 30})
    assert lost.t_s == next(r.t_s for r in other.records if isinstance(r, EventRecord))  # "for b", lost last


def test_what_a_sink_lost_stands_between_what_was_before_and_after(monkeypatch):
    monkeypatch.setattr(tees, "MOST_RECORDS", 3)
    monkeypatch.setattr(tees, "PATIENCE_S", 0.0)
    disk = Hanging()
    queue = tees.Queued(disk)
    disk.answers.clear()
    queue.write(MetricsRecord("a", 0, 0.0, {}))
    assert disk.held.wait(30)
    for step in range(1, 9):
        queue.write(MetricsRecord("a", step, float(step), {}))
    with monkeypatch.context() as room:
        room.setattr(tees, "MOST_RECORDS", 5)
        queue.write(MetricsRecord("a", 9, 9.0, {}))
    disk.answers.set()
    queue.close()
    written = [r.step if isinstance(r, MetricsRecord) else r for r in disk.records]
    assert [step for step in written if isinstance(step, int)] == [0, 1, 2, 3, 9]
    lost = written[4]
    assert (lost.name, lost.t_s, lost.fields) == ("records-lost", 8.0, {"records": 5})


def test_each_time_that_a_sink_hangs_it_has_some_patience_and_is_told(monkeypatch):
    monkeypatch.setattr(tees, "HANGS_S", 0.0)
    monkeypatch.setattr(tees, "PATIENCE_S", 0.05)
    disk, other, until = Hanging(), Kept(), time.monotonic() + 30
    tee = Tee(disk, other)

    def told():
        return [r.text for r in other.records if isinstance(r, EventRecord)]

    patient = 0
    while (len(told()) < 2 or patient < 2) and time.monotonic() < until:
        disk.answers.clear()
        disk.held.clear()
        tee.metrics("a", 0, {})
        assert disk.held.wait(30)
        began_s = time.monotonic()
        tee.metrics("a", 1, {})
        patient += time.monotonic() - began_s >= 0.05
        disk.answers.set()
        while len(disk.records) + len(told()) < len(other.records) and time.monotonic() < until:
            time.sleep(0.02)  # then the sink has also looked whether there is more
    tee.close()
    assert patient >= 2 and len(told()) >= 2 and len(set(told())) == 1


def test_a_sink_that_hangs_for_good_does_not_hold_the_end(monkeypatch, capsys):
    monkeypatch.setattr(tees, "CLOSE_S", 0.1)
    disk, other = Hanging(), Kept()
    tee = Tee(disk, other)
    disk.answers.clear()
    tee.metrics("a", 0, {})
    assert disk.held.wait(30)
    tee.close()
    assert other.closed and not disk.closed and "1 records or more are missing" in capsys.readouterr().err
    disk.answers.set()


def test_a_record_is_with_the_disk_before_the_next_one_is_taken():
    disk = Hanging()
    tee = Tee(disk)
    for step in range(300):
        tee.metrics("a", step, {})
        assert len(disk.records) >= step
    tee.close()


def test_a_mistake_in_a_record_is_its_callers():
    class Picky(Kept):
        what = "the disk"

        def write(self, record):
            raise UsageError("a record holds numbers")

    tee = Tee(Picky())
    tee.metrics("a", 0, {})
    with pytest.raises(UsageError, match="holds numbers"):
        tee.metrics("a", 1, {})


class Tracker(Kept):
    """A sink that is not needed: it fails before round 20."""

    what, needed = "the tracker", False

    def write(self, record):
        if record.step < 20:
            raise ConnectionError("no route\nto host")
        super().write(record)


def test_a_sink_that_is_not_needed_costs_its_records_alone_and_is_told_once():
    tracker, other = Tracker(), Kept()
    tee = Tee(tracker, other)
    for step in range(21):
        tee.metrics("a", step, {})
    tee.close()
    [told] = [r for r in other.records if isinstance(r, EventRecord)]
    assert told.text == "the tracker: no route to host; the run goes on, and records are missing there"
    assert [r.step for r in tracker.records] == [20] and tracker.closed
    assert [r.step for r in other.records if isinstance(r, MetricsRecord)] == [*range(21)]


def test_a_sink_that_is_not_needed_may_fail_at_the_end(capsys):
    tee = Tee(Tracker())
    tee.metrics("a", 0, {})
    tee.close()
    assert "!! the tracker: no route to host" in capsys.readouterr().err


def test_what_two_threads_tell_is_in_the_order_of_its_times():
    class Held(Kept):
        """Holds the first record back until a second thread has told something, if it can."""

        other = None

        def write(self, record):
            if self.other is None:
                self.other = threading.Thread(target=self.event, args=("a", "second", ""))
                self.other.start()
                self.other.join(0.05)
            super().write(record)

    sink = Held()
    sink.event("a", "first", "")
    sink.other.join()
    assert [record.name for record in sink.records] == ["first", "second"]
