"""The coordinator's rounds over boards in this process: what they compute, from the start and from a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.flower import exchange as exchanges
from edgegossip.study.measure import Recorder
from edgegossip.study.server import VirtualServer
from edgegossip.types import Metrics, Vec
from tests.flower import toy
from tests.flower.conftest import Memory
from tests.flower.play import RUN_ID, Run, garbage


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch, in_run: int) -> None:
    monkeypatch.setattr(exchanges, "WATCH_S", 0.0)


@pytest.mark.parametrize(("codec", "down"), [("fp32", "fp32"), ("co3", "8-bit-elastiquant"), ("elasticl", "fp16")])
def test_a_study_plays_the_same_rounds_bit_for_bit(codec: str, down: str, sink: Memory) -> None:
    run = Run(sink, codec={"name": codec}, server={"downlink": down})
    x = run.play()
    server = VirtualServer(
        toy.LAYOUT,
        RUN_ID,
        run.codec,
        [b.name for b in run.boards],
        [toy.Toy(k) for k in range(4)],
        6,
        downlink=run.downlink,
    )
    server.play(run.initial, Recorder(4, frozenset(), frozenset(), lambda x: Metrics(0, 0, 1), lambda: 0))
    np.testing.assert_array_equal(x, server.model)
    assert sink.evaluations().keys() == set(range(6))


def test_differences_go_down_to_those_who_hold_the_model_before(sink: Memory) -> None:
    run = Run(sink, rounds=8, server={"downlink": "8-bit-elastiquant", "min_nodes": 1})
    run.boards[1].away = frozenset({3})
    run.boards[2].spoil = {5: garbage}
    x = run.play()
    whole = run.boards[0].received_bytes[0]
    small = [[size < whole / 2 for size in b.received_bytes] for b in run.boards]
    assert small[0] == [False] + 7 * [True]
    assert run.boards[1].trained == list(range(8)) and small[1] == [False, True, True, True, False, True, True, True]
    assert small[2] == [False] + 7 * [True]  # it had the model, whatever it sent
    exact = toy.fedavg(4, 8, run.initial)
    assert np.abs(x - exact).max() < 0.5
    sent = [
        values["net/payload_bytes"]
        for who, _, values in sink.records
        if who == "coordinator" and "server/used" in values
    ]
    assert len(sent) == 8 and sent[0] > 2 * sent[1]
    assert sum(sent) + sum(v["net/overhead_bytes"] for _, _, v in sink.records if "server/used" in v) == sum(
        sum(b.received_bytes) for b in run.boards
    )


def test_a_board_that_was_too_busy_to_answer_its_greeting_is_greeted_again(sink: Memory) -> None:
    run = Run(sink)
    run.boards[1].unavailable = 2
    np.testing.assert_array_equal(run.play(), Run(Memory()).play())
    assert not sink.texts("refused") and len(sink.texts("joined")) == 4


def test_nobody_waits_for_a_process_whose_successor_has_joined(sink: Memory) -> None:
    run = Run(sink, server={"deadline_s": 3600})
    run.boards[1].ghost = frozenset({2})
    run.play()
    assert run.boards[1].trained == list(range(6)) and len(sink.texts("joined")) == 5
    used = [values["server/used"] for _, _, values in sink.records if "server/used" in values]
    assert used == [4, 4, 3, 4, 4, 4] and not sink.texts("suspect")


@pytest.mark.parametrize("down", ["fp32", "8-bit-elastiquant"])
def test_a_round_whose_boards_all_went_away_is_asked_for_again(down: str, sink: Memory) -> None:
    expected = Run(Memory(), rounds=6, server={"downlink": down}).play()
    run = Run(sink, rounds=6, server={"downlink": down})
    run.return_s = 30.0
    for board in run.boards:
        board.away = frozenset({3})
    np.testing.assert_array_equal(run.play(), expected)
    assert run.boards[0].trained == [0, 1, 2, 3, 3, 4, 5]
    assert all(values["server/used"] == 4 for _, _, values in sink.records if "server/used" in values)


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "fedmedian", "krum"])
def test_flowers_strategies_run_and_go_on_from_a_checkpoint(strategy: str, sink: Memory) -> None:
    params = {"server_momentum": 0.5} if strategy == "fedavgm" else {}
    sections: dict[str, Any] = {"server": {"strategy": strategy, "strategy_params": params}}
    whole = Run(sink, **sections)
    x = whole.play()
    again = Run(sink, **sections)
    np.testing.assert_array_equal(again.play(whole.saved[2]), x)
    assert not np.array_equal(x, whole.initial)


@pytest.mark.parametrize(("codec", "down"), [("fp32", "fp32"), ("elasticl", "8-bit-elastiquant")])
def test_a_coordinator_goes_on_from_any_round_with_the_same_curve(codec: str, down: str, sink: Memory) -> None:
    sections: dict[str, Any] = {"codec": {"name": codec}, "server": {"downlink": down}}
    whole = Run(sink, **sections)
    x = whole.play()
    curve = sink.evaluations()
    for k in (0, 2, 4):
        again = Run(Memory(), **sections)
        np.testing.assert_array_equal(again.play(whole.saved[k]), x)
        assert again.sink.evaluations().items() <= curve.items()
        assert max(again.sink.evaluations()) == 5


def test_the_coordinator_may_evaluate_itself(sink: Memory) -> None:
    run = Run(sink, rounds=3)
    seen: list[int | None] = []

    def evaluate(x: Vec, examples: int | None) -> Metrics:
        seen.append(examples)
        return Metrics(float(np.mean(x**2)), 0.5, 10)

    x = run.play(evaluate=evaluate)
    assert sorted(sink.evaluations()) == [0, 1, 2] and seen == [None] * 3
    assert sink.evaluations()[2] == pytest.approx(float(np.mean(x**2)))
