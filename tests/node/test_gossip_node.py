"""The shell around a board's engine, over a network in memory: effects are carried out, and every
second belongs to one part."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip import frame
from edgegossip import recipe as recipes
from edgegossip.engine.joining import Patience, RemoteMembers
from edgegossip.engine.node import neighbours_of
from edgegossip.gossip import topologies
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendReceipt, TransportEvent, Verdict, Woken
from edgegossip.modelfile import ModelFile, best_files
from edgegossip.node.gossip_node import GossipNode, Model
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec, make_view
from edgegossip.node.storage import save_model, vector_of
from edgegossip.telemetry.spans import PARTS, RoundClock, RoundTimes
from edgegossip.types import HostError, LocalUpdate, Metrics, Round, RunError, UsageError, Vec
from edgegossip.untrusted import Refusal
from tests.mesh.support import ROOT
from tests.node.fakes import ListSink, MemoryTransport, Quadratic, network

NAMES = ("a", "b", "c", "d")
RUN_ID = bytes(range(16))
PATIENCE_S = 30.0  # only bounds a failing test
VALUES = 6


class Clock(RoundClock):
    """Keeps what it gave."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        super().__init__(clock_ns)
        self.rounds: list[RoundTimes] = []

    def finish_round(self) -> RoundTimes:
        self.rounds.append(super().finish_round())
        return self.rounds[-1]


@dataclass
class Board:
    """A GossipNode whose model is a quadratic around `target`, and what it says."""

    name: str
    end: MemoryTransport
    workload: Quadratic
    sink: ListSink = field(default_factory=ListSink)
    members: tuple[str, ...] = NAMES
    settings: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    restarted: bool = False
    all_up: bool = True  # it hears at once that all neighbours are there

    def __post_init__(self) -> None:
        fixed = {
            "run.nodes": len(self.members),
            "run.rounds": 5,
            "gossip.algorithm": "dpsgd",
            "gossip.topology": "ring",
            "codec.name": "fp32",
            "evaluation.every": 1000,
        }
        recipe = recipes.with_settings(recipes.load("quickstart-gossip"), {**fixed, **self.settings})
        self.spec = NodeSpec(recipe, self.name, self.members, RUN_ID, self.restarted)
        self.clock = Clock()
        view = make_view(self.spec, self.workload.layout)
        self.node = GossipNode(
            self.spec,
            self.end,
            self.sink,
            NodeMeters(),
            lambda: Model(self.workload, view),
            clock=self.clock,
            **self.named,
        )
        if self.all_up:
            for peer in sorted(neighbours_of(self.name, self.members, view.topology)):
                self.end.events.put(PeerUp(peer))

    @property
    def model(self) -> Vec:
        return self.node.engine.model


def fleet(settings: dict[str, Any] | None = None, **fields: Any) -> list[Board]:
    ends = network(NAMES)
    return [
        Board(name, ends[name], Quadratic(np.full(VALUES, k, np.float32)), settings=settings or {}, **fields)
        for k, name in enumerate(NAMES)
    ]


def run_all(*boards: Board) -> None:
    threads = [threading.Thread(target=board.node.run, daemon=True) for board in boards]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert not any(t.is_alive() for t in threads)


def test_four_boards_do_what_the_matrix_says_and_report_it() -> None:
    boards = fleet({"run.rounds": 40})
    run_all(*boards)
    w, x = topologies.get("ring", 4).matrix(0), np.zeros((4, VALUES))
    for _ in range(40):
        x = w @ x - 0.1 * (x - np.arange(4)[:, None])
    np.testing.assert_allclose([b.model for b in boards], x, atol=1e-5)
    for board in boards:
        assert board.sink.names() == ["joined", "started", "finished"]
        assert [step for _, step, _ in board.sink.rows] == list(range(40))
        row = board.sink.rows[-1][2]
        assert {"train/loss", "codec/relative_error", "gossip/consensus_distance", "eval/loss", "time/round_s"} <= set(
            row
        )
        assert "eval/loss" not in board.sink.rows[0][2]


