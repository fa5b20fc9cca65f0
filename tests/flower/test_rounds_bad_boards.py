"""What the coordinator's rounds do about updates and claims that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from edgegossip import frame as wire
from edgegossip.flower import exchange as exchanges
from edgegossip.flower import protocol
from edgegossip.flower.payload import ARRAYS, FRAME, STYPE, frame_bytes
from edgegossip.flower.trust import Trust
from edgegossip.frame import Aux, Limits
from tests.flower import toy
from tests.flower.conftest import Memory
from tests.flower.play import Run, garbage


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch, in_run: int) -> None:
    monkeypatch.setattr(exchanges, "WATCH_S", 0.0)


def _with(change: Any) -> Any:
    """A spoiler that rebuilds the frame with `change(frame)`."""

    def spoil(content: RecordDict) -> RecordDict:
        frame = wire.parse(frame_bytes(content), Limits.of(toy.LAYOUT))
        data = b"".join(wire.build(change(frame)))
        return RecordDict({ARRAYS: ArrayRecord({FRAME: Array(dtype="float32", shape=(3,), stype=STYPE, data=data)})})

    return spoil


def _values(frame: wire.Frame, factor: float) -> wire.Frame:
    x = np.frombuffer(frame.body, np.float32) * np.float32(factor)
    return replace(frame, body=x.astype(np.float32).tobytes())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (garbage, "a frame starts with"),
        (_with(lambda f: _values(f, np.nan)), "NaN or infinite"),
        (_with(lambda f: _values(f, 1e9)), "times as long as the typical one"),
        (_with(lambda f: _values(f, 1e38)), "NaN or infinite|times as long"),
        (_with(lambda f: replace(f, round=f.round - 1)), "is of round 1, this is round 2"),
        (_with(lambda f: replace(f, run_id=b"x" * 16)), "another run"),
        (_with(lambda f: replace(f, aux={**f.aux, Aux.EXAMPLES: 1e15})), "claims to be from 1e"),
        (_with(lambda f: replace(f, aux={**f.aux, Aux.EXAMPLES: -10.0})), "claims to be from -10 examples"),
        (_with(lambda f: replace(f, aux={**f.aux, Aux.LOSS: 1e308})), "claims a loss of 1e.308"),
        (_with(lambda f: replace(f, aux={**f.aux, Aux.LOSS: -1e30})), "claims a loss of -1e.30"),
        (_with(lambda f: replace(f, aux={**f.aux, Aux.LEARNING_RATE: 1e300})), "a learning rate of 1e.300"),
        (_with(lambda f: replace(f, aux={})), "how many examples"),
        (lambda content: RecordDict(), "array records"),
    ],
)
def test_a_bad_update_is_refused_with_the_reason_and_the_round_goes_on(spoil: Any, reason: str, sink: Memory) -> None:
    run = Run(sink, rounds=4)
    run.boards[2].spoil = {2: spoil}
    x = run.play()
    (text,) = sink.texts("refused")
    assert text.startswith("refused the update of board-2: ")
    assert re.search(reason, text), text
    used = [values["server/used"] for _, _, values in sink.records if "server/used" in values]
    assert used == [4, 4, 3, 4] and np.isfinite(x).all()
    assert np.abs(x - toy.fedavg(4, 4, run.initial)).max() < 0.5


@pytest.mark.parametrize("loss", [-1e25, 1e20])
@pytest.mark.parametrize("boards", [2, 4])
def test_a_claimed_loss_is_not_the_curve(loss: float, boards: int, sink: Memory) -> None:
    honest, run = (Run(s, boards=boards, rounds=4) for s in (Memory(), sink))
    run.boards[-1].spoil = dict.fromkeys(range(1, 4), _with(lambda f: replace(f, aux={**f.aux, Aux.LOSS: loss})))
    np.testing.assert_array_equal(run.play(), honest.play())
    told, right = ([v["train/loss"] for _, _, v in r.sink.records if "train/loss" in v] for r in (run, honest))
    assert told[0] == right[0] and told == pytest.approx(right, rel=0.5) and told != right


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"loss": -1e300}, "makes no sense"),
        ({"examples": 2**60}, "makes no sense"),
        ({"loss": -1e20}, "claims a loss of -1e.20, out of all proportion"),
        ({"loss": 1e20}, "claims a loss of 1e.20, out of all proportion"),
    ],
)
def test_an_evaluation_that_cannot_be_is_not_the_curve(changed: dict[str, Any], reason: str, sink: Memory) -> None:
    def lie(content: RecordDict) -> RecordDict:
        if protocol.EVALUATION not in content:
            return content
        record = content.metric_records[protocol.EVALUATION]
        return RecordDict({**content, protocol.EVALUATION: MetricRecord({**record, **changed})})

    run = Run(sink, rounds=6)
    run.boards[1].spoil = dict.fromkeys(range(6), lie)
    run.play()
    assert sink.evaluations() and all(0.0 < loss < 10.0 for loss in sink.evaluations().values())
    assert sink.texts("refused") and all(re.search(reason, text) for text in sink.texts("refused"))


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_no_board_takes_over_the_mean_by_the_examples_that_it_claims(strategy: str, sink: Memory) -> None:
    def lie(frame: wire.Frame) -> wire.Frame:
        return replace(_values(frame, -1.0), aux={**frame.aux, Aux.EXAMPLES: 1e12})

    honest, run = (Run(s, boards=6, rounds=12, server={"strategy": strategy}) for s in (Memory(), sink))
    run.boards[5].spoil = dict.fromkeys(range(12), _with(lie))
    right, told = honest.play() - honest.initial, run.play() - run.initial
    assert right @ told > 0.6 * np.linalg.norm(right) * np.linalg.norm(told)
    assert all("1e+12 examples, " in text and "as many as the typical one" in text for text in sink.texts("refused"))
    assert sink.texts("quarantine")


def test_two_boards_are_held_against_those_of_earlier_rounds_by_a_coordinator_that_goes_on(sink: Memory) -> None:
    lie = _with(lambda f: replace(f, aux={**f.aux, Aux.EXAMPLES: 1e6}))
    whole = Run(Memory(), boards=5, rounds=8, server={"fraction": 0.4})
    whole.play()
    run = Run(sink, boards=5, rounds=8, server={"fraction": 0.4})
    for board in run.boards:
        board.spoil = {4: lie}
    run.play(whole.saved[3])
    assert len(sink.texts("refused")) == 2


@pytest.mark.parametrize(
    "strategy", ["fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "fedtrimmedavg", "krum", "multikrum"]
)
@pytest.mark.parametrize("factor", [1e5, 1e25])
def test_no_strategy_sees_an_update_out_of_all_proportion(strategy: str, factor: float, sink: Memory) -> None:
    params = {"server_momentum": 0.5} if strategy == "fedavgm" else {}
    run = Run(sink, boards=5, rounds=6, server={"strategy": strategy, "strategy_params": params})
    run.boards[2].spoil = {3: _with(lambda f: _values(f, factor))}
    x = run.play()
    (text,) = sink.texts("refused")
    assert text.startswith("refused the update of board-2: ") and "times as long as the typical one" in text
    steps = [np.abs(b.model - a.model).max() for a, b in pairwise(run.saved)]
    assert min(steps) > 0.0 and max(steps) < 2.0 and np.isfinite(x).all()


@pytest.mark.parametrize(("boards", "factor", "fraction"), [(5, 90.0, 0.4), (6, 99.0, 1.0)])
def test_a_board_that_always_stays_below_the_ratio_does_not_blow_up_the_model(
    boards: int, factor: float, fraction: float, sink: Memory
) -> None:
    run = Run(sink, boards=boards, rounds=20, server={"fraction": fraction})
    run.boards[-1].spoil = dict.fromkeys(range(20), _with(lambda f: _values(f, factor)))
    run.play()
    assert max(float(np.linalg.norm(p.model)) for p in run.saved) < 1e4 and sink.texts("refused")


@pytest.mark.parametrize("loss", [1e30, 1e308, -1.0])
def test_a_wild_loss_leaves_the_levels_as_they_would_be(loss: float, sink: Memory) -> None:
    honest, run = (Run(s, rounds=6, codec={"name": "elasticl"}) for s in (Memory(), sink))
    run.boards[3].spoil = {2: _with(lambda f: replace(f, aux={**f.aux, Aux.LOSS: loss}))}
    honest.play()
    run.play()
    (text,) = sink.texts("refused")
    assert text.startswith(f"refused the update of board-3: the update claims a loss of {loss:g}")
    told, right = ([p.levels.levels for p in r.saved if p.levels is not None] for r in (run, honest))
    assert len(told) == 6 and max(abs(a - b) for a, b in zip(told, right, strict=True)) <= 10


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian"])
def test_of_two_boards_one_may_be_nearly_done(strategy: str, sink: Memory) -> None:
    run = Run(sink, boards=2, rounds=8, server={"strategy": strategy})
    run.boards[0].spoil = dict.fromkeys(range(8), _with(lambda f: _values(f, 1e-5)))
    run.boards[1].spoil = {5: _with(lambda f: _values(f, 1e5))}
    run.play()
    (text,) = sink.texts("refused")
    assert text.startswith("refused the update of board-1: ") and "times as long as the typical one of the run" in text
    again = Run(Memory(), boards=2, rounds=8, server={"strategy": strategy})
    again.boards[1].spoil = run.boards[1].spoil
    again.play(run.saved[4])  # the first round of a process that has seen no honest one
    assert len(again.sink.texts("refused")) == 1


def test_a_board_that_is_refused_again_and_again_is_left_out_and_comes_back(sink: Memory) -> None:
    run = Run(sink, rounds=12)
    run.boards[2].spoil = {1: garbage, 2: garbage, 5: garbage, 7: garbage}
    x = run.play()
    assert run.boards[2].trained == [0, 1, 2, 5, 10, 11] and run.boards[0].trained == list(range(12))
    (first, second), returned = sink.texts("quarantine"), sink.texts("readmitted")
    assert first.startswith("board-2 is left out for 2 rounds: ") and "a frame starts with" in first
    assert second.startswith("board-2 is left out for 4 rounds: ") and returned == ["board-2 takes part again"] * 2
    assert np.isfinite(x).all()


def test_nobody_is_said_to_be_left_out_who_is_asked_since_too_few_others_are_there(sink: Memory) -> None:
    run = Run(sink, boards=2, rounds=20, server={"min_nodes": 2})
    run.boards[1].spoil = dict.fromkeys(range(1, 20), garbage)
    run.play()
    assert run.boards[1].trained == list(range(20)) and len(sink.texts("refused")) == 19
    assert not sink.texts("quarantine") and not sink.texts("readmitted")


def test_a_board_that_is_left_out_takes_part_again_where_it_is_needed(sink: Memory) -> None:
    trust = Trust(sink)
    three, two = {0: "a", 1: "b", 2: "c"}, {0: "a", 2: "c"}
    for round in range(2):
        assert trust.trusted(three, round, 2) == three
        trust.refused("a", "x")
        trust.judge(round, ["b", "c"])
    assert trust.trusted(three, 2, 2) == {1: "b", 2: "c"} and trust.trusted(three, 2, 2) == {1: "b", 2: "c"}
    assert trust.trusted(two, 3, 2) == two
    trust.refused("a", "x")
    trust.judge(3, ["c"])
    assert trust.trusted(three, 4, 2) == {1: "b", 2: "c"}
    assert [name for _, name, _, _ in sink.events if name != "refused"] == ["quarantine", "readmitted", "quarantine"]
    assert all("left out for 2 rounds" in text for text in sink.texts("quarantine"))
