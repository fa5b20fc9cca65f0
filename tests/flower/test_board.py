"""A board's work without a connection: what is asked twice, and what another process goes on
from."""

from __future__ import annotations

import threading
import tracemalloc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.engine.server_frames import Channel, Downlink
from edgegossip.flower import NodeClient, messages
from edgegossip.flower.checkpoints import BoardCheckpointer
from edgegossip.flower.client import BoardWorker
from edgegossip.flower.connection import LinkError
from edgegossip.flower.messages import (
    ASK,
    RunDescription,
    evaluate_request,
    frame_array,
    frame_bytes,
    frame_content,
    opaque_array,
)
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import CheckpointSection
from edgegossip.telemetry.spans import RoundClock
from edgegossip.types import ConfigError, LocalUpdate, PeerError, Round, UsageError, Vec
from tests.flower import toy
from tests.flower.conftest import Memory

RUN = b"r" * 16
X = toy.Toy(0).initial(1)


class Heavy(toy.Toy):
    """Has momentum of its own."""

    momentum = np.zeros(toy.LAYOUT.size, np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        update = super().local_update(x, round)
        self.momentum = np.float32(0.9) * self.momentum + update.delta
        return replace(update, delta=self.momentum)

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {"momentum": self.momentum}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        self.momentum = snapshot["momentum"]


def _board() -> BoardWorker:
    return BoardWorker("board-0", Heavy(1), Channel.of(toy.LAYOUT, RUN, codecs.get("co3")), codecs.get("fp32"))


def _asked(round: int, x: Vec, correction: Vec | None = None) -> Message:
    down = Downlink(toy.LAYOUT, RUN, codecs.get("fp32"))
    down.publish(x, round)
    frame = down.whole(round)
    if correction is not None:
        frame = down.with_correction(frame, "board-0", correction)
    return Message(frame_content(frame_array(frame, toy.LAYOUT)), dst_node_id=3, message_type="train")


def _answer(board: BoardWorker, round: int, x: Vec = X) -> bytes:
    content: RecordDict = board.train(_asked(round, x), RoundClock())
    return frame_bytes(content)


def test_a_round_that_is_asked_for_again_gets_the_same_answer_and_moves_no_memory(in_run: int) -> None:
    board, other = _board(), _board()
    for b in (board, other):
        _answer(b, 0)
    first = _answer(board, 1)
    assert _answer(board, 1) == first == _answer(other, 1)
    assert board.take_report()["net/payload_bytes"] == other.take_report()["net/payload_bytes"]
    assert _answer(board, 2) == _answer(other, 2)
    assert _answer(board, 2, X + np.float32(0.5)) != _answer(other, 2)  # another model is another question


class Staged(toy.Toy):
    def local_update(self, model: Vec, round: Round) -> LocalUpdate:
        return replace(super().local_update(model, round), stages_s={"forward": 0.5})


def test_an_answer_given_again_took_no_training(in_run: int) -> None:
    board = BoardWorker("board-0", Staged(1), Channel.of(toy.LAYOUT, RUN, codecs.get("co3")), codecs.get("fp32"))
    _answer(board, 0)
    assert board.take_report()["time/forward_s"] == 0.5
    _answer(board, 0)
    assert "time/forward_s" not in board.take_report()


def test_what_was_sent_besides_a_round_s_update_is_told_once(in_run: int) -> None:
    sent = [1_000]
    channel = Channel.of(toy.LAYOUT, RUN, codecs.get("fp32"))
    board = BoardWorker("board-0", toy.Toy(1), channel, codecs.get("fp32"), lambda: sent[0])
    for round, besides in enumerate((30, 500, 7)):
        _answer(board, round)
        sent[0] += 4 * toy.LAYOUT.size + besides
        assert board.take_report()["net/overhead_bytes"] == besides


def test_an_evaluation_is_recorded_in_the_round_in_which_it_was_asked_for(in_run: int, sink: Memory) -> None:
    fp32 = codecs.get("fp32")
    client = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), fp32, sink, own_test=True)
    client._board = BoardWorker("board-0", toy.Toy(1), Channel.of(toy.LAYOUT, RUN, fp32), fp32)
    for round in range(4):
        question = _asked(round, X)
        if round == 1:
            question.content[ASK] = evaluate_request(0)
        client._answer(question, 0.0)
    assert [step for _, step, values in sink.records if "eval/loss" in values] == [0]