def test_traffic_counts_what_was_acknowledged() -> None:
    boards = fleet({"run.rounds": 3})
    run_all(*boards)
    rows = [values for _, _, values in boards[0].sink.rows]
    rounds, neighbours, bytes_each = 3, 2, 4
    payload_bytes = sum(float(row["net/payload_bytes"]) for row in rows)
    assert payload_bytes == rounds * neighbours * VALUES * bytes_each
    model, hello = frame.HEADER_BYTES + 20, frame.HEADER_BYTES + 4 * 9 + 20  # a hello carries four numbers
    assert sum(float(row["net/overhead_bytes"]) for row in rows) == 2 * (3 * model + hello)
    assert {row.get("codec/bits_per_value", 32) for row in rows} == {32}


def test_the_final_model_is_saved_and_told(tmp_path: Path) -> None:
    boards = fleet()
    saving = threading.Thread(target=boards[0].node.run, args=(tmp_path / "a.npz",), daemon=True)
    saving.start()
    run_all(*boards[1:])
    saving.join(PATIENCE_S)
    layout = boards[0].workload.layout
    np.testing.assert_array_equal(vector_of(ModelFile(tmp_path / "a.npz"), layout), boards[0].model)
    assert boards[0].sink.events[-1][2].startswith("a finished: accuracy ")


def test_a_board_without_a_test_set_says_so_and_records_no_evaluation() -> None:
    boards = fleet({"run.rounds": 2, "evaluation.every": 1})
    boards[0].workload.evaluate = lambda x, examples=None: None  # type: ignore[method-assign]
    run_all(*boards)
    first, second = boards[0].sink, boards[1].sink
    assert first.events[-1][1:] == ("finished", "a finished; it has no test set")
    assert not any(key.startswith("eval/") for _, _, row in first.rows for key in row) and len(first.rows) == 2
    assert all("eval/accuracy" in row for _, _, row in second.rows)


def test_garbage_costs_its_sender_the_connection_and_nobody_else() -> None:
    boards = fleet()
    boards[0].end.events.put(Received("b", b""))
    for name, gone in ((1, "a"), (3, "x")):
        boards[name].end.events.put(PeerDown(gone, "gone"))
    run_all(*boards)
    assert [peer for peer, _ in boards[0].end.closed] == ["b"] and "refused" in boards[0].sink.names()
    assert [len(board.sink.rows) for board in boards] == [5] * 4


def test_lost_peer_is_named_and_the_round_goes_on() -> None:
    boards = fleet()
    for k in (1, 3):
        boards[k].end.lose("c")
    run_all(*(boards[k] for k in (0, 1, 3)))
    for board, text in ((boards[1], "lost c: connection refused"), (boards[0], "")):
        said = [t for _, name, t in board.sink.events if name == "peer-down"]
        assert said == ([text] if text else [])


def test_notices_and_news_of_members_come_through() -> None:
    """A board that comes again, when all its neighbours have left, and the last one out of sight
    leaves, too."""
    left = [PeerDown(peer, f"{peer} left", left=True) for peer in "bd"]
    named = {"remote": RemoteMembers({"c": True})}
    board = Board(
        "a", MemoryTransport("a"), Quadratic(np.zeros(VALUES, np.float32)), restarted=True, named=named, all_up=False
    )
    said = Notice(None, "what happened"), Notice.of(None, Refusal("e", "10.0.0.6:40000", "no member"))
    events: list[TransportEvent] = [*said, *left, Verdict("c", False, "c left", left=True)]
    for event in events:
        board.end.events.put(event)
    with pytest.raises(RunError, match="the run is over"):
        board.node.run()
    assert board.sink.events == [
        ("a", "notice", "what happened"),
        ("a", "refused", "refused e at 10.0.0.6:40000: no member"),
    ]


def test_a_timer_is_due_when_its_time_has_come() -> None:
    now_s = 0.0

    class Silent(MemoryTransport):
        def incoming(self, timeout_s: float | None) -> TransportEvent | None:
            nonlocal now_s
            if timeout_s is None or not self.events.empty():
                return super().incoming(timeout_s)
            now_s += timeout_s + 1e-6
            return PeerUp("d") if now_s > 16.0 and timeout_s else None

    board = Board("a", Silent("a"), Quadratic(np.zeros(VALUES, np.float32)), named={"now": lambda: now_s}, all_up=False)
    board.end.events.put(PeerUp("b"))
    board.node.run()
    waits = [text for _, name, text in board.sink.events if name == "waiting"]
    assert waits[:3] == ["waiting 1/2: missing d (never seen)"] * 3
    assert waits[3].startswith("round 0: waiting for b, d for 5 s") and "suspect" in board.sink.names()
    assert len(board.sink.rows) == 5


