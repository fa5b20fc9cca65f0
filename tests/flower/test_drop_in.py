"""`compressed` and `compression_mod` around Flower's own strategies, without a network: what the
strategy sees is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum

from edgegossip import codecs
from edgegossip.flower import compressed, compression_mod
from edgegossip.flower.combine import BoardGrid
from edgegossip.flower.messages import FRAME, STYPE
from edgegossip.flower.records import META, RecordLayout
from tests.flower.fleet import CONFIG, Contexts, Fleet

BOARDS = 5


def _arrays() -> ArrayRecord:
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {
            "conv.weight": Array(rng.normal(size=(4, 3, 3)).astype(np.float32)),
            "bn.num_batches_tracked": Array(np.asarray(7, np.int64)),
            "bias": Array(rng.normal(size=(4,)).astype(np.float32)),
        }
    )


def _app(message: Message, context: Context) -> Message:
    """A user's client app: knows nothing of compression."""
    del context
    k = message.metadata.dst_node_id
    rng = np.random.default_rng(k)
    new = {}
    for name, array in message.content["arrays"].items():
        value = array.numpy()
        noise = rng.normal(size=value.shape)
        new[name] = Array(value if name.startswith("bn") else (value + 0.1 * noise).astype(value.dtype))
    metrics = MetricRecord({"num-examples": 10 * k, "loss": 1.0 / k})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)


def test_what_travels_is_frames_and_what_the_app_sees_is_not(in_run: int) -> None:
    strategy = compressed(FedAvg(**CONFIG), codecs.get("fp16"))
    mod = compression_mod(codecs.get("fp16"))
    (message,) = strategy.configure_train(1, _arrays(), ConfigRecord({"lr": 0.5}), BoardGrid([3]))
    assert message.content["arrays"][FRAME].stype == STYPE
    assert set(message.content["arrays"]) == {FRAME, "bn.num_batches_tracked"}
    down_bytes = len(message.content["arrays"][FRAME].data)
    seen: list[Message] = []

    def app(inner: Message, context: Context) -> Message:
        seen.append(inner)
        return _app(inner, context)

    reply = mod(message, Contexts()[0], app)
    assert set(seen[0].content) == {"arrays", "config"}
    assert seen[0].content["config"]["lr"] == 0.5
    np.testing.assert_array_equal(seen[0].content["arrays"]["bias"].numpy(), _arrays()["bias"].numpy())
    assert set(reply.content["arrays"]) == {FRAME, "bn.num_batches_tracked"}
    assert len(reply.content["arrays"][FRAME].data) < down_bytes


def test_description_of_a_record_survives_json_and_bad_ones_are_refused() -> None:
    from edgegossip.types import DecodeError

    record = RecordLayout.of(_arrays())
    assert RecordLayout.from_json(record.to_json()) == record
    tail = ',"float32",true]'
    rows = ('["a"]', f'["a",[-1]{tail}', f'["a",["1"]{tail}', f"[1,[1]{tail}", f'["a",[1]{tail},["a",[1e9]{tail}')
    assert RecordLayout.from_json(f'[["a",[1]{tail}]')
    for text in ("", "[]", "{}", '[["a",[1],"float32",1]]', *(f"[{row}]" for row in rows)):
        with pytest.raises(DecodeError):
            RecordLayout.from_json(text)


@pytest.mark.parametrize("key", ["layout", "run-id", "record", "number", "message", "exact", "strategy"])
def test_a_message_that_does_not_describe_the_model_is_refused(key: str, in_run: int) -> None:
    from edgegossip.types import DecodeError

    strategy, mod = compressed(FedAvg(**CONFIG), codecs.get("fp16")), compression_mod(codecs.get("fp16"))
    (message,) = strategy.configure_train(1, _arrays(), ConfigRecord(), BoardGrid([3]))
    of_model = message.content.config_records[META]
    for wrong in (0.5, "no such record") if key == "record" else (0.5,):
        of_model[key] = wrong
        with pytest.raises(DecodeError, match="does not describe the model"):
            mod(message, Contexts()[0], _app)


