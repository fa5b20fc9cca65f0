"""The drop-in carries arrays of every kind as stock Flower carries them, and once those that stay
as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum, Strategy

from edgegossip.flower.combine import BoardGrid
from edgegossip.flower.records import conform
from tests.flower.fleet import CONFIG, Fleet

MASK = np.triu(np.full((40, 40), -np.inf, np.float32), 1)
BUFFERS: dict[str, np.ndarray[Any, Any]] = {
    "bool": np.tri(5, dtype=bool),
    "scalar bool": np.asarray(True),
    "-inf": MASK,
    "float16 with inf": np.asarray([1.0, np.inf], np.float16),
    "float64 with nan": np.asarray([0.1, np.nan]),
    "float64 beyond float32": np.asarray([1e300, -1.0]),
    "int64": np.asarray([7, -(2**62) - 1]),
    "uint64": np.asarray([2**64 - 1], np.uint64),
    "int8": np.arange(-3, 3, dtype=np.int8),
    "scalar": np.asarray(0.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "empty int": np.zeros((0,), np.int32),
    "float16": np.asarray([0.25, -2.0], np.float16),
    "float64": np.asarray([0.25, -2.0]),
    "float64 between float32": np.asarray([0.1, 2.0**24 + 1]),
    "scalar float64": np.asarray(0.1),
    "complex": np.asarray([1 + 2j], np.complex64),
    "text": np.asarray(["ham", "spam"]),
    "dates": np.asarray(["2026-11-26"], "datetime64[D]"),
    "by column": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big-endian": np.asarray([1.5, np.inf], ">f4"),
}
# As ml_dtypes' arrays become Flower's: numpy itself knows no such numbers.
BFLOAT16 = Array("bfloat16", (2,), "numpy.ndarray", Array(np.asarray([0x3F80, 0x4000], "<u2").view("V2")).data)
OTHER = Array("u4", (3,), "a format of one's own", b"anything")


class Clients(Fleet):
    """Three clients, and what travelled."""

    def __init__(self, strategy: Strategy, app: Any, downlink: str | None = None, codec: str = "fp32") -> None:
        super().__init__(strategy, codec, app, downlink, nodes=(1, 2, 3))

    def played(self, number: int, arrays: ArrayRecord) -> tuple[ArrayRecord, int, int]:
        """Return the next model, and how many bytes went down and up."""
        return (self.train(number, arrays), *self.sizes[-1])


def _reply(message: Message, **records: Any) -> Message:
    content = RecordDict({k: ArrayRecord(dict(arrays)) for k, arrays in records.items()})
    content["metrics"] = MetricRecord({"num-examples": message.metadata.dst_node_id, "loss": 1.0})
    return Message(content, reply_to=message)


def _train(message: Message, context: Context) -> Message:
    """Train the weights and nothing else."""
    arrays = dict(message.content["arrays"])
    arrays["w"] = Array(arrays["w"].numpy() + np.float32(0.1))
    return _reply(message, arrays=arrays)


def _model(**more: Array) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(10, np.float32)), **more})


def _same(a: Array, b: Array) -> bool:
    return (a.dtype, tuple(a.shape), a.stype, a.data) == (b.dtype, tuple(b.shape), b.stype, b.data)


@pytest.mark.parametrize("downlink", [None, "8-bit-elastiquant"])
@pytest.mark.parametrize("kind", [*BUFFERS, "bfloat16", "other"])
def test_a_buffer_of_any_kind_is_what_the_app_finds(kind: str, downlink: str | None, in_run: int) -> None:
    buffer = {"bfloat16": BFLOAT16, "other": OTHER}.get(kind) or Array(BUFFERS[kind])
    seen: list[Array] = []

    def app(message: Message, context: Context) -> Message:
        seen.append(message.content["arrays"]["buffer"])
        return _train(message, context)

    clients, arrays = Clients(FedAvg(**CONFIG), app, downlink), _model(buffer=buffer)
    for number in (1, 2, 3):
        arrays, _, _ = clients.played(number, arrays)
    assert not clients.refused and not clients.failed
    assert len(seen) == 9 and all(_same(found, buffer) for found in [*seen, arrays["buffer"]])
    np.testing.assert_allclose(arrays["w"].numpy(), np.full(10, 0.3, np.float32), atol=1e-2)


@pytest.mark.parametrize("make", [FedAvg, FedMedian, FedAdam])
def test_buffers_that_clients_change_are_what_the_strategy_makes_of_them(make: Any, in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        arrays = dict(message.content["arrays"])
        arrays["w"] = Array(arrays["w"].numpy() + np.float32(0.1))
        arrays["seen"] = Array(np.asarray([True, message.metadata.dst_node_id == 1]))
        arrays["lowest"] = Array(np.asarray([-1.0, np.inf], np.float32))
        arrays["steps"] = Array(np.asarray(arrays["steps"].numpy() + 2))
        return _reply(message, arrays=arrays)

    buffers = {"seen": np.zeros(2, bool), "lowest": np.full(2, np.inf, np.float32), "steps": np.asarray(5)}
    first = _model(**{k: Array(v) for k, v in buffers.items()})
    clients, plain = Clients(make(**CONFIG), app), make(**CONFIG)
    with np.errstate(invalid="ignore"):  # of FedAdam, which knows no infinity
        arrays, _, _ = clients.played(1, first)
        messages = plain.configure_train(1, first, ConfigRecord(), BoardGrid([1, 2, 3]))
        stock, _ = plain.aggregate_train(1, [app(m, clients.contexts[1]) for m in messages])
        assert not clients.refused and not clients.failed
        for name, array in stock.items():
            np.testing.assert_allclose(arrays[name].numpy(), array.numpy(), atol=1e-6)
        found = clients.strategy.configure_train(2, arrays, ConfigRecord(), BoardGrid([1]))
        opened: list[ArrayRecord] = []
        clients.app = lambda message, context: (opened.append(message.content["arrays"]), _train(message, context))[1]
        clients.answer([next(iter(found))])
    assert {k: opened[0][k].dtype for k in buffers} == {k: str(v.dtype) for k, v in buffers.items()}


@pytest.mark.parametrize("make", [FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum])
def test_what_nobody_changed_stays_exact(make: Any, in_run: int) -> None:
    counters = {"int64": np.asarray([2**62 + 1, -7]), "uint64": np.asarray([2**64 - 1], np.uint64)}
    counters |= {"float64": np.asarray([0.1, 2.0**53 - 1]), "mask": MASK}
    clients, arrays = Clients(make(**CONFIG), _train), _model(**{k: Array(v) for k, v in counters.items()})
    with np.errstate(invalid="ignore"):  # of strategies that know no infinity
        for number in (1, 2):
            arrays, _, _ = clients.played(number, arrays)
    assert not clients.refused and not clients.failed
    assert all(_same(arrays[k], Array(value)) for k, value in counters.items())


def test_few_values_of_float64_are_averaged_as_flower_does_it(in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        arrays = dict(message.content["arrays"])
        arrays["sum"] = Array(arrays["sum"].numpy() + 1e-12 * message.metadata.dst_node_id)
        return _reply(message, arrays=arrays)

    first = _model(sum=Array(np.asarray([0.1, 1e9 + 0.5])))
    clients, plain = Clients(FedAvg(**CONFIG), app), FedAvg(**CONFIG)
    found, _, _ = clients.played(1, first)
    messages = list(plain.configure_train(1, first, ConfigRecord(), BoardGrid([1, 2, 3])))
    messages.sort(key=lambda m: m.metadata.dst_node_id)  # of which a sum of floats depends
    stock, _ = plain.aggregate_train(1, [app(m, clients.contexts[1]) for m in messages])
    assert _same(found["sum"], stock["sum"])


def test_a_model_of_few_float64_values_alone_is_compressed(in_run: int) -> None:
    clients = Clients(FedAvg(**CONFIG), _train)
    arrays, _, up = clients.played(1, ArrayRecord({"w": Array(np.full(1000, 0.1))}))
    assert arrays["w"].dtype == "float64" and up < 3 * 5000
    np.testing.assert_allclose(arrays["w"].numpy(), np.full(1000, 0.2), rtol=1e-6)


@pytest.mark.parametrize("downlink", [None, "fp16"])
@pytest.mark.parametrize("make", [FedAvg, FedMedian])
def test_what_stays_as_it_is_travels_once_and_never_comes_back(make: Any, downlink: str | None, in_run: int) -> None:
    clients, arrays = Clients(make(**CONFIG), _train, downlink), _model(mask=Array(MASK))
    size, sizes = MASK.nbytes, []
    for number in (1, 2, 3):
        arrays, *both = clients.played(number, arrays)
        sizes.append(both)
    assert sizes[0][0] > 3 * size and max(sizes[1][0], sizes[2][0]) < size / 2
    assert max(up for _, up in sizes) < size / 2
    traffic = clients.strategy.traffic
    assert traffic.down_bytes == sum(down for down, _ in sizes) and traffic.up_bytes == sum(up for _, up in sizes)
    assert traffic.plain_bytes > 18 * size

    changed = ArrayRecord({**arrays, "mask": Array(np.minimum(MASK + 1, 1))})
    _, down, _ = clients.played(4, changed)
    assert down > 3 * size
    clients.contexts[2].state.clear()  # a client that lost it fails once, and gets it then
    clients.played(5, changed)
    assert len(clients.failed) == 1
    _, down, _ = clients.played(6, changed)
    assert len(clients.failed) == 1 and size < down < 2 * size


@pytest.mark.parametrize("name", ["w", "mask"])
def test_a_model_that_became_nan_is_named_as_diverged(name: str, in_run: int) -> None:
    def app(message: Message, context: Context) -> Message:
        arrays = dict(message.content["arrays"])
        if message.metadata.dst_node_id == 2:
            arrays[name] = Array(np.where(arrays[name].numpy() == 0, np.nan, 0).astype(np.float32))
        return _reply(message, arrays=arrays)

    clients = Clients(FedAvg(**CONFIG), app)
    arrays, _, _ = clients.played(1, _model(mask=Array(MASK)))
    ((_, why),) = clients.failed
    assert name in why and "training has diverged" in why
    np.testing.assert_array_equal(arrays["mask"].numpy(), MASK)


def test_a_server_refuses_values_that_are_not_finite_and_were_not_sent_so(in_run: int) -> None:
    clients = Clients(FedAvg(**CONFIG), _train)
    messages = clients.strategy.configure_train(1, _model(mask=Array(MASK)), ConfigRecord(), BoardGrid([1, 2, 3]))
    replies = clients.answer(messages)
    mask, unknown = Array(np.full_like(MASK, np.nan)), replies[1].content["arrays"]["mask"]
    replies[0].content["arrays"]["mask"] = mask
    unknown.data = unknown.data[::-1]
    arrays, _ = clients.strategy.aggregate_train(1, replies)
    assert arrays is not None and _same(arrays["mask"], Array(MASK))
    assert (
        "NaN or infinite" in clients.refused[0][1]
        and "only a hash" in clients.refused[1][1]
        and len(clients.refused) == 2
    )


class Controlled(FedAvg):
    """As SCAFFOLD does: a second record goes down and comes back."""

    def __init__(self) -> None:
        super().__init__(**CONFIG)
        self.control = ArrayRecord({"c": Array(np.ones(500, np.float64)), "flag": Array(np.asarray(True))})
        self.heard: list[ArrayRecord] = []

    def configure_train(self, *args: Any) -> list[Message]:
        messages = list(super().configure_train(*args))
        for message in messages:
            message.content["a-control"] = self.control
        return messages

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        self.heard += [reply.content.pop("a-control") for reply in replies]
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("downlink", [None, "fp16"])
def test_records_besides_the_model_travel_as_they_are(downlink: str | None, in_run: int) -> None:
    seen: list[ArrayRecord] = []

    def app(message: Message, context: Context) -> Message:
        seen.append(message.content["a-control"])
        control = dict(seen[-1])
        if message.metadata.dst_node_id == 1:
            control["c"] = Array(control["c"].numpy() / 3)
        return _reply(message, arrays=_train(message, context).content["arrays"], **{"a-control": control})

    strategy = Controlled()
    clients, arrays = Clients(strategy, app, downlink), _model()
    arrays, first, _ = clients.played(1, arrays)
    arrays, later, _ = clients.played(2, arrays)
    assert first > 3 * 4000 and later < 4000
    assert not clients.refused and not clients.failed
    assert len(seen) == 6 and all(record == strategy.control for record in seen)
    expected = strategy.control["c"].numpy()
    for k, record in enumerate(strategy.heard):
        np.testing.assert_array_equal(record["c"].numpy(), expected / 3 if k % 3 == 0 else expected)
    np.testing.assert_allclose(arrays["w"].numpy(), np.full(10, 0.2, np.float32), atol=1e-2)


def test_a_client_that_is_asked_twice_in_a_round_finds_the_arrays_of_either(in_run: int) -> None:
    class Twice(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> list[Message]:
            messages = super().configure_train(server_round, arrays, *rest)
            other = ArrayRecord({**arrays, "mask": Array(MASK.T)})
            return [
                Message(RecordDict({"arrays": a}), m.metadata.dst_node_id, "train")
                for a in (arrays, other)
                for m in messages
            ]

    seen: list[Array] = []

    def app(message: Message, context: Context) -> Message:
        seen.append(message.content["arrays"]["mask"])
        return _train(message, context)

    clients, arrays = Clients(Twice(**CONFIG), app), _model(mask=Array(MASK))
    for number in (1, 2, 3):
        arrays, _, _ = clients.played(number, arrays)
    assert not clients.failed and not clients.refused
    assert all(_same(seen[k], Array(MASK.T)) for k in range(1, 18, 2)) and _same(seen[0], Array(MASK))


@pytest.mark.parametrize("codec", ["fp32", "ef-signsgd", "dgc"])
def test_an_evaluation_that_returns_the_model_takes_nothing_from_error_memory(codec: str, in_run: int) -> None:
    """As Flower's quickstart for Hugging Face does it."""

    class Hearing(FedAvg):
        heard: ArrayRecord

        def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            self.heard = replies[0].content["arrays"]
            return super().aggregate_evaluate(server_round, replies)

    def train(message: Message, context: Context) -> Message:
        """Values differ, so that a sign and one size say them wrongly."""
        arrays = dict(message.content["arrays"])
        arrays["w"] = Array(arrays["w"].numpy() + np.linspace(-1, 2, 10, dtype=np.float32))
        return _reply(message, arrays=arrays)

    def run(evaluated: bool) -> ArrayRecord:
        strategy = Hearing(**{**CONFIG, "fraction_evaluate": 1.0})
        clients, arrays = Clients(strategy, train, codec=codec), _model(mask=Array(MASK))
        for number in (1, 2, 3):
            arrays, _, _ = clients.played(number, arrays)
            if evaluated:
                clients.app = lambda message, context: _reply(message, arrays=message.content["arrays"])
                asked = clients.strategy.configure_evaluate(number, arrays, ConfigRecord(), BoardGrid([1, 2, 3]))
                clients.strategy.aggregate_evaluate(number, clients.answer(asked))
                assert all(_same(strategy.heard[k], a) for k, a in arrays.items())
                clients.app = train
        assert not clients.refused and not clients.failed
        return arrays

    np.testing.assert_array_equal(run(True)["w"].numpy(), run(False)["w"].numpy())


def test_a_message_without_a_model_goes_as_it_is(in_run: int) -> None:
    class Asking(FedAvg):
        def configure_train(self, *args: Any) -> list[Message]:
            return [Message(RecordDict({"config": ConfigRecord({"a": 1})}), dst_node_id=1, message_type="train")]

    asked: list[RecordDict] = []

    def app(message: Message, context: Context) -> Message:
        asked.append(message.content)
        return Message(RecordDict(), reply_to=message)

    clients = Clients(Asking(**CONFIG), app)
    (message,) = clients.strategy.configure_train(1, _model(), ConfigRecord(), BoardGrid([1]))
    clients.answer([message])
    assert not clients.failed and set(asked[0]) == {"config"}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("scalar", [False, True])
def test_a_mean_beyond_integers_is_the_largest_that_there_is(dtype: str, scalar: bool) -> None:
    info = np.iinfo(dtype)
    for value, found in ((float(info.max), info.max), (-1e30, info.min), (1e30, info.max), (2.6, 3)):
        record = ArrayRecord({"count": Array(np.array(value if scalar else [value]))})
        count = conform(record, {"count": dtype})["count"].numpy()
        assert count.dtype == dtype and count.item() == found
