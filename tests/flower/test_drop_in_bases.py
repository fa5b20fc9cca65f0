"""Each answer is opened with what its client was sent, and counts as stock Flower counts it:
models of groups, late answers, differences, answers that were lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

from edgegossip import codecs
from edgegossip.flower import compression_mod
from edgegossip.flower.combine import BoardGrid
from edgegossip.flower.messages import FRAME
from edgegossip.flower.mod import STRATEGIES
from tests.flower.fleet import CONFIG, NODES, Contexts, Fleet, plus_one, replied

CODECS = ["fp32", "minmax8", "co3"]


def _record(value: float, size: int = 60) -> ArrayRecord:
    w = np.linspace(-1, 1, size).astype(np.float32)
    return ArrayRecord({"w": Array(w + np.float32(value)), "n": Array(np.asarray(7))})


def _halfway(message: Message, context: Context) -> Message:
    """Clients of the first model come nearer to 1, those of the second answer what they got."""
    w, to = message.content["arrays"]["w"].numpy(), message.content["config"].get("to")
    return replied(message, {"w": Array(w if to is None else (w + (np.float32(to) - w) / 2).astype(np.float32))})


@pytest.mark.parametrize("pair", [("co3", None), ("co3", "4-bit-elastiquant"), ("fp32", "8-bit-elastiquant")])
def test_two_strategies_of_one_run_do_not_mix_their_models_and_memories(
    pair: tuple[str, str | None], in_run: int
) -> None:
    fleets = [Fleet(FedAvg(**CONFIG), pair[0], _halfway, pair[1]) for _ in range(2)]
    fleets[1].contexts = fleets[0].contexts
    start = np.random.default_rng(0).normal(-5, 3, 200).astype(np.float32)
    models = [ArrayRecord({"w": Array(x)}) for x in (start, start - 100)]
    for number in range(1, 9):
        for k, to in enumerate(({"to": 1.0}, {})):
            fleet = fleets[k]
            asked = fleet.strategy.configure_train(number, models[k], ConfigRecord(to), BoardGrid(NODES))
            found, _ = fleet.strategy.aggregate_train(number, fleet.answer(asked))
            assert found is not None
            models[k] = found
    assert not any(fleet.failed or fleet.refused for fleet in fleets)
    assert np.abs(models[0]["w"].numpy() - 1).max() < 2
    np.testing.assert_array_equal(models[1]["w"].numpy(), start - 100)


def test_a_client_remembers_the_last_few_strategies(in_run: int) -> None:
    contexts = Contexts()
    for _ in range(9):
        fleet = Fleet(FedAvg(**CONFIG), "co3", downlink="8-bit-elastiquant")
        fleet.contexts = contexts
        fleet.train(1, _record(0))
    assert {len(c.state) for c in contexts.values()} == {2 * STRATEGIES}


@pytest.mark.parametrize("theirs", [None, "8-bit-elastiquant"])
def test_a_client_with_another_downlink_is_told_of_in_one_sentence(
    theirs: str | None, in_run: int, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(FedAvg(**CONFIG), "co3", downlink="4-bit-elastiquant")
    fleet.mod = compression_mod(codecs.get("co3"), downlink=None if theirs is None else codecs.get(theirs))
    with caplog.at_level(logging.WARNING):
        model = fleet.train(1, _record(-1))  # comes whole
        for number in (2, 3):
            fleet.strategy.aggregate_train(number, fleet.answer(fleet.ask("train", number, model)))
    assert [r.message.partition("; ")[2] for r in caplog.records if r.name == "edgegossip.flower"] == [
        "compressed and compression_mod need the same codec and the same downlink, at the server and in every client"
    ]


class Parts(FedAvg):
    """Has clients train some arrays of the model a round, which it takes the mean of."""

    def __init__(self, *turns: str) -> None:
        super().__init__(**CONFIG)
        self.turns, self.model = turns, ArrayRecord()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        self.model, config["parts"] = arrays, self.turns[server_round % len(self.turns)]
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        answers = [r.content["arrays"] for r in replies if r.has_content()]
        new = {k: Array(np.mean([a[k].numpy() for a in answers], axis=0)) for k in answers[0]}
        return ArrayRecord({**self.model, **new}), None


def _trains_parts(message: Message, context: Context) -> Message:
    step = np.random.default_rng(9).normal(size=400).astype(np.float32) ** 3
    record, parts = message.content["arrays"], str(message.content["config"]["parts"])
    return replied(message, {k: Array(record[k].numpy() + step) for k in parts})


@pytest.mark.parametrize("codec", ["co3", pytest.param("dgc", marks=pytest.mark.slow), "powersgd"])
def test_what_is_owed_of_arrays_that_are_not_answered_waits_for_them(codec: str, in_run: int) -> None:
    found = []
    for turns in (("vw",), ("v", "w")):
        fleet = Fleet(Parts(*turns), codec, _trains_parts)
        model = ArrayRecord({k: Array(np.full(400, -0.1, np.float32)) for k in "vw"})
        for number in range(1, 1 + 8 * len(turns)):
            model = fleet.train(number, model)
        found.append(model)
    for k in "vw":
        np.testing.assert_allclose(found[1][k].numpy(), found[0][k].numpy(), rtol=1e-4, atol=1e-4)


class Twice(FedAvg):
    """Asks each client twice a round."""

    def configure_train(self, *args: Any) -> Any:
        return [m for _ in range(2) for m in super(Twice, self).configure_train(*args)]


@pytest.mark.parametrize("which", [0, -1])
def test_each_of_two_answers_of_a_client_is_judged(which: int, in_run: int) -> None:
    fleet = Fleet(Twice(**CONFIG), "fp32")
    replies = fleet.answer(fleet.ask("train", 1, _record(0)))
    own = [r for r in replies if r.metadata.src_node_id == 1]
    own[which].content["metrics"] = MetricRecord({"num-examples": 10**9})
    fleet.strategy.aggregate_train(1, replies)
    assert {node for node, _ in fleet.refused} == {1}


class Groups(FedAvg):
    """Sends every second client another model, under another name where it is asked to, and keeps
    what came of it."""

    def __init__(self, other: ArrayRecord, before: bool = False) -> None:
        super().__init__(**{**CONFIG, "fraction_evaluate": 1.0})
        self.other, self.before = other, before
        self.seen: dict[int, dict[str, np.ndarray[Any, Any]]] = {}

    def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> list[Message]:
        messages = list(super().configure_train(server_round, arrays, *rest))
        for message in messages:
            content = dict(message.content)
            if message.metadata.dst_node_id % 2:
                content["arrays"] = self.other
            elsewhere = {
                "control": ArrayRecord({k: Array(np.zeros(a.shape, a.dtype)) for k, a in content["arrays"].items()})
            }
            message.content = RecordDict({**(elsewhere if self.before else {}), **content})
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        for reply in replies:
            if reply.has_content():
                records = reply.content.array_records.values()
                self.seen[reply.metadata.src_node_id] = {k: a.numpy() for r in records for k, a in r.items()}
        return None, None


@pytest.mark.parametrize(
    ("codec", "downlink", "before", "size"),  # the size of the other model
    [
        ("fp32", None, False, 90),
        ("fp32", "8-bit-elastiquant", True, 60),
        ("minmax8", None, True, 90),
        ("minmax8", "8-bit-elastiquant", False, 60),
        ("co3", None, True, 60),
        ("co3", "8-bit-elastiquant", False, 90),
    ],
)
def test_models_of_groups_come_back_as_they_were_sent(
    codec: str, downlink: str | None, before: bool, size: int, in_run: int
) -> None:
    seen = []
    for name in (None, codec):
        strategy = Groups(_record(50, size), before)
        fleet = Fleet(strategy, name, downlink=None if name is None else downlink)
        for number in (1, 2):
            fleet.strategy.aggregate_train(number, fleet.answer(fleet.ask("train", number, _record(0))))
        assert not fleet.refused and not fleet.failed
        seen.append(strategy.seen)
    for node, arrays in seen[0].items():
        assert seen[1][node].keys() == arrays.keys() == {"w", "n"}
        np.testing.assert_allclose(seen[1][node]["w"], arrays["w"], atol=0 if codec == "fp32" and not downlink else 0.6)
        assert abs(float(arrays["w"].mean()) - float(seen[1][node]["w"].mean())) < 0.1


@pytest.mark.parametrize("codec", CODECS)
def test_an_answer_to_the_round_before_counts_as_what_it_was_trained_from(codec: str, in_run: int) -> None:
    """As strategies that wait for the fastest clients take it."""
    found = []
    for name in (None, codec):
        fleet = Fleet(FedAvg(**CONFIG), name)
        first = fleet.answer(fleet.ask("train", 1, _record(0)))
        second = fleet.answer(fleet.ask("train", 2, _record(10)))
        arrays, _ = fleet.strategy.aggregate_train(2, [first[0], *second[1:]])
        assert arrays is not None and not fleet.refused
        found.append(arrays["w"].numpy())
        fleet.ask("train", 3, _record(20))
        fleet.ask("train", 4, _record(20))
        if name is not None:
            fleet.strategy.aggregate_train(4, [first[1]])
            assert fleet.refused == [(2, "the answer is to no message of this round or the one before")]
    np.testing.assert_allclose(found[1], found[0], atol=0 if codec == "fp32" else 0.05)


def test_an_answer_to_somebody_elses_message_is_refused(in_run: int) -> None:
    fleet = Fleet(FedAvg(**CONFIG), "fp32")
    messages = fleet.ask("train", 1, _record(0))
    replies = fleet.answer(messages)
    replies[0].content["edgegossip"] = replies[1].content["edgegossip"]
    fleet.strategy.aggregate_train(1, replies)
    assert [node for node, _ in fleet.refused] == [1]


class Adding(FedAvg):
    """Adds to the model what its clients answer."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> Any:
        self.x = arrays
        return super().configure_train(server_round, arrays, *rest)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return ArrayRecord({k: Array(np.asarray(a.numpy() + self.x[k].numpy())) for k, a in arrays.items()}), metrics


