"""The coordinator's rounds over boards in this process: what they compute, and what they do about bad, late and absent boards."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from edgegossip import codecs
from edgegossip import frame as wire
from edgegossip import recipe as recipes
from edgegossip.flower import exchange as exchanges
from edgegossip.flower import protocol
from edgegossip.flower.exchange import Exchange
from edgegossip.flower.payload import ARRAYS, FRAME, STYPE, frame_bytes
from edgegossip.flower.plan import Plan
from edgegossip.flower.progress import Progress
from edgegossip.flower.roster import Roster
from edgegossip.flower.rounds import Rounds
from edgegossip.flower.trust import Trust
from edgegossip.frame import Aux, Limits
from edgegossip.study.measure import Recorder
from edgegossip.study.server import VirtualServer
from edgegossip.types import Metrics, RunError, Vec
from tests.flower import toy
from tests.flower.conftest import Memory
from tests.flower.fake_link import FakeBoard, FakeLink

RUN_ID = b"r" * 16


class Run:
    """A coordinator's rounds and `boards` fake boards; keyword arguments are recipe sections."""

    def __init__(self, sink: Memory, boards: int = 4, rounds: int = 6, **sections: Any) -> None:
        run = {"mode": "server", "rounds": rounds, "nodes": boards}
        self.recipe = recipes.from_dict({"run": run, **sections})
        self.sink, self.saved = sink, list[Progress]()
        server, codec = self.recipe.server, self.recipe.codec
        self.codec = codecs.get(codec.name, **codec.params)
        self.downlink = codecs.get(server.downlink, **server.downlink_params)
        self.boards = [FakeBoard(f"board-{k}", toy.Toy(k), self.codec, self.downlink) for k in range(boards)]
        self.initial = toy.Toy(0).initial(1)
        self.return_s = 0.0

    def play(self, start: Progress | None = None, **plan: Any) -> Vec:
        made = Plan(self.recipe, toy.LAYOUT, RUN_ID, self.codec, **plan)
        down = self.downlink
        hello = protocol.Hello(
            RUN_ID,
            toy.LAYOUT.hash,
            "c",
            self.codec.wire_id,
            self.codec.wire_params(),
            9,
            down.wire_id,
            down.wire_params(),
        )
        names = [b.name for b in self.boards]
        least = self.recipe.server.min_nodes
        exchange = Exchange(
            FakeLink(self.boards),
            Roster(names),
            hello,
            least,
            self.sink,
            threading.Event(),
            return_s=self.return_s,
            deadline_s=self.recipe.server.deadline_s,
        )
        exchange.gather(self.recipe.server.join_s or 1.0)
        rounds = Rounds(made, exchange, self.sink, self.saved.append, trained=self._trained)
        return rounds.run(self.initial, start)

    def _trained(self, x: Vec) -> None:
        self.model, self.evaluated_before = x, set(self.sink.evaluations())


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
    run.boards[2].spoil = {5: _garbage}
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


def _garbage(content: RecordDict) -> RecordDict:
    record = ArrayRecord({FRAME: Array(dtype="float32", shape=(3,), stype=STYPE, data=b"garbage")})
    return RecordDict({ARRAYS: record})


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
        (_garbage, "a frame starts with"),
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
    run.boards[2].spoil = {1: _garbage, 2: _garbage, 5: _garbage, 7: _garbage}
    x = run.play()
    assert run.boards[2].trained == [0, 1, 2, 5, 10, 11] and run.boards[0].trained == list(range(12))
    (first, second), returned = sink.texts("quarantine"), sink.texts("readmitted")
    assert first.startswith("board-2 is left out for 2 rounds: ") and "a frame starts with" in first
    assert second.startswith("board-2 is left out for 4 rounds: ") and returned == ["board-2 takes part again"] * 2
    assert np.isfinite(x).all()


def test_nobody_is_said_to_be_left_out_who_is_asked_since_too_few_others_are_there(sink: Memory) -> None:
    run = Run(sink, boards=2, rounds=20, server={"min_nodes": 2})
    run.boards[1].spoil = dict.fromkeys(range(1, 20), _garbage)
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


