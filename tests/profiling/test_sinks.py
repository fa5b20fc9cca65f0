from __future__ import annotations

import os

import pytest

from edgegossip.profiling.lines import EventRecord, MetricsRecord, parse_record
from edgegossip.profiling.sinks import PipeSink, RecordSink, Tee
from edgegossip.types import HostError


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