def test_models_of_evaluations_are_kept_as_they_were_tested(tmp_path: Path) -> None:
    tested: list[Vec] = []

    class Scored(Quadratic):
        def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
            tested.append(x.copy())
            return Metrics(1.0, 100, {"accuracy": [0.1, 0.9, 0.2, 0.3][len(tested) - 1]})

    settings = {"run.rounds": 4, "evaluation.every": 1, "checkpoint.best": True, "checkpoint.every": 0}
    board = Board("a", MemoryTransport("a"), Scored(np.ones(VALUES, np.float32)), settings=settings)
    for peer in ("b", "d"):
        board.end.lose(peer)
    board.node.run(tmp_path / "checkpoint" / "a.npz")
    files = {file.round: file for file in best_files(tmp_path / "best")}
    assert {round: file.merit for round, file in files.items()} == {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3}
    for round, file in files.items():
        np.testing.assert_array_equal(vector_of(ModelFile(file.path), board.workload.layout), tested[round - 1])
    assert len(list((tmp_path / "checkpoint").iterdir())) == 1


def test_the_average_is_tested_before_a_board_ends_and_costs_it_nothing_where_that_fails(tmp_path: Path) -> None:
    def played(average: Vec) -> Board:
        path = tmp_path / "average.npz"
        save_model(path, {"a": average[:3], "b": average[3:]}, {})
        board = Board("a", MemoryTransport("a"), Quadratic(np.ones(VALUES, np.float32)))
        for peer in ("b", "d"):
            board.end.lose(peer)
        board.node.run(tmp_path / "checkpoint" / "a.npz", lambda: path)
        assert board.sink.names()[-1] == "finished"
        return board

    good = played(np.ones(VALUES, np.float32))
    assert ("a", "averaged", "the average of the boards' models, tested by a: accuracy 0.00 %") in good.sink.events
    bad = played(np.ones(VALUES + 1, np.float32))
    assert any("could not test the average" in text for _, name, text in bad.sink.events if name == "notice")


def test_a_neighbour_that_sends_without_end_does_not_keep_a_board_from_its_rounds() -> None:
    now_s = 0.0
    layout = Quadratic(np.zeros(VALUES, np.float32)).layout

    class Flooded(MemoryTransport):
        """Always has one more message of b, which takes a tenth of a second; d is gone."""

        def incoming(self, timeout_s: float | None) -> TransportEvent | None:
            nonlocal now_s
            if not self.events.empty():
                return super().incoming(timeout_s)
            now_s += 0.1
            round = board.node.engine.round
            again = frame.Frame(frame.Kind.MODEL, 1, b"", layout.hash, RUN_ID, round, round + 1, 0, bytes(24))
            return Received("b", b"".join(frame.build(again)))

    board = Board("a", Flooded("a"), Quadratic(np.zeros(VALUES, np.float32)), named={"now": lambda: now_s})
    board.end.events.put(PeerDown("d", "gone"))
    board.node.run()
    assert now_s < 30.0 and len(board.sink.rows) == 5


def test_what_has_come_is_taken_in_before_a_round_though_the_transport_was_woken() -> None:
    told: list[bool] = []

    class Waking(Quadratic):
        def local_update(self, x: Vec, round: Round) -> LocalUpdate:
            told.append("notice" in board.sink.names())
            board.end.wake()
            board.end.events.put(Notice("b", "what happened"))
            return super().local_update(x, round)

    board = Board("a", MemoryTransport("a"), Waking(np.ones(VALUES, np.float32)), settings={"run.rounds": 2})
    for peer in ("b", "d"):
        board.end.lose(peer)
    board.node.run()
    assert told == [False, True]


# What time belongs to


class Watched:
    """Notes which part of the round a thing's methods are called in."""

    def __init__(self, inner: object, clock: Clock, noted: set[str]) -> None:
        self.__dict__.update(_inner=inner, _clock=clock, _noted=noted)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found) and self._clock.rounds:  # what comes before the first round belongs to none
            self._noted.add(f"{name} in {self._clock.part}")
        return found