def test_a_round_goes_on_at_its_quorum_and_names_the_stragglers(sink: Memory) -> None:
    run = Run(sink, rounds=5, server={"quorum": 3}, evaluation={"every": 5})
    run.boards[0].late = frozenset({1, 3})
    run.play()
    assert sink.texts("stragglers") == [
        "round 1: went on with 3 answers, without board-0",
        "round 3: went on with 3 answers, without board-0",
    ]
    assert run.boards[0].trained == [0, 1, 3] or run.boards[0].trained == [0, 1, 2, 3, 4]
    assert len(sink.texts("late")) >= 1 and len(run.saved) == 5


def test_a_board_that_comes_late_takes_part_from_then_on(sink: Memory) -> None:
    run = Run(sink, rounds=60, server={"join_s": 0.1, "downlink": "fp16"}, evaluation={"every": 60})
    run.boards[3].absent = 40
    run.play()
    assert "lost board-3: it did not join within 0.1 s" in sink.texts("peer-down")
    assert "board-3 joined" in sink.texts("joined")
    assert 0 < len(run.boards[3].trained) < 60 and run.boards[3].trained[-1] == 59
    assert run.boards[3].received_bytes[0] > run.boards[0].received_bytes[-1]  # the whole model first


def test_a_round_with_an_evaluation_ends_at_its_quorum_and_takes_what_a_late_answer_found(sink: Memory) -> None:
    run = Run(sink, rounds=6, server={"quorum": 3}, evaluation={"every": 1})
    run.boards[0].late = frozenset({1})  # the first evaluation is its
    run.play()
    assert sink.texts("stragglers") == ["round 1: went on with 3 answers, without board-0"]
    assert sink.evaluations().keys() == set(range(6)) and not sink.texts("not-evaluated")


def test_a_round_with_an_evaluation_ends_at_its_deadline_and_another_board_evaluates(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=24, server={"deadline_s": 0.1}, evaluation={"every": 12})
    for board in run.boards:
        board.workload = toy.Toy(0, delay_s=0.01)
    run.boards[0].lost = frozenset({12})
    run.play()
    assert sink.texts("suspect") == ["round 12: went on without board-0: no answer for 0.1 s"]
    (refused,) = sink.texts("refused")
    assert refused.startswith("round 12: gave up on board-0: it is alive")
    assert not sink.texts("not-evaluated") and len(sink.evaluations()) == 2
    assert 11 < min(sink.evaluations()) < 23 == max(sink.evaluations())
    assert run.boards[0].trained[-1] == 23 and len(run.boards[0].trained) < 24  # it is asked again


def test_an_evaluation_that_nobody_does_is_named_and_the_run_goes_on(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 1)
    run = Run(sink, rounds=30, server={"deadline_s": 0.1}, evaluation={"every": 15})
    for board in run.boards:
        board.workload, board.deaf = toy.Toy(0, delay_s=0.01), True
    run.play()
    first, last = sink.texts("not-evaluated")
    assert first.startswith("the model after round") and first.count("board-") == 2 and last.count("board-") == 4
    assert len(run.saved) == 30 and not sink.evaluations()


def test_the_final_model_is_handed_over_before_it_is_evaluated_by_whoever_answers(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=3, server={"deadline_s": 0.1}, evaluation={"every": 3})
    for board in run.boards[:3]:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    assert not run.evaluated_before and sink.evaluations().keys() == {2}
    assert len(sink.texts("suspect")) == 3


def test_a_final_evaluation_that_nobody_can_do_loses_no_run(sink: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=3, server={"deadline_s": 0.1}, evaluation={"every": 3})
    for board in run.boards:
        board.deaf = True
    x = run.play()
    np.testing.assert_array_equal(run.model, x)
    assert x is not run.initial and not sink.evaluations()
    (text,) = sink.texts("not-evaluated")
    assert text.startswith("the model after round 2 is not evaluated (")
    assert all(f"{b.name}: no answer for 0.2 s" in text for b in run.boards)