def test_another_process_goes_on_with_memory_and_last_answer(in_run: int) -> None:
    board, again = _board(), _board()
    for round in range(3):
        last = _answer(board, round)
    again.restore(from_bytes(to_bytes(board.snapshot())))
    assert again.round == 2 and _answer(again, 2) == last
    assert _answer(again, 3) == _answer(board, 3) != _answer(_board(), 3)


class Corrected(toy.Toy):
    def local_update(self, model: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        update = super().local_update(model, round)
        delta = update.delta if correction is None else update.delta - np.float32(update.lr) * correction
        return replace(update, delta=delta, corrected=correction is not None)


def test_an_answer_belongs_to_the_correction_as_well_as_to_the_model(in_run: int) -> None:
    """Also in another process, which needs nothing but what comes down."""
    one = np.linspace(-1.0, 1.0, toy.LAYOUT.size, dtype=np.float32)

    def new() -> BoardWorker:
        return BoardWorker("board-0", Corrected(1), Channel.of(toy.LAYOUT, RUN, codecs.get("fp16")), codecs.get("fp32"))

    def answer(board: BoardWorker, round: int, correction: Vec = one) -> bytes:
        return bytes(frame_bytes(board.train(_asked(round, X, correction), RoundClock())))

    board, again = new(), new()
    first = answer(board, 0)
    again.restore(from_bytes(to_bytes(board.snapshot())))
    assert answer(board, 0) == answer(again, 0) == first
    assert answer(board, 0, 2 * one) == answer(again, 0, 2 * one) != first
    body = [wire.parse(answer(b, 1), wire.Limits()).body for b in (board, again, new())]
    assert body[0] == body[1] == body[2]


def test_a_snapshot_of_another_codec_is_refused() -> None:
    other = BoardWorker("board-0", toy.Toy(1), Channel.of(toy.LAYOUT, RUN, codecs.get("fp16")), codecs.get("fp32"))
    with pytest.raises(UsageError):
        _board().restore(other.snapshot())


def test_a_board_keeps_its_state_until_the_run_is_over(in_run: int, sink: Memory, tmp_path: Path) -> None:
    def checkpointer(members: tuple[str, ...] = ("board-0",)) -> BoardCheckpointer:
        return BoardCheckpointer("board-0", tmp_path / "k", toy.LAYOUT, RUN, members, CheckpointSection(), sink)

    board = _board()
    kept = checkpointer()
    kept.restore(board)
    for round in range(2):
        _answer(board, round)
        kept.save(board)
    kept.close(over=False)
    again, second = _board(), checkpointer()
    second.restore(again)
    assert again.round == 1 and _answer(again, 2) == _answer(board, 2)
    assert sink.texts("restored") == ["board-0 goes on from its checkpoint of round 1"]
    second.close(over=False)
    foreign = checkpointer(("board-0", "board-1"))
    with pytest.raises(ConfigError, match="another run"):
        foreign.restore(_board())
    foreign.close(over=False)
    third = checkpointer()
    third.restore(_board())
    third.close(over=True)
    assert not list((tmp_path / "k").glob("*.ckpt"))


@pytest.mark.parametrize(
    ("before", "now", "next_round", "goes_on"),
    [("aa", "bb", 5, False), ("aa", "aa", 5, True), ("", "bb", 1, True), ("", "", 0, False)],
)
@pytest.mark.parametrize("survives", [False, True])
def test_a_board_begins_anew_only_when_the_run_does(
    before: str, now: str, next_round: int, goes_on: bool, survives: bool, in_run: int, sink: Memory, tmp_path: Path
) -> None:
    """In another run of the same recipe, whatever round it is in when the board joins it, and in
    one that is at its start. `survives`: the board's process has seen both."""

    def checkpointer(layout: Layout, run_id: bytes) -> BoardCheckpointer:
        return BoardCheckpointer("board-0", tmp_path / "k", layout, run_id, ("board-0",), CheckpointSection(), sink)

    codec, down = codecs.get("co3"), codecs.get("fp32")
    made: list[weakref.ref[toy.Toy]] = []
    left: list[str] = []

    class Leaving(Heavy):
        def abandon(self) -> None:
            left.append("the old one")

    def make_workload() -> toy.Toy:
        assert not survives or all(before() is None for before in made)  # a small board has no room for two
        workload = Leaving(1)
        made.append(weakref.ref(workload))
        return workload

    def client() -> NodeClient:
        return NodeClient("board-0", "127.0.0.1:1", make_workload, codec, sink, make_checkpointer=checkpointer)

    def hello(board: NodeClient, instance: str, round: int) -> BoardWorker:
        hello = RunDescription(
            RUN,
            f"{toy.LAYOUT.hash:016x}",
            "co3",
            codec.wire_id,
            codec.wire_params(),
            9,
            down.wire_id,
            down.wire_params(),
            round,
        )
        content = replace(hello, instance=instance).content()
        board._query(Message(content, dst_node_id=3, message_type="query"))
        assert board._board is not None and board._checkpointer is not None
        return board._board

    one = client()
    board = hello(one, before, 0)
    for round in range(3):
        _answer(board, round)
        assert one._checkpointer is not None
        one._checkpointer.save(board)
    del board
    two = one
    if not survives:
        one._close_checkpointer(over=False)
        two = client()
    again = hello(two, now, next_round)
    assert again.round == (2 if goes_on else 0) and again.instance == now
    if not goes_on:
        assert _answer(again, next_round) == _answer(_board(), next_round)  # nothing of the other run
        assert sink.texts("discarded")
    assert bool(left) == (survives and not goes_on)
    two._close_checkpointer(over=False)


class Large(toy.Toy):
    """Trains a model of a million values; says that its change may be written over, or not."""

    def __init__(self, consumable: bool) -> None:
        super().__init__(1)
        self.consumable, self.delta = consumable, RNG.normal(size=LARGE.size).astype(np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        return LocalUpdate(self.delta.copy(), 0.1, 1.0, 1, 1, consumable=self.consumable)


LARGE = Layout.of([TensorSpec("w", (1_000_000,))])
RNG = np.random.default_rng(3)


@pytest.mark.parametrize("consumable", [False, True])
def test_what_a_codec_loses_is_measured_in_the_memory_of_the_change(consumable: bool, in_run: int) -> None:
    codec, workload = codecs.get("minmax8"), Large(consumable)
    board = BoardWorker("board-0", workload, Channel.of(LARGE, RUN, codec), codecs.get("fp32"))
    down = Downlink(LARGE, RUN, codecs.get("fp32"))
    down.publish(np.zeros(LARGE.size, np.float32), 0)
    content = frame_content(opaque_array(b"".join(wire.build(down.whole(0))), LARGE.size))
    asked = Message(content, dst_node_id=3, message_type="train")
    tracemalloc.start()
    frame = wire.parse(frame_bytes(board.train(asked, RoundClock())), wire.Limits())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    expected = codecs.relative_error(workload.delta, codec.decode(frame.body, LARGE))
    assert board.take_report()["codec/relative_error"] == pytest.approx(expected, rel=1e-5)
    if consumable:  # the model and the change; later the change and two bodies of a byte a value
        assert peak < 2.3 * 4 * LARGE.size


@pytest.mark.parametrize("moves", [0, 1, 40], ids=["nothing comes through", "no more comes", "all comes through"])
def test_a_coordinator_that_a_large_message_comes_from_or_goes_to_is_not_away(
    moves: int, sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 100.0

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("edgegossip.flower.client.time", clock)
    monkeypatch.setattr("edgegossip.telemetry.spans.time", clock)
    client = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), codecs.get("fp32"), sink, patience_s=0.5)
    incoming = SimpleNamespace(contents={})

    def fetch(_: object) -> str | None:
        incoming.contents |= {len(incoming.contents): b""} if len(incoming.contents) < moves else {}
        return "whole" if len(incoming.contents) == 40 else None

    link = client._link = SimpleNamespace(moved=0, fetch=fetch)  # type: ignore[assignment]

    def push() -> str:
        link.moved += link.moved < moves
        if link.moved < 40:
            raise LinkError("a request timed out", gone=True)
        return "taken"

    assert client._fetch(incoming) == ("whole" if moves == 40 else None)  # type: ignore[arg-type]
    if moves == 40:
        assert client._retry(push) == "taken"
    else:
        with pytest.raises(PeerError, match="gave up on the coordinator"):
            client._retry(push)


def test_a_board_joins_once_whenever_it_is_not_known_any_more(sink: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def receive(*_: object) -> None:
        calls.append("receive")
        if calls.count("receive") in (1, 3):
            raise LinkError("who are you?", gone=False, unknown=True)

    def join() -> int:
        calls.append("join")
        return 7

    client = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), codecs.get("fp32"), sink)
    client._link = SimpleNamespace(moved=0, join=join, receive=receive)  # type: ignore[assignment]
    monkeypatch.setattr("edgegossip.flower.client.time.sleep", lambda _s: None)
    for _ in range(5):
        assert client._poll() is None
    assert calls == ["receive", "join", "receive", "receive", "join", "receive", "receive"]