def test_nothing_that_a_round_needs_is_left_to_other() -> None:
    boards, noted = fleet({"run.rounds": 3}), set[str]()
    node, clock = boards[0].node, boards[0].clock
    node.engine.algorithm = Watched(node.engine.algorithm, clock, noted)  # type: ignore[assignment]
    node.traffic = Watched(node.traffic, clock, noted)  # type: ignore[assignment]
    node._transport = Watched(node._transport, clock, noted)  # type: ignore[assignment]
    boards[0].workload = Watched(boards[0].workload, clock, noted)  # type: ignore[assignment]
    run_all(*boards)
    assert {"local_update in compute", "model in compute", "step in encode", "receive in decode"} <= noted
    assert {"send in transmit", "acknowledged in transmit"} <= noted
    once = ("round ", "take ", "evaluate ", "over ", "model ")  # at the end the workload is given the final model
    assert not {text for text in noted if text.endswith("other") and not text.startswith(once)}, noted


def test_a_round_ends_when_its_record_is_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stands between them that takes its time, such as a look at the machine's sensors: by
    its record the round would have been longer than the time since the one before."""
    boards, order = fleet({"run.rounds": 5}), list[str]()

    def noted(what: str, act: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (order.append(what), act(*given, **named))[1]

    class Sensors(NodeMeters):
        __call__ = noted("sensors", NodeMeters.__call__)

    board = boards[0]
    board.node._meters = Sensors()
    monkeypatch.setattr(board.clock, "finish_round", noted("ends", board.clock.finish_round))
    monkeypatch.setattr(board.sink, "metrics", noted("record", board.sink.metrics))
    run_all(*boards)
    assert order[-15:] == ["sensors", "ends", "record"] * 5


def test_the_parts_of_a_round_add_up_to_its_time() -> None:
    boards = fleet({"run.rounds": 3})
    run_all(*boards)
    for times in (times for board in boards for times in board.clock.rounds):
        assert set(times.parts_ns) == set(PARTS) and sum(times.parts_ns.values()) == times.round_ns
    row = boards[0].sink.rows[0][2]
    parts = sum(float(row[f"time/{part}_s"]) for part in PARTS)
    assert parts == pytest.approx(float(row["time/round_s"]), abs=1e-9)


SENT = 4  # frames by the end of the first round: a hello and a model to each of two neighbours


@pytest.mark.parametrize("slow", ["acknowledgement", "peer"])
def test_blocked_time_is_transmit_until_the_acknowledgement_and_wait_after_it(slow: str) -> None:
    """A second passes while what is slow comes from a neighbour, and no time otherwise."""
    boards, acknowledged, receipts, now_ns = fleet({"run.rounds": 1}), threading.Event(), 0, 0
    board, late = boards[0], boards[1].workload
    hear, update = board.end.incoming, late.local_update

    def incoming(timeout_s: float | None) -> TransportEvent | None:
        nonlocal receipts, now_ns
        event = hear(timeout_s)
        receipts += isinstance(event, SendReceipt)
        from_late = acknowledged.is_set() and isinstance(event, Received) and event.sender == "b"
        if from_late if slow == "peer" else receipts == SENT:
            now_ns = 10**9
        if receipts == SENT:
            acknowledged.set()
        return event

    board.end.incoming = incoming  # type: ignore[method-assign]
    board.clock = board.node._clock = Clock(lambda: now_ns)
    if slow == "peer":
        late.local_update = lambda x, round: (acknowledged.wait(PATIENCE_S), update(x, round))[1]  # type: ignore[method-assign]
    run_all(*boards)
    parts = board.clock.rounds[1].parts_s  # the first is what came before the first round
    assert parts == dict.fromkeys(PARTS, 0.0) | {"transmit" if slow == "acknowledgement" else "wait": 1.0}
    assert board.sink.rows[0][2]["net/payload_bytes"] == 2 * VALUES * 4  # the last round waits for both


def test_a_rounds_record_is_down_before_its_state_is_kept() -> None:
    """Whoever is killed goes on after that state, and would miss the record; its time is none of
    `other`."""
    boards, seen = fleet({"run.rounds": 3}), list[tuple[int, int]]()
    first = boards[0]

    class Kept:
        def ready(self) -> None: ...
        def close(self, patience_s: float) -> None: ...
        def offer(self, state: Any, round: int) -> None:
            seen.append((round, len(first.sink.rows)))

    load, metrics, parts = first.node._load_model, first.sink.metrics, list[str]()

    def noted(*record: Any) -> None:
        parts.append(first.clock.part)
        metrics(*record)

    first.node._load_model = lambda: replace(load(), checkpointer=Kept())  # type: ignore[assignment]
    first.sink.metrics = noted  # type: ignore[method-assign]
    run_all(*boards)
    assert seen and all(rows == round for round, rows in seen) and parts == 3 * ["wait"]


# Slow links


class Answers(MemoryTransport):
    """Is another's end: keeps what came, and sends the same on."""

    def sends(self, to: str) -> None:
        while not self.events.empty():
            event = self.events.get()
            assert isinstance(event, Received)
            self.peers[to].events.put(Received(self.node, event.data))


