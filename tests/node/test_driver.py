"""The driver over a network in memory: the mathematics comes out as on paper, and a bad or lost peer stops nobody."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, frame, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.mesh.base import PeerDown, PeerUp, Received, TransportEvent
from edgegossip.node.driver import Driver
from edgegossip.profiling.spans import RoundClock
from tests.node.fakes import ListSink, MemoryTransport, Quadratic, network

NAMES = ("a", "b", "c", "d")
RUN_ID = bytes(range(16))
ROUNDS = 1000


def make_driver(
    name: str, transport: MemoryTransport, sink: ListSink, codec: str = "fp32", deadline_s: float = 30.0
) -> Driver:
    target = np.full(6, NAMES.index(name), np.float32)
    workload = Quadratic(target)
    view = NodeView(
        node=name,
        members=NAMES,
        topology=topologies.get("ring", len(NAMES)),
        layout=workload.layout,
        codec=codecs.get(codec),
        run_id=RUN_ID,
        seed=1,
        deadline_s=deadline_s,
    )
    driver = Driver(gossip.get("dpsgd"), view, transport, workload, sink, RoundClock(), ROUNDS)
    driver.start(workload.initial(0))
    return driver


def play_all(drivers: list[Driver], rounds: int) -> None:
    def play(driver: Driver) -> None:
        for _ in range(rounds):
            driver.play()
        driver.drain(1.0)

    threads = [threading.Thread(target=play, args=(d,)) for d in drivers]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)


def test_four_nodes_do_what_the_matrix_says() -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES]
    play_all(drivers, 40)
    w = topologies.get("ring", 4).matrix(0)
    x = np.zeros((4, 6))
    for _ in range(40):
        x = w @ x - 0.1 * (x - np.arange(4)[:, None])
    np.testing.assert_allclose([d.model for d in drivers], x, atol=1e-5)
    assert not sink.events


def test_there_is_a_moment_in_each_round_when_all_is_sent() -> None:
    """And its time is none of `other`. In a later round all neighbours may have sent before."""
    ends, sink = network(NAMES), ListSink()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES]
    first, seen = drivers[0], []

    def moment() -> None:
        seen.append((first.round, first._clock.part))

    first._meanwhile = moment
    play_all(drivers, 3)
    rounds = [round for round, _ in seen]
    assert rounds[0] == 0 and rounds == sorted(set(rounds)) and {part for _, part in seen} <= {"transmit", "wait"}


def next_model(end: MemoryTransport) -> Received:
    """The next event that brings a model; greetings are passed over."""
    while True:
        event = end.incoming(10)
        if isinstance(event, Received) and frame.parse(event.data, frame.Limits()).kind == frame.Kind.MODEL:
            return event


def test_traffic_counts_what_was_acknowledged() -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES]
    play_all(drivers, 3)
    taken = drivers[0].traffic.take()
    assert taken["net/payload_bytes"] == 3 * 2 * 6 * 4  # rounds, neighbours, values, bytes
    model, hello = frame.HEADER_BYTES + 20, frame.HEADER_BYTES + 4 * 9 + 20  # a hello carries four numbers
    assert taken["net/overhead_bytes"] == 2 * (3 * model + hello)
    assert taken["codec/bits_per_value"] == 32
    assert drivers[0].traffic.take() == {"net/payload_bytes": 0, "net/overhead_bytes": 0}


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 200, b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_costs_its_sender_the_connection_and_nobody_else(garbage: bytes) -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = {name: make_driver(name, ends[name], sink) for name in NAMES}
    ends["a"].events.put(Received("b", garbage))
    for name in ("b", "d"):
        ends[name].lose("a" if name == "b" else "x")
    play_all(list(drivers.values()), 5)
    assert [peer for peer, _ in ends["a"].closed][:1] == ["b"]
    assert any(name == "refused" and "from b" in text for _, name, text in sink.events)


def test_frame_of_another_run_is_refused() -> None:
    ends, sink = network(NAMES), ListSink()
    driver = make_driver("a", ends["a"], sink)
    other = make_driver("b", ends["b"], sink)
    other._view = replace(other._view, run_id=b"x" * 16)
    other.start(np.zeros(6, np.float32))
    while ends["b"].incoming(0.0) is not None:  # greetings: it would refuse their senders, and send them nothing
        pass
    thread = threading.Thread(target=other.play, daemon=True)
    thread.start()
    event = next_model(ends["a"])
    driver._handle(event)
    assert ends["a"].closed and "run" in ends["a"].closed[0][1]
    for peer in NAMES:
        ends["b"].lose(peer)
    thread.join(10)
    assert not thread.is_alive()


def test_lost_peer_is_named_and_the_round_goes_on() -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES if name != "c"]
    for name in ("b", "d"):
        ends[name].lose("c")
    play_all(drivers, 10)
    assert {(node, text) for node, name, text in sink.events if name == "peer-down"} == {
        ("b", "lost c: connection refused"),
        ("d", "lost c: connection refused"),
    }
    ends["b"].events.put(PeerUp("c"))
    drivers[1].drain(0.0)
    drivers[1]._take(0.0)
    assert ("b", "peer-up", "c is back") in sink.events


def test_silent_peer_is_left_behind_after_the_deadline() -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = [make_driver(name, ends[name], sink, deadline_s=0.2) for name in NAMES if name != "c"]
    play_all(drivers, 2)
    assert "suspect" in sink.names()
    assert all(np.isfinite(d.model).all() for d in drivers)


@pytest.mark.parametrize("slow", ["acknowledgement", "peer"])
def test_blocked_time_is_transmit_until_the_acknowledgement_and_wait_after_it(slow: str) -> None:
    """Node a of four; its neighbours are d and b. 0.3 s pass for the one or for the other."""
    ends, sink = network(NAMES), ListSink()
    clock = RoundClock()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES]
    drivers[0]._clock = clock
    if slow == "acknowledgement":
        ends["a"].acknowledge_after_s = 0.3
    threads = [threading.Thread(target=d.play) for d in drivers[2:]]  # c and d
    late = threading.Timer(0.3 if slow == "peer" else 0.0, drivers[1].play)  # b
    for t in (*threads, late):
        t.start()
    clock.finish_round()
    drivers[0].play()
    drivers[0].drain(5.0)
    for t in (*threads, late):
        t.join(10)
    parts = clock.finish_round().parts_s
    expected, other = ("transmit", "wait") if slow == "acknowledgement" else ("wait", "transmit")
    assert parts[expected] > parts[other]
    assert drivers[0].traffic.frames == 2  # drained: both frames are counted


class Watched:
    """Notes which part of the round a thing's methods are called in."""

    def __init__(self, inner: object, clock: RoundClock, noted: set[str]) -> None:
        self._inner, self._clock, self._noted = inner, clock, noted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            self._noted.add(f"{name} in {self._clock.part}")
        return found


