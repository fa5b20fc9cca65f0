"""The driver around the server engine: boards in this process answer Flower's messages through a
link that is a list."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from edgegossip import recipe as recipes
from edgegossip.engine.server import ServerEngine
from edgegossip.engine.server_boards import BoardPresence
from edgegossip.engine.server_frames import Channel
from edgegossip.engine.server_records import Progress
from edgegossip.flower import Coordinator, messages
from edgegossip.flower._private.runtime import ErrorCode, RunLink
from edgegossip.flower.client import BoardWorker
from edgegossip.flower.coordinator import Driver, Hooks, Stopped
from edgegossip.telemetry.records import PARTS
from edgegossip.telemetry.spans import RoundClock
from edgegossip.types import Metrics, PeerError, RunError, Vec
from tests.engine.fleet import RUN_ID, Run
from tests.flower import toy
from tests.flower.conftest import Memory


@dataclass
class Boards(RunLink):
    """A link without a SuperLink; boards have the numbers 10, 11, ...

    `spoil(board, round, content)` may change what a board answers."""

    run: Run
    spoil: Callable[[int, int, RecordDict], RecordDict] = lambda board, round, content: content
    gone: set[int] = field(default_factory=set)  # whom the SuperLink does not know, although it lists them
    away: set[int] = field(default_factory=set)  # in whose place it answers
    broken: bool = False
    goodbyes: list[str] = field(default_factory=list)
    pushed: list[list[Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        codec, down = self.run.codec, self.run.downlink
        channel = Channel.of(toy.LAYOUT, RUN_ID, codec)
        self._boards = {10 + k: BoardWorker(b.name, toy.Toy(k), channel, down) for k, b in enumerate(self.run.boards)}
        self._ready: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def nodes(self) -> list[BoardPresence]:
        if self.broken:
            raise PeerError("nobody answers")
        return [BoardPresence(node, 0.0) for node in self._boards]

    def push(self, messages: list[Message]) -> list[str]:
        if self.broken:
            raise PeerError("nobody answers")
        self.pushed.append(messages)
        return [self._send(message) for message in messages]

    def _send(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        if node in self.gone and message.metadata.message_type == "train":
            return ""
        message_id = f"message-{next(self._numbers)}"
        own = RecordDict(
            {k: ArrayRecord(dict(r)) if isinstance(r, ArrayRecord) else r for k, r in message.content.items()}
        )
        asked = Message(own, dst_node_id=node, message_type=message.metadata.message_type)
        asked.metadata.__dict__["_message_id"] = message_id
        if node in self.away and message.metadata.message_type == "train":
            self.away.discard(node)
            self._ready[message_id] = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=asked)
        else:
            self._ready[message_id] = Message(self._answer(node, asked), reply_to=asked)
        return message_id

    def _answer(self, node: int, message: Message) -> RecordDict:
        board = self._boards[node]
        if message.metadata.message_type == "query":
            fields = messages.ask_of(message.content)
            if fields["ask"] == "bye":
                self.goodbyes.append(str(fields["text"]))
                return RecordDict()
            described = messages.RunDescription.read(fields)
            described.check(toy.LAYOUT.hash, self.run.codec, self.run.downlink, RUN_ID)
            return messages.hello_answer(self.run.boards[node - 10].name)
        if message.metadata.message_type == "evaluate":
            return board.evaluate(message, RoundClock())
        content = board.train(message, RoundClock())
        return self.spoil(node - 10, board.round, content)

    def pull(self, message_ids: list[str]) -> list[Message]:
        return [self._ready.pop(i) for i in message_ids if i in self._ready]

    def wait(self, timeout_s: float) -> None: ...

    def arriving(self) -> frozenset[str]:
        return frozenset()

    def delivering(self) -> bool:
        return False

    def forget(self, message_id: str) -> None:
        self._ready.pop(message_id, None)


def play(run: Run, link: Boards, sink: Memory, hooks: Hooks | None = None, stop_in: int = -1) -> Vec:
    clock = RoundClock()
    engine = ServerEngine(run.plan, run.initial, span=clock.span)
    driver = Driver(engine, run.plan, link, sink, clock, hooks or Hooks())
    if stop_in >= 0:
        link.spoil = lambda board, round, content: (driver.stop.set() if round == stop_in else None, content)[1]
    driver.run()
    return engine.model


@pytest.fixture
def run(in_run: int) -> Run:
    return Run(codec="elasticl", downlink="8-bit-elastiquant")


def test_over_flowers_messages_a_run_is_the_engines_bit_for_bit(run: Run, sink: Memory) -> None:
    link, virtual = Boards(run), Run(codec="elasticl", downlink="8-bit-elastiquant")
    np.testing.assert_array_equal(play(run, link, sink), virtual.play())
    assert [(event, text) for _, event, text, _ in sink.events] == [(log.event, log.text) for log in virtual.logs]
    assert sink.evaluations() == virtual.evaluations() and link.goodbyes == ["the run is complete"] * 4
    rounds = [values for _, _, values in sink.records if "server/used" in values]
    for values, ended in zip(rounds, virtual.rounds, strict=True):
        assert {key: values[key] for key in ended.values} == dict(ended.values)
        assert sum(values[f"time/{part}_s"] for part in PARTS) == pytest.approx(values["time/round_s"])
    (started,) = (fields for _, event, _, fields in sink.events if event == "started")
    assert started["unix_s"] > 1e9


def test_boards_that_get_the_same_model_get_the_same_content(run: Run, sink: Memory) -> None:
    link = Boards(run)
    play(run, link, sink)
    trains = [batch for batch in link.pushed if batch[0].metadata.message_type == "train"]
    assert len(trains) == 6 and all(len(batch) == 4 for batch in trains)
    for batch in trains:
        assert len({id(message.content.array_records[messages.ARRAYS]) for message in batch}) == 1


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (lambda c: RecordDict(), "refused the update of board-1: the message has 0 array records instead of one"),
        (
            lambda c: RecordDict({**c, messages.EVALUATION: MetricRecord({"loss": 0.5})}),
            "refused the update of board-1: the evaluation's loss or examples are no numbers",
        ),
        (
            lambda c: RecordDict({**c, messages.PROFILE: MetricRecord({"round": 0.5})}),
            "refused the profile of board-1: the profile does not say of which round it is",
        ),
        (
            lambda c: RecordDict({messages.ARRAYS: ArrayRecord({messages.FRAME: Array("float32", (3,), "x", b"")})}),
            "refused the update of board-1: a frame",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    spoiled: Callable[[RecordDict], RecordDict], reason: str, run: Run, sink: Memory
) -> None:
    run.plan = replace(run.plan, records_boards=True, evaluate_after=frozenset({0}), rounds=3)
    link = Boards(run, spoil=lambda board, round, content: spoiled(content) if (board, round) == (1, 1) else content)
    if "evaluation" in reason:
        # The board that is asked to evaluate is the first in turn: give that one the bad answer.
        link.spoil = lambda board, round, content: spoiled(content) if (board, round) == (0, 1) else content
        reason = reason.replace("board-1", "board-0")
    play(run, link, sink)
    (text,) = sink.texts("refused")
    assert text.startswith(reason)


def test_a_board_that_flower_does_not_know_or_takes_for_gone_is_not_waited_for(run: Run, sink: Memory) -> None:
    link = Boards(run, gone={12}, away={13})
    play(run, link, sink)
    used = [values["server/used"] for _, _, values in sink.records if "server/used" in values]
    assert used == [2, 3, 3, 3, 3, 3] and not sink.texts("refused") and not sink.texts("suspect")


def test_a_round_is_asked_for_when_the_one_before_is_safe(run: Run, sink: Memory) -> None:
    saved: list[Progress] = []
    flushed: list[int] = []
    link = Boards(run)

    def flush() -> None:
        flushed.append(len(saved))
        assert sum(batch[0].metadata.message_type == "train" for batch in link.pushed) == len(saved)

    play(run, link, sink, Hooks(save=saved.append, flush=flush))
    assert flushed == [0, 1, 2, 3, 4, 5] and [progress.round for progress in saved] == [1, 2, 3, 4, 5, 6]


def test_the_coordinator_evaluates_and_hands_the_model_over_before_boards_hear_of_the_end(
    run: Run, sink: Memory
) -> None:
    run.plan, link = replace(run.plan, evaluates_itself=True), Boards(run)
    seen: list[object] = []
    hooks = Hooks(
        evaluate=lambda x, examples: Metrics(float(np.mean(x**2)), 10, {"accuracy": 0.5}),
        on_model=lambda model: seen.append((model, len(sink.evaluations()))),
        on_over=lambda: seen.append(len(link.goodbyes)),
    )
    x = play(run, link, sink, hooks)
    (model, evaluated), goodbyes = seen  # type: ignore[misc]
    assert model is x and evaluated == 5 and goodbyes == 0
    assert sorted(sink.evaluations()) == list(range(6))


def test_a_coordinator_that_evaluates_asks_no_board_to(run: Run, sink: Memory, tmp_path: Path) -> None:
    """Boards would come to the same, in their own time."""
    sections: dict[str, Any] = {"run": {"mode": "server", "rounds": 2, "nodes": 4}, "codec": {"name": "elasticl"}}
    recipe = recipes.from_dict({**sections, "server": {"downlink": "8-bit-elastiquant"}})
    names, link = [board.name for board in run.boards], Boards(run)
    evaluate = lambda x, examples: Metrics(7.0, 10, {})  # noqa: E731
    made = Coordinator(recipe, toy.LAYOUT, run.initial, names, sink, tmp_path, run_id=RUN_ID, evaluate=evaluate)
    alone: Any = SimpleNamespace(check=lambda: None, name_of=lambda node: None, sockets=dict)
    made._make_driver(link, alone, alone).run()
    assert sink.evaluations() == {0: 7.0, 1: 7.0}
    assert {message.metadata.message_type for batch in link.pushed for message in batch} == {"query", "train"}


def test_a_run_that_is_stopped_says_so_to_its_boards(run: Run, sink: Memory) -> None:
    link = Boards(run)
    with pytest.raises(Stopped, match="the run was stopped"):
        play(run, link, sink, stop_in=2)
    assert link.goodbyes == ["the run was stopped"] * 4 and not sink.texts("finished")


def test_a_run_that_fails_says_so_to_its_boards(run: Run, sink: Memory) -> None:
    link = Boards(run, spoil=lambda board, round, content: RecordDict() if round else content)
    with pytest.raises(RunError, match="no usable update for 3 rounds"):
        play(run, link, sink)
    assert len(link.goodbyes) == 4 and link.goodbyes[0].startswith("the run failed: no usable update for 3 rounds")


def test_a_server_that_is_gone_ends_the_run_and_one_that_goes_while_boards_leave_does_not(
    run: Run, sink: Memory
) -> None:
    link = Boards(run)

    def check() -> None:
        link.broken = any(batch[0].metadata.message_type == "train" for batch in link.pushed)

    driver = Driver(ServerEngine(run.plan, run.initial), run.plan, link, sink, RoundClock(), Hooks(check=check))
    with pytest.raises(PeerError, match="nobody answers"):
        driver.run()
    driver.abandon("the coordinator lost Flower's SuperLink")
    assert not link.goodbyes
    other = Boards(run)
    play(run, other, sink, Hooks(on_over=lambda: setattr(other, "broken", True)))
    assert sink.texts("finished") == ["coordinator finished"]