class SlowLink(MemoryTransport):
    """Of which the clock is moved by waiting: frames of 1000 bytes that come at so many bytes a
    second. Others may be quicker."""

    now_s, bytes_per_s, frames = 0.0, 0.0, 1
    quick: tuple[Answers, ...] = ()

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        for other in self.quick:
            other.sends(self.node)
        if not self.events.empty():
            return super().incoming(0.0)
        assert timeout_s is not None
        self.now_s += timeout_s
        self.came_bytes = min(self.frames * 1000, int(self.bytes_per_s * self.now_s))
        self.to_come_bytes = self.came_bytes < self.frames * 1000 and 1000 - self.came_bytes % 1000
        return None


@pytest.mark.parametrize(
    ("frames", "bytes_per_s", "at_least_s", "at_most_s"),
    [(1, 0.0, 16.0, 18.0), (1, 50.0, 26.0, 33.0), (1, 0.5, 19.0, 22.0), (10**6, 1000.0, 158.0, 164.0)],
)
def test_a_deadline_waits_for_a_frame_that_goes_on_arriving(
    frames: int, bytes_per_s: float, at_least_s: float, at_most_s: float
) -> None:
    """Until it is there, while it would be within ten deadlines; one that hardly moves is not
    waited for, and nobody keeps a round from its end with frame after frame. In both rounds."""
    link = SlowLink("a")
    link.bytes_per_s, link.frames = bytes_per_s, frames
    settings = {"run.rounds": 2, "gossip.deadline_s": 8.0, "gossip.topology": "complete"}
    workload = Quadratic(np.ones(VALUES, np.float32))
    board = Board("a", link, workload, members=("a", "b"), settings=settings, named={"now": lambda: link.now_s})
    link.peers["b"] = MemoryTransport("b")
    board.node.run()
    assert "suspect" in board.sink.names()
    assert at_least_s <= link.now_s <= at_most_s


class Trickling(SlowLink):
    """Over which the answers of some take `takes_s`, whatever comes before."""

    slow: tuple[Answers, ...] = ()
    begun_s, takes_s = math.inf, 0.0

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        if all(end.events.empty() for end in self.slow):
            self.begun_s = math.inf
        self.begun_s = min(self.begun_s, self.now_s)
        if self.now_s >= self.begun_s + self.takes_s:
            for end in self.slow:
                end.sends(self.node)
        return super().incoming(timeout_s)