@pytest.mark.parametrize("make", [FedAvg, FedMedian])
def test_differences_go_down_and_memories_live_in_the_context(make: Any, in_run: int) -> None:
    fleet, arrays = Fleet(make(**CONFIG), "co3", _app, "8-bit-elastiquant", nodes=range(1, BOARDS + 1)), _arrays()
    for number in range(1, 5):
        arrays = fleet.train(number, arrays)
    assert fleet.strategy.traffic.ratio > 1.0  # type: ignore[attr-defined]
    states = [record for c in fleet.contexts.values() for record in c.state.config_records.values()]
    assert [s["sent"] for s in states] == [4] * BOARDS and {s["number"] for s in states} == {3}
    held = [len(s["model"]) for s in states]
    assert held == [4 * 40] * BOARDS


def test_a_client_that_lost_its_context_gets_the_whole_model(in_run: int) -> None:
    fleet, arrays = Fleet(FedAvg(**CONFIG), "fp32", _app, "fp16", nodes=[1, 2, 3]), _arrays()
    for number in range(1, 5):
        if number == 3:
            del fleet.contexts[2]
        messages = fleet.ask("train", number, arrays)
        sizes = {m.metadata.dst_node_id: len(m.content["arrays"][FRAME].data) for m in messages}
        whole = number == 1
        assert (sizes[1] > 200) == whole and (sizes[2] > 200) == (whole or number == 4), (number, sizes)
        arrays = fleet.trained(number, messages)
    ((node, why),) = fleet.failed
    assert node == 2 and "this board has none" in why


def watched(seen: list[np.ndarray[Any, Any]]) -> Callable[[Message, Context], Message]:
    """An app that trains and evaluates, and the biases that it was sent."""

    def app(message: Message, context: Context) -> Message:
        seen.append(message.content["arrays"]["bias"].numpy())
        if message.metadata.message_type == "train":
            return _app(message, context)
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_a_model_that_was_evaluated_does_not_travel_again(in_run: int) -> None:
    seen: list[np.ndarray[Any, Any]] = []
    fleet = Fleet(FedAvg(**{**CONFIG, "fraction_evaluate": 1.0}), "fp32", watched(seen), "fp16", nodes=[1, 2])
    arrays = _arrays()
    for number in (1, 2):
        messages = fleet.ask("train", number, arrays)
        assert [FRAME in m.content["arrays"] for m in messages] == [number == 1] * 2
        arrays = fleet.trained(number, messages)
        fleet.evaluate(number, arrays)
    assert not fleet.failed
    np.testing.assert_array_equal(seen[2], seen[4])  # evaluated after round 1, trained from in round 2
    np.testing.assert_allclose(seen[-1], arrays["bias"].numpy(), atol=1e-3)


def test_levels_follow_the_losses_that_clients_report(in_run: int) -> None:
    codec = codecs.get("elasticl", s0=10, smoothing=0.0)
    each = Contexts()
    strategy = compressed(FedAvg(**CONFIG), codec)
    asked: list[Any] = []
    arrays = _arrays()
    for server_round, loss in enumerate((4.0, 1.0, 0.25), 1):

        def app(message: Message, context: Context, loss: float = loss) -> Message:
            reply = _app(message, context)
            reply.content["metrics"]["loss"] = loss
            return reply

        messages = list(strategy.configure_train(server_round, arrays, ConfigRecord({"lr": 0.1}), BoardGrid([1, 2])))
        asked.append(messages[0].content["edgegossip"].get("levels"))
        replies = [compression_mod(codec)(m, each[m.metadata.dst_node_id], app) for m in messages]
        new, _ = strategy.aggregate_train(server_round, replies)
        assert new is not None
        arrays = new
    assert asked == [None, 10, 20]


@pytest.mark.parametrize("make", [FedAvg, FedAdam, Krum])
def test_no_strategy_sees_an_update_out_of_all_proportion(make: Any, in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        reply = _app(message, context)
        if message.metadata.dst_node_id == 4 and message.content["config"]["server-round"] == 2:
            record = reply.content["arrays"]
            reply.content["arrays"] = ArrayRecord({**record, "bias": Array(record["bias"].numpy() * np.float32(1e25))})
        return reply

    fleet, arrays = Fleet(make(**CONFIG), "fp32", app, nodes=range(1, BOARDS + 1)), _arrays()
    for number in (1, 2, 3):
        arrays = fleet.train(number, arrays)
    ((node, why),) = fleet.refused
    assert node == 4 and "times as long as the typical one" in why
    assert np.abs(arrays["bias"].numpy()).max() < 10.0
