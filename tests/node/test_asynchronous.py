"""The driver of an asynchronous algorithm: peers are served while the update is computed, and no second is counted twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from edgegossip import codecs, gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.mesh.base import SendReceipt
from edgegossip.node.driver import Driver
from edgegossip.profiling.spans import RoundClock
from edgegossip.types import LocalError, LocalUpdate, Round, Vec
from tests.node.fakes import ListSink, MemoryTransport, Quadratic, network

NAMES = ("a", "b", "c")
PATIENCE_S = 30.0  # only bounds a failing test


@dataclass
class Gated(Quadratic):
    """Computes only when the test lets it."""

    target: Vec
    lr: float = 0.1
    begun: threading.Event = field(default_factory=threading.Event)
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    seen: list[tuple[Vec, Round]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        Quadratic.__init__(self, self.target, self.lr)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        self.seen.append((x.copy(), round))
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().local_update(x, round)


def make_driver(
    name: str, transport: MemoryTransport, workload: Quadratic, sink: ListSink, clock: RoundClock, **params: int
) -> Driver:
    view = NodeView(
        node=name,
        members=NAMES,
        topology=topologies.get("complete", len(NAMES)),
        layout=workload.layout,
        codec=codecs.get("fp32"),
        run_id=b"r" * 16,
        seed=1,
        deadline_s=PATIENCE_S,
        boot=NAMES.index(name) + 1,
    )
    driver = Driver(gossip.get("ad-psgd", **params), view, transport, workload, sink, clock, 1000)
    driver.start(workload.initial(0))
    return driver


def test_a_peer_is_answered_while_the_update_is_computed_and_that_time_is_compute() -> None:
    ends, sink, clock = network(NAMES), ListSink(), RoundClock()
    slow = Gated(np.full(6, 1.0, np.float32))
    driver = make_driver("a", ends["a"], slow, sink, clock)
    for name in ("b", "c"):
        ends[name].peers.pop("c" if name == "b" else "b")
    others = [make_driver(name, ends[name], Quadratic(np.ones(6, np.float32)), sink, RoundClock()) for name in "bc"]
    for other, gone in zip(others, "cb", strict=True):
        other._membership(frozenset({gone}))
    clock.finish_round()
    player = threading.Thread(target=driver.play)
    player.start()
    assert slow.begun.wait(PATIENCE_S)
    for other in others:
        for _ in range(3):  # the second waits for the answer to the first, which only a can give
            other.play()
    assert player.is_alive() and driver.round == 0
    slow.gate.release()
    player.join(PATIENCE_S)
    times = clock.finish_round()
    assert driver.round == 1
    parts = times.parts_s
    assert sum(times.parts_ns.values()) == times.round_ns
    assert parts["compute"] > 0 and parts["decode"] == parts["wait"] == 0.0
    assert slow.threads == {"compute_0"}
    # b and c have averaged with a: its gradient was of the model before, its step went to the model as it was by then
    np.testing.assert_array_equal(slow.seen[0][0], np.zeros(6))
    assert np.all(driver.model > slow.lr)


@contextmanager
def serving(driver: Driver) -> Iterator[None]:
    """The node takes in events, on a thread of its own, until the block is left."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            driver._take(driver._now() + 0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_an_update_of_a_model_that_was_left_is_computed_anew() -> None:
    """b and c train for 8 rounds; then a comes, and is asked by b while it computes its first update."""
    ends, sink = network(NAMES), ListSink()
    quick = Quadratic(np.ones(6, np.float32))
    b, c = (make_driver(name, ends[name], quick, sink, RoundClock(), max_ahead=2) for name in "bc")
    b._membership(frozenset({"a"}))
    c._settle()  # it never plays, so nothing else would end its time as a newcomer
    with serving(c):
        for _ in range(8):
            b.play()
    b._membership(frozenset({"c"}))
    slow = Gated(np.full(6, 1.0, np.float32))
    a = make_driver("a", ends["a"], slow, sink, RoundClock(), max_ahead=2)
    a._membership(frozenset({"c"}))
    player = threading.Thread(target=a.play)
    player.start()
    assert slow.begun.wait(PATIENCE_S)
    slow.begun.clear()
    b.play()
    with serving(b):
        until = time.monotonic() + PATIENCE_S
        while "adopted" not in sink.names():
            assert time.monotonic() < until
            time.sleep(0.001)
        slow.gate.release()
        assert slow.begun.wait(PATIENCE_S)
        slow.gate.release()
        player.join(PATIENCE_S)
        assert not player.is_alive()
    (_, first), (x, second) = slow.seen
    assert first == 0 and second == 8 and np.all(x > 0)


def test_an_error_of_the_workload_is_raised_in_the_loop() -> None:
    ends, sink = network(NAMES), ListSink()

    class Diverged(Quadratic):
        def local_update(self, x: Vec, round: Round) -> LocalUpdate:
            raise LocalError("the training loss became nan")

    driver = make_driver("a", ends["a"], Diverged(np.ones(6, np.float32)), sink, RoundClock())
    with pytest.raises(LocalError, match="loss became nan"):
        driver.play()


def test_aside_is_what_the_work_gives_and_serves_meanwhile() -> None:
    ends, sink, clock = network(NAMES), ListSink(), RoundClock()
    driver = make_driver("a", ends["a"], Quadratic(np.ones(6, np.float32)), sink, clock)
    ends["a"].events.put(SendReceipt(99, "b", 1, 1, 0.0, 0.0, 0.0))  # of nothing that is in flight
    clock.finish_round()
    assert driver.aside("other", lambda: 7) == 7
    parts = clock.finish_round().parts_s
    assert parts["other"] > 0 and parts["compute"] == parts["wait"] == 0.0


def test_three_nodes_of_different_speed_come_to_the_mean_of_their_targets() -> None:
    ends, sink = network(NAMES), ListSink()
    drivers = [
        make_driver(name, ends[name], Quadratic(np.full(6, k, np.float32), lr=0.05), sink, RoundClock())
        for k, name in enumerate(NAMES)
    ]

    def play(driver: Driver) -> None:
        for _ in range(150):
            driver.play()
        with serving(driver):  # who is ready serves the others
            finished.wait(PATIENCE_S)

    finished = threading.Barrier(len(drivers))
    threads = [threading.Thread(target=play, args=(d,)) for d in drivers]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert [d.round for d in drivers] == [150] * 3
    np.testing.assert_allclose(np.mean([d.model for d in drivers], axis=0), np.full(6, 1.0), atol=0.5)
    assert not [text for _, name, text in sink.events if name == "refused"]
