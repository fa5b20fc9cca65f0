"""A board's checkpoints: another process goes on with state and momentum; what does not fit is
refused, what is torn passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgegossip import frame
from edgegossip import recipe as recipes
from edgegossip.checkpoint.format import to_bytes
from edgegossip.engine.events import (
    Effect,
    Event,
    FrameReceived,
    KeepState,
    Loaded,
    NeighbourUp,
    Poll,
    Polled,
    Train,
    UpdateReady,
)
from edgegossip.engine.joining import Patience
from edgegossip.engine.node import NodeConfig, NodeEngine
from edgegossip.gossip.base import Send
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node import storage
from edgegossip.node.gossip_node import LEAVE_S
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.node.storage import Checkpointer, Restored
from edgegossip.recipe import Recipe
from edgegossip.types import ConfigError, DataError, LocalUpdate, Round, UsageError, Vec
from tests.node.fakes import ListSink, Quadratic

MEMBERS = ("board-0", "board-1")


class WithMomentum(Quadratic):
    """Its local optimiser remembers."""

    def __init__(self, size: int = 6) -> None:
        super().__init__(np.arange(size, dtype=np.float32))
        self.momentum = np.zeros(size, np.float32)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        local = super().local_update(x, round)
        self.momentum *= np.float32(0.5)
        self.momentum += local.delta
        return replace(local, delta=self.momentum.copy())

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {"momentum": self.momentum.copy()}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        if snapshot["momentum"].shape != self.momentum.shape:
            raise UsageError("the snapshot is not one of this workload")
        self.momentum[...] = snapshot["momentum"]


def recipe_of(**settings: Any) -> Recipe:
    fixed = {"run.nodes": 2, "gossip.algorithm": "choco-sgd", "codec.name": "minmax8", "checkpoint.slack_s": 0.0}
    return recipes.with_settings(
        recipes.load("quickstart-gossip"), {**fixed, "gossip.topology": "complete", **settings}
    )


class Board:
    """An engine with its checkpointer, as `gossip_node` puts them together, less sockets and
    threads."""

    def __init__(self, name: str, folder: Path, recipe: Recipe, size: int = 6) -> None:
        self.spec, self.sink = NodeSpec(recipe, name, MEMBERS, b"r" * 16), ListSink()
        self.workload = WithMomentum(size)
        self.view, self.algorithm = make_view(self.spec, self.workload.layout), make_algorithm(recipe)
        self.checkpointer = Checkpointer(self.spec, self.view, self.workload, folder / name, self.sink)
        neighbours = frozenset(MEMBERS) - {name}
        self.engine = NodeEngine(self.algorithm, NodeConfig(name, MEMBERS, neighbours, 1, 1000), Patience(3.0))
        self.mail, self.train, self.kept = list[Send](), list[Train](), list[Any]()
        self.carry_out(self.engine.start(0.0))

    def load(self) -> Restored | None:
        return self.checkpointer.load(self.algorithm)

    def look(self) -> Restored | None:
        """What it would go on from."""
        try:
            return self.load()
        finally:
            self.checkpointer.close(LEAVE_S)

    def begin(self, restored: Restored | None) -> None:
        self.give(*(NeighbourUp(peer) for peer in MEMBERS if peer != self.spec.name))
        if restored is None:
            self.give(Loaded(self.view, self.workload.initial(0)))
        else:
            self.give(Loaded(self.view, None, restored.state))

    def give(self, *happened: Event) -> None:
        for event in happened:
            self.carry_out(self.engine.handle(event, 0.0))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.mail.append(effect)
                case Train():
                    self.train.append(effect)
                case Poll():
                    self.give(Polled())
                case KeepState(state):
                    self.kept.append(state)

    def step(self) -> None:
        train = self.train.pop()
        self.give(UpdateReady(self.workload.local_update(train.model, train.round)))

    def keep(self) -> None:
        self.checkpointer.offer(self.kept[-1], self.algorithm.round(self.kept[-1]))


def deliver(boards: list[Board]) -> None:
    while any(board.mail for board in boards):
        for board in boards:
            mail, board.mail = board.mail, []
            for to, found in ((send.to, send.frame) for send in mail):
                other = next(b for b in boards if b.spec.name == to)
                other.give(FrameReceived(board.spec.name, b"".join(frame.build(found))))


def play(boards: list[Board], rounds: int) -> None:
    """In lockstep on one thread: each trains, then all take in what came."""
    for _ in range(rounds):
        deliver(boards)
        for board in boards:
            board.step()
        deliver(boards)
        for board in boards:
            board.keep()


def fleet(folder: Path, **settings: Any) -> list[Board]:
    return [Board(name, folder, recipe_of(**settings)) for name in MEMBERS]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gossip.order": "adapt-with-combine"},
        {"gossip.algorithm": "dpsgd", "gossip.order": "adapt-then-combine"},
    ],
    ids=["choco-sgd", "choco-sgd with", "dpsgd then"],
)
def test_boards_go_on_as_if_nothing_had_been(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = fleet(tmp_path / "whole", **settings)
    for board in whole:
        assert board.load() is None
        board.begin(None)
    play(whole, 12)
    first = fleet(tmp_path, **settings)
    for board in first:
        assert board.load() is None
        board.begin(None)
    play(first, 5)
    for board in first:
        board.checkpointer.close(LEAVE_S)
    second = fleet(tmp_path, **settings)
    for board in second:
        restored = board.load()
        assert restored is not None and restored.round == 5 and board.workload.momentum.any()
        board.begin(restored)
        assert board.engine.round == 5
    play(second, 7)
    for one, two in zip(whole, second, strict=True):
        assert one.engine.model.tobytes() == two.engine.model.tobytes()
        assert one.workload.momentum.tobytes() == two.workload.momentum.tobytes()


def kept(tmp_path: Path, rounds: int = 4, **settings: Any) -> None:
    boards = fleet(tmp_path, **settings)
    for board in boards:
        board.begin(board.load())
    play(boards, rounds)
    for board in boards:
        board.checkpointer.close(LEAVE_S)


def again(tmp_path: Path, size: int = 6, **settings: Any) -> Board:
    return Board("board-0", tmp_path, recipe_of(**settings), size)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_so_many_are_kept_and_they_are_the_newest(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SPOOL_BYTES", 0)  # each is written before the next one
    kept(tmp_path, **{"checkpoint.keep": keep})
    files = sorted(file.name for file in (tmp_path / "board-0").iterdir())
    assert files == [f"{k:010}.ckpt" for k in range(1, 5)][-keep:]
    restored = again(tmp_path).look()
    assert restored is not None and restored.round == 4


def test_one_is_kept_after_every_so_many_rounds(tmp_path: Path) -> None:
    settings = {"checkpoint.every": 3, "checkpoint.keep": 5}
    kept(tmp_path, **settings)
    restored = again(tmp_path).look()
    assert restored is not None and restored.round == 3
    assert len(list((tmp_path / "board-0").iterdir())) == 1
    kept(tmp_path, 2, **settings)  # rounds 4 and 5: it is no turn
    assert len(list((tmp_path / "board-0").iterdir())) == 1


def test_a_torn_one_is_passed_over_with_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        storage, "SPOOL_BYTES", 0
    )  # each is written before the next one; else a busy disk may skip some
    kept(tmp_path)
    newest = sorted((tmp_path / "board-0").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    board = again(tmp_path)
    restored = board.look()
    assert restored is not None and restored.round == 3
    assert board.sink.names() == ["checkpoint-skipped"] and str(newest) in board.sink.events[0][2]


def test_another_recipe_model_or_board_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    with pytest.raises(ConfigError, match="is of another run: its recipe is"):
        again(tmp_path, **{"training.lr": 0.5}).look()
    assert again(tmp_path, **{"run.threads": 2, "checkpoint.every": 7, "evaluation.every": 3}).look() is not None
    with pytest.raises(ConfigError, match="is of another run: its model is"):
        again(tmp_path, size=8).look()
    (tmp_path / "board-1").rename(tmp_path / "x")
    (tmp_path / "board-0").rename(tmp_path / "board-1")
    with pytest.raises(ConfigError, match="is of another run: its board is board-0, not board-1"):
        Board("board-1", tmp_path, recipe_of()).look()


def test_training_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    board = again(tmp_path)
    board.workload.momentum = np.zeros(3, np.float32)
    with pytest.raises(DataError, match="cannot be used: the snapshot is not one of this workload"):
        board.look()


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "board-0").write_text("a file")
    (tmp_path / "board-1").write_text("a file")
    boards = fleet(tmp_path)
    for board in boards:
        assert board.load() is None
        board.begin(None)
    play(boards, 4)
    for board in boards:
        board.checkpointer.close(LEAVE_S)
        assert board.sink.names() == ["checkpoint-failed"] and "cannot keep a checkpoint in" in board.sink.events[0][2]


def test_the_layouts_of_two_models_differ() -> None:
    """What the identity above rests on."""
    assert len({Layout.of([TensorSpec("a", (k,))]).hash for k in range(1, 9)}) == 8
    assert to_bytes(1) != to_bytes(2)
