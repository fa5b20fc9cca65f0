"""What Prometheus is given, read by the parser of Prometheus' own client."""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from edgegossip.report import openmetrics
from edgegossip.report.openmetrics import Exporter, Totals, text
from edgegossip.report.web import http
from edgegossip.telemetry.records import METRICS, EventRecord, MetricsRecord
from edgegossip.types import HostError

RUN = "20260102-030405-fleet"
VALUES = {
    "train/loss": 2.5,
    "time/compute_s": 0.25,
    "cpu/compute_s": 0.125,
    "net/sent_bytes": 1000,
    "sys/temperature_c": 51.5,
    "sys/energy_j": 0.5,
    "link/pi-02_bytes": 900,
    "link/pi-02_s": 0.0625,
    "rate/pi-02_bits": 4.25,
    "eval/top_5": 0.75,
    "gossip/consensus_distance": math.nan,
    "time/spans": "ce",
}


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    """An exporter that has taken two rounds of one board and the loss of another."""
    sink = Exporter(RUN, 250, "127.0.0.1", 0)
    for step in (1, 0):  # which it does again, as it goes on from a checkpoint
        sink.metrics("pi-01", step, VALUES)
    sink.event("pi-01", "peer-down", "lost pi-02")
    sink.event("pi-02", "lost", "lost pi-02: killed by SIGKILL")
    sink.event("pi-02", "notice", "what it had still to say")
    yield sink
    sink.close()