@pytest.mark.parametrize(
    ("slow", "quick", "others", "rounds", "takes_s", "least_s", "most_s"),
    [
        ("b", "", "", 12, 20.0, 240.0, 250.0),
        ("b", "", "", 60, 78.0, 4680.0, 4690.0),
        ("b", "", "cd", 12, 20.0, 240.0, 250.0),
        ("b", "", "cd", 60, 15.0, 900.0, 905.0),
        ("b", "", "cd", 60, 78.0, 240.0, 320.0),
        ("bc", "", "", 60, 78.0, 4680.0, 4690.0),
        ("b", "c", "", 12, 20.0, 24.0, 40.0),
        ("b", "c", "", 60, 15.0, 24.0, 80.0),
        ("b", "cd", "", 12, 20.0, 24.0, 40.0),
    ],
)
def test_a_neighbour_that_sends_byte_by_byte_holds_up_few_rounds_where_others_are_in_time(
    slow: str, quick: str, others: str, rounds: int, takes_s: float, least_s: float, most_s: float
) -> None:
    """Where all do, links are slow, as they may be in a fleet of two. In a larger one a board's
    only neighbour is waited for, for two deadlines on the average."""
    link, members = Trickling("a"), (*slow, "a", *quick, *others)  # the first is a star's centre
    link.bytes_per_s, link.frames, link.takes_s = 50.0, 10**6, takes_s
    link.slow, link.quick = tuple(map(Answers, slow)), tuple(map(Answers, quick))
    settings = {
        "gossip.deadline_s": 8.0,
        "gossip.topology": "star" if others else "complete",
        "run.nodes": len(members),
    }
    workload = Quadratic(np.ones(VALUES, np.float32))
    named = {"now": lambda: link.now_s}
    board = Board("a", link, workload, members=members, settings={"run.rounds": rounds, **settings}, named=named)
    for end in (*link.slow, *link.quick):
        link.peers[end.node], end.peers["a"] = end, link
    board.node.run()
    assert least_s <= link.now_s <= most_s


# A board that was stopped


class Stopped(MemoryTransport):
    """Of which the process stands still for `asleep_s` when it waits for b in a round. What b sent
    meanwhile is handed out some time after it woke up."""

    now_s, asleep_s, after_s, began_s = 0.0, 60.0, 0.0, 0.0
    wakes: Callable[[], None]

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        wakes_s = self.began_s + self.asleep_s
        if not self.events.empty() and (self.now_s < wakes_s or self.now_s >= wakes_s + self.after_s):
            event = super().incoming(0.0)
            self.began_s = self.now_s if isinstance(event, Received) else self.began_s
            return event
        if timeout_s is None or (timeout_s and self.now_s < wakes_s):  # the deadline was set, or is not yet
            self.now_s = wakes_s
            self.wakes()
        self.now_s += timeout_s or 0.0
        return None


@pytest.mark.parametrize(("asleep_s", "after_s"), [(1.5, 6.0), (9.0, 0.0), (9.0, 3.0), (60.0, 3.0)])
def test_a_board_that_wakes_up_blames_nobody_for_what_it_did_not_read(asleep_s: float, after_s: float) -> None:
    ends = Stopped("a"), Answers("b")
    ends[0].asleep_s, ends[0].after_s = asleep_s, after_s
    ends[0].peers["b"], ends[1].peers["a"] = ends[1], ends[0]
    ends[0].wakes = lambda: ends[1].sends("a")  # type: ignore[method-assign]
    settings = {"run.rounds": 2, "gossip.deadline_s": 5.0, "gossip.topology": "complete"}
    workload = Quadratic(np.ones(VALUES, np.float32))
    board = Board("a", ends[0], workload, members=("a", "b"), settings=settings, named={"now": lambda: ends[0].now_s})
    board.node.run()
    assert not {"suspect", "waiting"} & {*board.sink.names()}
    assert [row["gossip/heard"] for _, _, row in board.sink.rows] == [1, 1]
    assert ("starved" in board.sink.names()) is (asleep_s > 2.0)  # else its processor may have been busy


@pytest.mark.parametrize(("asleep_s", "grace_s"), [(3.0, 3.0), (60.0, 5.0)])
def test_a_board_that_woke_up_gives_others_a_deadline_more_at_most(asleep_s: float, grace_s: float) -> None:
    link = Stopped("a")
    link.asleep_s, link.peers["b"] = asleep_s, MemoryTransport("b")
    link.wakes = lambda: None  # type: ignore[method-assign]
    settings = {"run.rounds": 1, "gossip.deadline_s": 5.0, "gossip.topology": "complete"}
    workload = Quadratic(np.ones(VALUES, np.float32))
    board = Board("a", link, workload, members=("a", "b"), settings=settings, named={"now": lambda: link.now_s})
    board.node.run()
    assert "suspect" in board.sink.names()
    assert link.now_s == pytest.approx(5.0 + asleep_s + grace_s)


class Flooded(MemoryTransport):
    """Always has something to tell, and that takes a while."""

    now_s = 0.0

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        self.now_s += 0.4
        assert self.now_s <= 10.0
        return super().incoming(0.0) or Woken()