@pytest.mark.parametrize(("number", "tries"), [(7, 2), (8, 1)])
def test_an_answer_is_given_again_to_who_knows_the_board_as_the_same(number: int, tries: int, sink: Memory) -> None:
    """A SuperLink that gives it another number does not know the question."""
    given = []

    def reply(message: object) -> None:
        given.append(message)
        raise LinkError("who are you?", gone=False, unknown=True)

    client = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), codecs.get("fp32"), sink)
    client._link, client._id = SimpleNamespace(moved=0, join=lambda: number, reply=reply), 7  # type: ignore[assignment]
    assert client._refusal("an answer").unknown and given == ["an answer"] * tries  # type: ignore[arg-type, union-attr]


def test_a_board_that_cannot_train_says_why_also_where_the_coordinator_is_away(in_run: int, sink: Memory) -> None:
    class Broken(toy.Toy):
        def local_update(self, x: Vec, round: Round) -> LocalUpdate:
            raise UsageError("the training loss became nan")

    def away(reply: Message) -> None:
        raise LinkError("nobody there", gone=True)

    client = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), codecs.get("co3"), sink, patience_s=0.2)
    channel = Channel.of(toy.LAYOUT, RUN, codecs.get("co3"))
    client._board = BoardWorker("board-0", Broken(1), channel, codecs.get("fp32"))
    client._link = SimpleNamespace(moved=0, fetch=lambda incoming: _asked(0, X), reply=away)  # type: ignore[assignment]
    with pytest.raises(UsageError, match="the training loss became nan"):
        client._handle(SimpleNamespace(contents={}))  # type: ignore[arg-type]