@pytest.mark.parametrize("codec", ["minmax8", "co3"])
def test_differences_are_coded_as_such(codec: str, in_run: int) -> None:
    """And not as a change of minus the model, beside which they are nothing."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=400).astype(np.float32)

    def app(message: Message, context: Context) -> Message:
        x = message.content["arrays"]["w"].numpy()
        return replied(message, {"w": Array(np.float32(0.2) * (true - x))})

    fleet = Fleet(Adding(**CONFIG), codec, app)
    arrays = ArrayRecord({"w": Array(rng.normal(size=400).astype(np.float32))})
    for number in range(1, 21):
        arrays = fleet.train(number, arrays)
    assert np.linalg.norm(arrays["w"].numpy() - true) < 0.05 * np.linalg.norm(true)


@pytest.mark.parametrize("codec", ["fp32", "co3"])
def test_who_did_not_answer_gets_the_next_model_whole(codec: str, in_run: int) -> None:
    """It may have read what it was sent, or not."""
    fleet = Fleet(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), codec, downlink="8-bit-elastiquant")
    arrays = fleet.train(1, _record(0))
    fleet.app = lambda message, context: Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}), reply_to=message
    )
    replies = fleet.answer(fleet.ask("evaluate", 1, arrays))
    fleet.strategy.aggregate_evaluate(1, [replies[0], *replies[2:]])
    fleet.app = plus_one
    messages = fleet.ask("train", 2, arrays)
    assert [FRAME in m.content["arrays"] for m in messages] == [False, True, False, False]
    fleet.strategy.aggregate_train(2, fleet.answer(messages))
    assert not fleet.failed and not fleet.refused


def test_errors_in_another_nodes_name_cost_nobody_a_round(in_run: int) -> None:
    """Flower's mod for local privacy answers an evaluation so: there are no arrays in it."""
    fleet = Fleet(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), "co3", downlink="8-bit-elastiquant")
    mod, privacy = (
        compression_mod(codecs.get("co3"), downlink=codecs.get("8-bit-elastiquant")),
        LocalDpMod(5, 0.1, 10, 0.1),
    )

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            record = message.content["arrays"]
            return replied(message, {"w": Array(record["w"].numpy() + np.float32(1))})
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}), reply_to=message)

    fleet.mod = lambda message, context, call: mod(message, context, lambda m, c: privacy(m, c, call))  # type: ignore[assignment]
    fleet.app, arrays = app, ArrayRecord({"w": _record(0)["w"]})
    for number in (1, 2):
        arrays = fleet.train(number, arrays)
        replies = fleet.answer(fleet.ask("evaluate", number, arrays))
        assert {reply.metadata.src_node_id for reply in replies} != set(NODES)
        fleet.strategy.aggregate_evaluate(number, replies)
    assert not fleet.failed and not fleet.refused