def test_a_board_whose_answer_was_lost_is_asked_again_after_a_while(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, rounds=40, server={"quorum": 3}, evaluation={"every": 40})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards:
        board.workload = toy.Toy(0, delay_s=0.005)
    run.boards[2].lost = frozenset({5})
    run.play()
    (refused,) = sink.texts("refused")
    assert refused.startswith("round 5: gave up on board-2: ")
    assert run.boards[2].trained[:6] == list(range(6)) and run.boards[2].trained[-1] == 39


def test_a_share_of_the_boards_takes_part(sink: Memory) -> None:
    run = Run(sink, rounds=12, server={"fraction": 0.5}, evaluation={"every": 12})
    run.play()
    assert all(0 < len(b.trained) < 12 for b in run.boards)
    assert sum(len(b.trained) for b in run.boards) == 24


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


def test_rounds_without_a_usable_update_end_the_run(sink: Memory) -> None:
    run = Run(sink, boards=2, rounds=9)
    for board in run.boards:
        board.spoil = dict.fromkeys(range(1, 9), _garbage)
    with pytest.raises(RunError, match="no usable update for 3 rounds; the last reason: board-1: "):
        run.play()


def test_a_strategy_that_lacks_answers_says_of_what(sink: Memory) -> None:
    params = {"num_malicious_nodes": 1}
    run = Run(sink, boards=4, rounds=9, server={"strategy": "bulyan", "strategy_params": params})
    with pytest.raises(RunError, match=r"no usable update for 3 rounds; bulyan needs 4\*1 \+ 3 = 7 answers, got 4$"):
        run.play()
    assert sink.texts("refused")[0] == "round 0 changes nothing: bulyan needs 4*1 + 3 = 7 answers, got 4"
    assert not sink.texts("quarantine")


@pytest.mark.parametrize("times", [1.5, 2.5])
def test_boards_slower_than_the_deadline_train_all_the_same(times: float, sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=4, server={"min_nodes": 2}, evaluation={"every": 4})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards:
        board.takes_s = 0.1 * times
    x = run.play()
    exact = Run(Memory(), boards=3, rounds=4, evaluation={"every": 4}).play()
    np.testing.assert_array_equal(x, exact)  # everybody's update was used
    said = [text for text in sink.texts("waiting") if text.startswith("round 0: nobody has answered for 0.1 s")]
    assert len(said) == 1 and "server.deadline_s = 0.1 is too short" in said[0]
    assert not sink.texts("suspect") and not sink.texts("refused")


def test_who_follows_the_first_late_answer_has_one_more_deadline(sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=1, evaluation={"every": 1})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.2))
    for board, takes_s in zip(run.boards, (0.3, 0.35, 1.2), strict=True):
        board.takes_s = takes_s
    run.play()
    assert [values["server/used"] for _, _, values in sink.records if "server/used" in values] == [2]
    (text,) = sink.texts("suspect")
    waited = re.fullmatch(r"round 0: went on without board-2: no answer for (0\.\d+) s", text)
    # From the first answer on; boards begin their 0.3 s a little before or after the coordinator's watch.
    assert waited is not None and 0.2 + 0.2 + 0.05 < float(waited[1]) < 1.2 - 0.2, text


def test_boards_that_are_needed_are_waited_for_longer_than_the_deadline(sink: Memory) -> None:
    run = Run(sink, boards=3, rounds=4, server={"min_nodes": 2}, evaluation={"every": 4})
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.1))
    for board in run.boards[1:]:
        board.takes_s = 0.35
    run.play()
    assert len(run.saved) == 4 and sink.texts("late") and not sink.texts("refused")


def test_boards_that_never_answer_end_the_run_with_the_key_to_raise(
    sink: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "DEADLINES", 2)
    run = Run(sink, boards=2, rounds=9)
    run.recipe = replace(run.recipe, server=replace(run.recipe.server, deadline_s=0.05))
    for board in run.boards:
        board.lost = frozenset(range(9))
    with pytest.raises(RunError, match=r"server\.deadline_s = 0\.05 is too short") as raised:
        run.play()
    assert "training.lr" not in str(raised.value) and "board-0, board-1" in str(raised.value)