def ask(exporter: Exporter, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    """Status, Content-Type, text."""
    connection = HTTPConnection(urlsplit(exporter.url).netloc, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def values_of(metrics: list[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and its labels; none is there twice."""
    found = [(s.name, frozenset(s.labels.items()), s.value) for metric in metrics for s in metric.samples]
    assert len({(name, labels) for name, labels, _ in found}) == len(found)
    return {(name, labels): value for name, labels, value in found}


def test_rounds_add_up_and_the_rest_is_the_last_value(exporter: Exporter) -> None:
    status, content_type, body = ask(exporter)
    assert status == 200 and content_type.startswith("text/plain; version=0.0.4")
    metrics = list(parse_prometheus(body))
    found = values_of(metrics)

    def value(name: str, node: str | None = "pi-01", **labels: str) -> float:
        own = {"run": RUN} | ({} if node is None else {"node": node}) | labels
        return found[f"edgegossip_{name}", frozenset(own.items())]

    assert value("train_loss") == 2.5 and value("sys_temperature_celsius") == 51.5
    assert value("time_compute_seconds_total") == 0.5 and value("cpu_compute_seconds_total") == 0.25
    assert value("net_sent_bytes_total") == 2000 and value("sys_energy_joules_total") == 1.0
    assert value("link_bytes_total", peer="pi-02") == 1800 and value("link_seconds_total", peer="pi-02") == 0.125
    assert value("rate_bits", peer="pi-02") == 4.25 and value("value", metric="eval/top_5") == 0.75
    assert value("rounds") == 2 and value("target_rounds", None) == 250
    assert value("events_total", event="peer-down") == 1
    states = {s: (value("state", state=s), value("state", "pi-02", state=s)) for s in openmetrics.STATES}
    assert states == {"unfinished": (1, 0), "finished": (0, 0), "lost": (0, 1)}
    assert not any("consensus" in name or "spans" in name for name, _ in found)
    counters = {metric.name for metric in metrics if metric.type == "counter"}
    assert "edgegossip_time_compute_seconds" in counters and "edgegossip_train_loss" not in counters


def test_it_serves_nothing_else_and_on_loopback_no_other_name(exporter: Exporter) -> None:
    assert ask(exporter, "/")[0] == ask(exporter, "/data/0")[0] == 404
    assert ask(exporter, Host="evil.example")[0] == 403 and ask(exporter, Host="localhost")[0] == 200


def test_an_answer_is_given_again_for_a_second_and_no_longer(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmetrics, "FRESH_S", 3600.0)
    first = ask(exporter)
    exporter.metrics("pi-01", 2, VALUES)
    assert ask(exporter) == first
    monkeypatch.setattr(openmetrics, "FRESH_S", 0.0)
    assert ask(exporter) != first


def test_on_a_network_it_answers_by_whatever_name() -> None:
    sink = Exporter(RUN, 1, "0.0.0.0", 0)
    try:
        assert ask(sink, Host="board.fleet.example")[0] == 200
    finally:
        sink.close()
        sink.close()


def test_a_port_that_is_taken_is_one_sentence(exporter: Exporter) -> None:
    with pytest.raises(HostError, match="--metrics: .*choose another port"):
        Exporter(RUN, 1, "127.0.0.1", urlsplit(exporter.url).port or 0)


names = ["time/a_s", "time/wait_s", "rounds", "events", "net/sent_bytes", "rate/x", "rate/_bits", "link/_s", 'a"\n\\']
odd = st.one_of(st.text(max_size=8), st.sampled_from(names))


@settings(max_examples=6)
@given(st.lists(st.tuples(odd, odd, st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_whatever_boards_call_themselves_and_their_metrics_can_be_read(records) -> None:
    totals = Totals(RUN, 1)
    for node, name, value in records:
        totals.take(MetricsRecord(node, 0, 0.0, {name: value}))
        totals.take(EventRecord(node, 0.0, name, "text"))
    plain = list(parse_prometheus(text(totals.samples())))
    nodes = {s.labels["node"] for metric in plain for s in metric.samples if "node" in s.labels}
    assert nodes == {node for node, _, _ in records}


def test_who_asks_without_an_end_takes_two_percent_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: a request takes 10 ms of a core, and who rests goes on at once."""
    now_s, taken, answer = 0.0, threading.local(), http.OpenHandler.send

    class Rest(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            now_s += timeout or 0.0
            return self.is_set()

    def costly(*asked: Any) -> None:
        taken.s = taken.s + 0.01 if hasattr(taken, "s") else 0.01
        answer(*asked)

    clock = SimpleNamespace(monotonic=lambda: now_s, thread_time=lambda: getattr(taken, "s", 0.0))
    monkeypatch.setattr(http, "time", clock)
    monkeypatch.setattr(http, "threading", SimpleNamespace(Event=Rest, Lock=threading.Lock, local=threading.local))
    monkeypatch.setattr(http.OpenHandler, "send", costly)
    sink = Exporter(RUN, 1, "127.0.0.1", 0)
    with closing(sink), ExitStack() as floods:
        for _ in range(4):  # none of which ends
            flood = floods.enter_context(socket.create_connection(("127.0.0.1", urlsplit(sink.url).port), timeout=20))
            flood.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            answers = b""
            while answers.count(b"HTTP/1.1 200") < 100:
                answers += flood.recv(1 << 16)
        spent_s, at_once_s, last_answers_s = 4 * 100 * 0.01, 0.25, 4 * 0.01
        assert spent_s <= at_once_s + 0.02 * now_s + last_answers_s


def test_a_board_cannot_fill_the_memory_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "MOST_SERIES", 10)
    totals = Totals(RUN, 1)
    for k in range(50):
        totals.take(MetricsRecord("pi-01", k, 0.0, {f"own/{k}": 1.0, "train/loss": float(k)}))
        totals.take(EventRecord(f"pi-{k}", 0.0, f"event-{k}", ""))
    found = list(totals.samples())
    assert len(found) < 100
    assert ("edgegossip_train_loss", "gauge", f'run="{RUN}",node="pi-01"', 49.0) in found


@pytest.mark.slow
def test_prometheus_own_tool_has_nothing_to_say_but_of_bits() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool of Debian's package prometheus")
    totals = Totals(RUN, 1)
    totals.take(MetricsRecord("pi-01", 0, 0.0, VALUES | dict.fromkeys(METRICS, 1.0) | {"rate/pi-02_mbit": 10.0}))
    totals.take(EventRecord("pi-01", 0.0, "started", ""))
    body = text(totals.samples()).encode()
    said = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False
    ).stderr.decode()
    assert all('use base unit "bytes" instead of "bits"' in line for line in said.splitlines()), said
