"""What a board's meters say of a round."""

from __future__ import annotations

import socket

from edgegossip.node import meters as module
from edgegossip.node.meters import NodeMeters
from edgegossip.telemetry import sensors


def test_sockets_are_read_when_it_is_due_and_nothing_is_lost_in_between(monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 1e9)
    meters = NodeMeters()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
        listener.accept()[0] as other,
    ):
        before = meters(due=False)  # the first one always
        sent = 0
        for _ in range(3):
            one.sendall(bytes(1000))
            sent += len(other.recv(1000, socket.MSG_WAITALL))
            assert "net/sent_bytes" not in meters(due=False)
        after = meters()
    assert {"net/sent_bytes", "net/link_bytes", "net/received_bytes"} <= before.keys()
    assert after["net/sent_bytes"] == after["net/received_bytes"] == sent == 3000


def test_sensors_are_looked_for_once_rounds_begin():
    meters = NodeMeters()
    assert meters._machine._slow is None
    meters.begin()
    assert meters._machine._slow is not None
    values = meters()
    assert values["sys/peak_rss_bytes"] >= values["sys/rss_bytes"] > 0


def test_what_the_machines_sensors_say_is_in_each_record(monkeypatch):
    monkeypatch.setattr(sensors, "sample", lambda slow: {"sys/temperature_c": 51.0})
    meters = NodeMeters()
    assert [meters(due=due)["sys/temperature_c"] for due in (True, False)] == [51.0, 51.0]


def test_coroutines_are_counted_seldom_and_told_always(monkeypatch):
    asked, now_s = [], [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now_s[0])
    meters = NodeMeters()
    meters.watch(lambda: asked.append(0) or len(asked))
    assert [meters(due=False)["sys/tasks"] for _ in range(3)] == [1, 1, 1]
    now_s[0] += module.EVERY_S
    assert [meters(due=False)["sys/tasks"] for _ in range(2)] == [2, 2]