def test_a_flood_puts_off_no_deadline() -> None:
    link = Flooded("a")
    link.peers["b"] = MemoryTransport("b")
    settings = {"run.rounds": 1, "gossip.deadline_s": 5.0, "gossip.topology": "complete"}
    workload = Quadratic(np.ones(VALUES, np.float32))
    board = Board("a", link, workload, members=("a", "b"), settings=settings, named={"now": lambda: link.now_s})
    board.node.run()
    assert "suspect" in board.sink.names() and link.now_s >= 5.0


# Asynchronous


class Gated(Quadratic):
    """Computes only when the test lets it."""

    def __init__(self, target: Vec) -> None:
        super().__init__(target)
        self.begun, self.permits = threading.Event(), threading.Semaphore(0)
        self.seen: list[tuple[Vec, Round]] = []
        self.threads: set[str] = set()

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        self.seen.append((x.copy(), round))
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.permits.acquire(timeout=PATIENCE_S)
        return super().local_update(x, round)


PAIRWISE = {"gossip.algorithm": "ad-psgd", "gossip.topology": "complete", "run.rounds": 3}
MEMBERS = ("a", "b", "c")


def pairwise(name: str, end: MemoryTransport, workload: Quadratic, **settings: Any) -> Board:
    return Board(name, end, workload, members=MEMBERS, settings={**PAIRWISE, **settings})


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_peer_is_answered_while_the_update_is_computed_and_that_time_is_compute() -> None:
    ends, slow = network(MEMBERS), Gated(np.ones(VALUES, np.float32))
    a, b = pairwise("a", ends["a"], slow), pairwise("b", ends["b"], Quadratic(np.ones(VALUES, np.float32)))
    for board in (a, b):
        board.end.events.put(PeerDown("c", "gone"))
    player = started(a.node.run)
    assert slow.begun.wait(PATIENCE_S)
    other = started(b.node.run)  # its second exchange waits for the end of the first, which only a can give
    other.join(PATIENCE_S)
    assert not other.is_alive() and player.is_alive() and a.node.engine.round == 0
    ends["a"].events.put(PeerDown("b", "b left", left=True))
    slow.permits.release(3)
    player.join(PATIENCE_S)
    assert a.node.engine.round == 3 and slow.threads == {"compute_0"}
    times = a.clock.rounds[1]
    assert sum(times.parts_ns.values()) == times.round_ns
    assert times.parts_s["compute"] > 0 and times.parts_s["decode"] == 0.0
    np.testing.assert_array_equal(slow.seen[0][0], np.zeros(VALUES))
    assert np.all(a.model > slow.lr)  # it has averaged with b meanwhile, and its own step went to what came of that


def test_an_error_of_the_workload_is_raised_in_the_loop() -> None:
    class Diverged(Quadratic):
        def local_update(self, x: Vec, round: Round) -> LocalUpdate:
            raise UsageError("the training loss became nan")

    with pytest.raises(UsageError, match="loss became nan"):
        pairwise("a", network(MEMBERS)["a"], Diverged(np.ones(VALUES, np.float32))).node.run()


FAILS_BUSY = """
import threading, time
import numpy as np
from edgegossip.cli import main as program
from edgegossip.mesh.base import Notice
from edgegossip.types import HostError
from tests.node.test_gossip_node import MEMBERS, VALUES, Quadratic, network, pairwise

class Slow(Quadratic):
    def local_update(self, x, round):
        ends["a"].events.put(Notice("b", "it says something"))
        time.sleep(600)

def full(name, kind, text, **fields):
    if kind == "notice":
        raise HostError("the disk is full")

ends = network(MEMBERS)
board = pairwise("a", ends["a"], Slow(np.ones(VALUES, np.float32)))
board.sink.event = full
program.cli.main = lambda **_: board.node.run()
program.main([])
"""


def test_a_board_that_fails_while_it_computes_ends_at_once() -> None:
    command = [sys.executable, "-c", FAILS_BUSY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (HostError.exit_code, "edgegossip: the disk is full\n")


def test_patience_is_the_recipes() -> None:
    board = Board("a", MemoryTransport("a"), Quadratic(np.zeros(VALUES, np.float32)), settings={"network.grace_s": 7.0})
    assert board.node.engine._patience == Patience(grace_s=7.0)