def test_a_board_times_its_answers_and_leaves_no_thread_behind(in_run: int, sink: Memory) -> None:
    client, timed, joined = NodeClient("board-0", "127.0.0.1:1", lambda: toy.Toy(1), codecs.get("co3"), sink), [], []
    client._board = _board()
    client._board.sent = lambda start_s, end_s: iter(timed.append(end_s - start_s) or ())  # type: ignore[assignment, func-returns-value]
    bye = Message(messages.bye("the run is complete", False), dst_node_id=3, message_type="query")
    asked = [_asked(0, X), bye]
    client._link = SimpleNamespace(  # type: ignore[assignment]
        moved=0,
        join=lambda: joined.append(1) or 7,
        receive=lambda *_: SimpleNamespace(contents={}),
        fetch=lambda incoming: asked.pop(0),
        reply=lambda message: None,
        beat=lambda: True,
        close=lambda: None,
    )
    assert client.run() == "the run is complete" and joined == [1]
    assert len(timed) == 1 and timed[0] >= 0
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_a_board_with_the_codec_auto_sends_less_over_a_slow_way_up(in_run: int) -> None:
    """It times its own answers, and says so in its records and its log."""
    layout = Layout.of([TensorSpec("w", (20_000,))])
    x = np.zeros(layout.size, np.float32)

    class Learns(toy.Toy):
        def local_update(self, model: Vec, round: Round) -> LocalUpdate:
            noise = np.random.default_rng(round).standard_normal(layout.size)
            return LocalUpdate(noise.astype(np.float32), 0.1, 1.0, 1, 1)

    codec = codecs.get("auto", seconds=0.5)
    board = BoardWorker("board-0", Learns(1), Channel.of(layout, RUN, codec), codecs.get("fp32"))
    sizes, said, now_s = [], [], 0.0
    for round in range(30):
        down = Downlink(layout, RUN, codecs.get("fp32"))
        down.publish(x, round)
        question = Message(frame_content(frame_array(down.whole(round), layout)), dst_node_id=3, message_type="train")
        board.train(question, RoundClock())
        speed = 16_000.0 if round < 15 else 4_000.0  # bytes/s
        seconds = int(board._report["net/payload_bytes"]) / speed
        said += list(board.sent(now_s, now_s + seconds))
        now_s += seconds
        report = board.take_report()
        sizes.append(int(report["net/payload_bytes"]))
    assert sizes[14] == pytest.approx(0.45 * 16_000, rel=0.15)
    assert sizes[29] == pytest.approx(0.45 * 4_000, rel=0.15)
    assert report["rate/coordinator_mbit"] == pytest.approx(0.032, rel=0.15)
    assert said[-1].startswith("sends coordinator 0.7")