@pytest.mark.parametrize("codec", CODECS)
def test_clients_answer_more_arrays_fewer_or_none(codec: str, in_run: int) -> None:
    """Whatever they answer is what the next round begins with, as without compression."""

    def app(message: Message, context: Context) -> Message:
        record, number = dict(message.content["arrays"]), message.content["config"]["server-round"]
        record["w"] = Array(record["w"].numpy() + np.float32(0.5))
        if number == 1:
            record["norms"] = Array(np.arange(-3, 3, dtype=np.float32))
        return replied(message, {k: a for k, a in record.items() if number < 3 or k == "norms"})

    found = []
    for name in (None, codec):
        fleet, arrays = Fleet(FedAvg(**CONFIG), name, app), _record(0)
        names = []
        for number in (1, 2, 3):
            arrays = fleet.train(number, arrays)
            names.append(list(arrays))
        assert names == [["w", "n", "norms"], ["w", "n", "norms"], ["norms"]]
        assert not fleet.failed and not fleet.refused
        found.append(arrays["norms"].numpy())
    np.testing.assert_allclose(found[1], found[0], atol=0 if codec == "fp32" else 0.05)


@pytest.mark.parametrize(
    ("codec", "answer", "name"),
    [
        ("fp32", np.asarray(7.5), "model"),
        ("minmax8", np.asarray(9, np.int32), "arrays"),
        ("co3", np.asarray(9, np.int32), "model"),
        ("co3", np.asarray(7), "arrays"),
    ],
)
def test_types_and_names_are_those_that_clients_answer(codec: str, answer: Any, name: str, in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        record = {"w": Array(message.content["arrays"]["w"].numpy()[::-1].copy()), "n": Array(answer)}
        return replied(message, record, name)

    strategy = Groups(_record(50))
    fleet = Fleet(strategy, codec, app)
    fleet.strategy.aggregate_train(1, fleet.answer(fleet.ask("train", 1, _record(0))))
    assert not fleet.refused and not fleet.failed
    for arrays in strategy.seen.values():
        assert arrays["n"] == answer and arrays["n"].dtype == answer.dtype


class Own(FedAvg):
    """Counts what it gets, whatever is in it."""

    got = 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.got += sum(reply.has_content() for reply in replies)
        return None, None


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"metrics": MetricRecord({"loss": float("nan")})},
        {"a": ArrayRecord({"x": Array(np.ones(3))}), "b": ArrayRecord({"y": Array(np.ones(2, np.int8))})},
        {"arrays": ArrayRecord({"w": Array(np.ones(60, np.float32))})},
        {"metrics": MetricRecord({"a": 1}), "other": MetricRecord({"a": [1.0]}), "config": ConfigRecord({"s": "x"})},
    ],
)
def test_a_strategy_of_ones_own_gets_what_its_clients_answer(content: dict[str, Any], in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        one = message.metadata.dst_node_id == 1
        return plus_one(message, context) if one else Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    fleet = Fleet(Own(**CONFIG), "co3", app)
    fleet.strategy.aggregate_train(1, fleet.answer(fleet.ask("train", 1, _record(0))))
    assert fleet.strategy.got == len(NODES) and not fleet.refused and not fleet.failed  # type: ignore[attr-defined]


def test_a_client_without_the_mod_is_told_of(in_run: int, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(FedAvg(**CONFIG), "co3")
    fleet.mod = None
    with caplog.at_level(logging.WARNING, "edgegossip.flower"):
        for number in (1, 2):
            fleet.strategy.aggregate_train(number, fleet.answer(fleet.ask("train", number, _record(0))))
    told = [
        r.getMessage() for r in caplog.records if "ClientApp(mods=[compression_mod(codec, ...), ...])" in r.getMessage()
    ]
    assert len(told) == 1 and "KeyError" in told[0]
    fleet.app = lambda message, context: replied(message, _record(1))
    fleet.strategy.aggregate_train(3, fleet.answer(fleet.ask("train", 3, _record(0))))
    assert len(fleet.refused) == len(NODES) and "its app needs the mod" in fleet.refused[0][1]


def test_a_mod_in_training_alone_is_told_of(in_run: int, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), "co3")
    arrays = fleet.train(1, _record(0))
    fleet.mod = None
    with caplog.at_level(logging.WARNING, "edgegossip.flower"):
        for number in (1, 2):
            fleet.strategy.aggregate_evaluate(number, fleet.answer(fleet.ask("evaluate", number, arrays)))
    told = [r.getMessage() for r in caplog.records if "in training and evaluation" in r.getMessage()]
    assert len(told) == 1 and "KeyError" in told[0]


def test_a_server_without_compressed_is_told_of_once(in_run: int, caplog: pytest.LogCaptureFixture) -> None:
    fleet, mod = Fleet(FedAvg(**CONFIG), None), compression_mod(codecs.get("co3"))
    with caplog.at_level(logging.WARNING, "edgegossip.flower"):
        for message in fleet.ask("train", 1, _record(0)):
            mod(message, fleet.contexts[1], plus_one)
    assert [r.getMessage() for r in caplog.records if r.name == "edgegossip.flower"] == [
        "the server sends arrays uncompressed: wrap its strategy, strategy = compressed(strategy, codec, ...)"
    ]