def test_nothing_that_a_round_needs_is_left_to_other() -> None:
    ends, sink = network(NAMES), ListSink()
    clock, noted = RoundClock(), set[str]()
    drivers = [make_driver(name, ends[name], sink) for name in NAMES]
    watched = drivers[0]
    watched._clock = clock
    for name in ("_algorithm", "_transport", "_traffic", "_workload"):
        setattr(watched, name, Watched(getattr(watched, name), clock, noted))
    play_all(drivers, 3)
    watched.drain(5.0)
    assert {"local_update in compute", "model in compute", "step in encode", "receive in decode"} <= noted
    assert {"send in transmit", "acknowledged in transmit"} <= noted
    assert not {text for text in noted if text.endswith("other") and not text.startswith("round ")}, noted


def test_a_round_beyond_the_run_is_refused_and_what_its_sender_sent_before_is_dropped() -> None:
    ends, sink = network(NAMES), ListSink()
    driver, other = make_driver("a", ends["a"], sink), make_driver("b", ends["b"], sink)
    threading.Thread(target=other.play, daemon=True).start()
    event = next_model(ends["a"])
    honest = frame.parse(event.data, frame.Limits())
    hostile = b"".join(frame.build(replace(honest, round=ROUNDS)))
    driver._handle(Received("b", hostile))
    driver._handle(event)
    assert [reason for _, reason in ends["a"].closed] == [f"its round {ROUNDS} is not one of the run's {ROUNDS}"]
    assert driver.round == 0 and driver._state.in_edge((1, 0)).round == -1
    for peer in NAMES:
        ends["b"].lose(peer)


def test_a_board_that_was_left_alone_hears_that_a_neighbour_is_back() -> None:
    """Its rounds end at once, so that it never waits for anything."""
    ends, sink = network(NAMES), ListSink()
    driver = make_driver("a", ends["a"], sink)
    driver.start(np.zeros(6, np.float32), down=frozenset(NAMES[1:]))
    driver.play()
    ends["a"].events.put(PeerUp("b"))
    ends["a"].lose("b")
    assert driver.goes_on()
    driver.play()
    assert ("a", "peer-up", "b is back") in sink.events


def test_a_board_with_nothing_waits_for_a_neighbour_instead_of_training_alone() -> None:
    ends, sink = network(NAMES), ListSink()
    driver = make_driver("a", ends["a"], sink)
    driver.start(np.zeros(6, np.float32), down=frozenset(NAMES[1:]))
    driver.wait_for_anybody(0.05)
    assert driver.down == set(NAMES[1:]) and driver.round == 0
    ends["a"].events.put(PeerUp("b"))
    driver.wait_for_anybody(60.0)  # at once
    assert "b" not in driver.down and driver.round == 0


def test_a_peer_that_was_refused_stays_down_though_news_of_it_come_later() -> None:
    ends, sink = network(NAMES), ListSink()
    driver = make_driver("a", ends["a"], sink)
    driver._handle(Received("b", b"no frame"))
    driver._handle(PeerUp("b"))
    assert ends["a"].closed and driver._view.down == {"b"}


def test_a_neighbour_that_sends_without_end_does_not_keep_a_board_from_its_rounds() -> None:
    now = 0.0

    class Flooded(MemoryTransport):
        """Always has one more message of b, which takes a tenth of a second."""

        def incoming(self, timeout_s: float | None) -> Received:
            nonlocal now
            now += 0.1
            return Received("b", b"".join(frame.build(again)))

    workload = Quadratic(np.zeros(6, np.float32))
    ring = topologies.get("ring", len(NAMES))
    view = NodeView("a", NAMES, ring, workload.layout, codecs.get("fp32"), RUN_ID, seed=1, deadline_s=30.0)
    again = frame.Frame(frame.Kind.MODEL, 1, b"", view.layout.hash, view.run_id, 0, 1, 0, bytes(24))
    driver = Driver(
        gossip.get("dpsgd"), view, Flooded("a"), workload, ListSink(), RoundClock(), ROUNDS, now=lambda: now
    )
    driver.start(workload.initial(0))
    assert driver.goes_on() and now < 5.0


def test_what_a_newcomer_holds_back_of_a_neighbour_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Well-formed messages of a late round, in the seconds in which its model may come."""
    monkeypatch.setattr("edgegossip.node.early.EARLY_BYTES", 90_000)
    ends, sink = network(NAMES), ListSink()
    driver = make_driver("a", ends["a"], sink)
    hash = driver._view.layout.hash
    for round in range(100, 400):
        late = frame.Frame(frame.Kind.MODEL, 1, b"", hash, RUN_ID, round, 1, 0, bytes(24))
        driver._handle(Received("b", b"".join(frame.build(late))))
    assert len(driver._early) == 29 and not ends["a"].closed


def test_whoever_waits_says_for_how_long_since_the_round_began_to_wait() -> None:
    sink, transport = ListSink(), MemoryTransport("a")
    driver = make_driver("a", transport, sink, deadline_s=1e9)
    now = 1000.0

    def incoming(timeout_s: float | None) -> TransportEvent | None:
        nonlocal now
        if timeout_s is None or timeout_s == 0.0:
            return None
        now += timeout_s
        now += 1e-6
        return PeerDown(next(gone), "gone") if now >= 1020.0 else None

    gone = iter("bd")
    driver._settle()
    driver._now = lambda: now  # type: ignore[method-assign]
    transport.incoming = incoming  # type: ignore[method-assign]
    driver.play()
    said = [text for _, name, text in sink.events if name == "waiting"]
    assert [text.rpartition("for ")[2] for text in said[:3]] == ["5 s", "10 s", "15 s"]
