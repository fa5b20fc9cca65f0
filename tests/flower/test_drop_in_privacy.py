"""Flower's differential privacy around the drop-in: no codec, and no memory of one, makes an update
longer than the norm that the noise is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Krum,
    Strategy,
)

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower import compressed, compression_mod
from edgegossip.flower.combine import BoardGrid
from edgegossip.types import UsageError
from tests.flower.fleet import CONFIG, Contexts, Fleet

C = 0.5
BOARDS = 3
Mod = Callable[..., Message]


def _codec(name: str) -> Codec[Any]:
    if name == "per-tensor":
        return codecs.by_tensor([codecs.get("qsgd"), codecs.get("fp16")], lambda spec: int(spec.name == "b"))
    return codecs.error_feedback(codecs.get("topk")) if name == "error-feedback" else codecs.get(name)


NAMES = [name for name in codecs.names() if name not in ("elasticl", "small-tensors")]


class Wrapped:
    """Makes each of Flower's wrappers around a strategy, without noise."""

    @staticmethod
    def server_fixed(strategy: Strategy, noise: float = 0.0) -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(strategy, noise, C, BOARDS)

    @staticmethod
    def client_fixed(strategy: Strategy, noise: float = 0.0) -> Strategy:
        return DifferentialPrivacyClientSideFixedClipping(strategy, noise, C, BOARDS)

    @staticmethod
    def server_adaptive(strategy: Strategy, noise: float = 0.0) -> Strategy:
        return DifferentialPrivacyServerSideAdaptiveClipping(strategy, noise, BOARDS, C, clipped_count_stddev=2 * noise)

    @staticmethod
    def client_adaptive(strategy: Strategy, noise: float = 0.0) -> Strategy:
        return DifferentialPrivacyClientSideAdaptiveClipping(strategy, noise, BOARDS, C, clipped_count_stddev=2 * noise)


WRAPPERS = {
    "server-fixed": (Wrapped.server_fixed, None),
    "server-adaptive": (Wrapped.server_adaptive, None),
    "client-fixed": (Wrapped.client_fixed, fixedclipping_mod),
    "client-adaptive": (Wrapped.client_adaptive, adaptiveclipping_mod),
}


class NotingNorms(FedAvg):
    """Notes how far each reply's model is from the one that was sent, over all of its arrays."""

    def __init__(self) -> None:
        super().__init__(**CONFIG)
        self.norms: list[float] = []
        self.sent = ArrayRecord()

    def configure_train(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> Any:
        self.sent = arrays
        return super().configure_train(server_round, arrays, *rest)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                continue
            record = next(iter(reply.content.array_records.values()))
            assert list(record) == list(self.sent)
            changes = [record[k].numpy().astype(float) - a.numpy().astype(float) for k, a in self.sent.items()]
            self.norms.append(float(np.sqrt(sum((change**2).sum() for change in changes))))
        return super().aggregate_train(server_round, replies)


def _first(**more: Array) -> ArrayRecord:
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(60, 40)), "v": rng.normal(size=(300,)), "b": rng.normal(size=(40,))}
    return ArrayRecord({**{k: Array(0.1 * v.astype(np.float32)) for k, v in weights.items()}, **more})


def _app(message: Message, context: Context) -> Message:
    """Train a long way, in another direction each round; a few coordinates are large."""
    del context
    rng = np.random.default_rng([message.metadata.dst_node_id, message.content["config"]["server-round"]])
    arrays = {}
    for name, array in message.content["arrays"].items():
        value = array.numpy()
        moves = {"f": rng.standard_t(3, size=value.shape), "l": 5}  # float32 and int64
        if value.dtype.char in moves:
            value = np.asarray(value + moves[value.dtype.char], value.dtype)
        arrays[name] = Array(value)
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10, "loss": 1.0})}
    return Message(RecordDict(content), reply_to=message)


def clients_of(strategy: Strategy, codec: Codec[Any], *mods: Mod | None, app: Mod = _app) -> Fleet:
    """BOARDS clients with these mods of Flower's, those that are some."""
    return Fleet(strategy, codec, app, nodes=range(1, BOARDS + 1), mods=[mod for mod in mods if mod is not None])


def wrapped_codecs() -> Iterator[Any]:
    """Every codec in one of the wrappers, in turn; in the others it is slow: a wrapper sees values,
    and not who made them."""
    for k, name in enumerate(NAMES):
        for j, wrapper in enumerate(WRAPPERS):
            marks = () if k % len(WRAPPERS) == j else pytest.mark.slow
            yield pytest.param(wrapper, name, marks=marks, id=f"{wrapper}-{name}")


@pytest.mark.parametrize(("wrapper", "name"), [*wrapped_codecs()])
def test_no_codec_leads_beyond_the_clipping_norm(wrapper: str, name: str, in_run: int) -> None:
    make, clipping = WRAPPERS[wrapper]
    noting, codec = NotingNorms(), _codec(name)
    strategy: Any = make(noting)
    clients, arrays, most = clients_of(strategy, codec, clipping), _first(), []
    for number in range(1, 4):
        most += [strategy.clipping_norm] * BOARDS
        new = clients.round(number, arrays)
        assert new is not None and list(new) == list(arrays)
        arrays = new
    assert not clients.refused and len(noting.norms) == 3 * BOARDS
    over = max(norm / c for norm, c in zip(noting.norms, most, strict=True))
    # a wrapper that clips at the server sums model and update in float32, and may round upwards
    assert over <= (1 if clipping else 1 + 1e-6), over
    assert min(noting.norms) > 0.01


def test_few_values_of_float64_are_trained_too(in_run: int) -> None:
    """Without privacy they go as they are; here that would leave them out of norm and noise."""
    noting, codec = NotingNorms(), codecs.get("fp32")

    def app(message: Message, context: Context) -> Message:
        content = _app(message, context).content
        moved = message.content["arrays"]["bias"].numpy() + 0.01
        content["arrays"] = ArrayRecord({**content["arrays"], "bias": Array(moved)})
        return Message(content, reply_to=message)

    clients = clients_of(Wrapped.server_fixed(noting), codec, app=app)
    first = _first(bias=Array(np.full(3, 0.1)))
    arrays = clients.round(1, first)
    assert arrays is not None and not clients.refused and arrays["bias"].dtype == "float64"
    assert (arrays["bias"].numpy() > 0.1 + 1e-6).all()


BESIDE = {
    "mask": np.triu(np.full((4, 4), -np.inf, np.float32), 1),
    "half": np.asarray([1.0, np.inf], np.float16),
    "steps": np.asarray(7),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_has_no_norm_is_neither_clipped_nor_noised(wrapper: str, in_run: int) -> None:
    """A mask with infinity makes every norm NaN, at which Flower's clipping clips nothing."""
    make, clipping = WRAPPERS[wrapper]
    noting, codec = NotingNorms(), codecs.get("4-bit-elastiquant")
    buffers = dict(BESIDE) if clipping else {**BESIDE, "counts": np.arange(3), "flags": np.asarray([True])}
    clients = clients_of(make(noting, 1.0), codec, clipping)
    first = ArrayRecord({k: Array(v) for k, v in buffers.items()} | dict(_first()))
    with np.errstate(invalid="ignore"):
        arrays = clients.round(1, first)
    assert arrays is not None and not clients.refused and list(arrays) == list(first)
    assert len(noting.norms) == BOARDS and max(noting.norms) <= C * (1 + 1e-6)
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(arrays[name].numpy(), buffer)
    assert (arrays["w"].numpy() != first["w"].numpy()).mean() > 0.99


@pytest.mark.parametrize("name", ["fp32", "terngrad", "ef-signsgd"])
def test_arrays_of_half_precision_are_not_rounded_beyond_the_norm(name: str, in_run: int) -> None:
    codec, noting = _codec(name), NotingNorms()

    def app(message: Message, context: Context) -> Message:
        reply, rng = _app(message, context), np.random.default_rng(message.metadata.dst_node_id)
        half = reply.content["arrays"]["half"]
        reply.content["arrays"]["half"] = Array(half.numpy() + rng.normal(size=half.shape).astype(np.float16))
        return reply

    clients = clients_of(Wrapped.client_fixed(noting), codec, fixedclipping_mod, app=app)
    arrays = _first(half=Array(np.linspace(-9, 9, 2000).astype(np.float16)))
    for number in (1, 2, 3):
        new = clients.round(number, arrays)
        assert new is not None
        arrays = new
    assert len(noting.norms) == 9 and max(noting.norms) <= C and not clients.refused


def test_clients_that_do_not_clip_are_clipped(in_run: int) -> None:
    noting, codec = NotingNorms(), codecs.get("fp16")
    clients = clients_of(Wrapped.client_fixed(noting), codec)
    arrays = clients.round(1, _first())
    assert arrays is not None and not clients.refused
    assert min(noting.norms) > 0.99 * C and max(noting.norms) <= C


def test_a_short_update_is_no_reason_to_refuse_a_long_one(in_run: int) -> None:
    """Who is in the sum must not depend on how long others' updates are."""

    def app(message: Message, context: Context) -> Message:
        arrays = dict(message.content["arrays"])
        step = np.float32(1.0 if message.metadata.dst_node_id == 1 else 1e-6)
        arrays["w"] = Array(arrays["w"].numpy() + step)
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    noting, codec = NotingNorms(), codecs.get("fp32")
    clients = clients_of(Wrapped.server_fixed(noting), codec, app=app)
    clients.round(1, _first())
    assert len(noting.norms) == BOARDS and not clients.refused


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_levels_that_follow_losses_are_refused(wrapper: str, in_run: int) -> None:
    codec = codecs.get("elasticl")
    clients = clients_of(WRAPPERS[wrapper][0](NotingNorms()), codec)
    with pytest.raises(UsageError, match="elasticl.* no noise hides.* 4-bit-elastiquant"):
        clients.round(1, _first())


def test_wrappers_of_other_kinds_of_strategies_stay_what_they_are(in_run: int) -> None:
    codec = codecs.get("co3")
    clients = clients_of(Wrapped.client_fixed(Krum(**CONFIG)), codec, fixedclipping_mod)
    arrays = clients.round(1, _first())
    assert arrays is not None and not clients.refused
    change = np.concatenate([(arrays[k].numpy() - a.numpy()).ravel() for k, a in _first().items()])
    assert 0 < np.linalg.norm(change) <= C * (1 + 1e-6)


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(C, 0.1, 1.0, 1e-5)])
@pytest.mark.parametrize("buffer", [True, False])
def test_mods_in_the_wrong_order_fail_and_the_server_says_why(
    mod: Mod, buffer: bool, in_run: int, caplog: pytest.LogCaptureFixture
) -> None:
    codec = codecs.get("co3")
    strategy = NotingNorms() if isinstance(mod, LocalDpMod) else Wrapped.client_fixed(NotingNorms())

    clients = clients_of(strategy, codec, compression_mod(codec))
    clients.mod = mod
    with caplog.at_level(logging.WARNING, "edgegossip.flower"):
        first = _first(steps=Array(np.asarray(7))) if buffer else _first()
        assert clients.round(1, first) is None and clients.round(2, first) is None
    told = [r.getMessage() for r in caplog.records if "compression_mod has to come before" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("name", ["fp32", "co3", "ef-signsgd"])
def test_noise_that_clients_add_is_there_before_the_codec_is(name: str, in_run: int) -> None:
    """So what is sent is made of noised values alone, whatever a client remembers of them."""
    noised: list[ArrayRecord] = []

    def noising(message: Message, context: Context, call_next: Mod) -> Message:
        reply = LocalDpMod(C, 0.001, 1.0, 1e-5)(message, context, call_next)
        noised.append(reply.content["arrays"])
        return reply

    def replayed(message: Message, context: Context) -> Message:
        content = {"arrays": noised.pop(0), "metrics": MetricRecord({"num-examples": 10, "loss": 1.0})}
        return Message(RecordDict(content), reply_to=message)

    first, codec = _first(), _codec(name)
    clients = clients_of(FedAvg(**CONFIG), codec, noising)
    again = clients_of(FedAvg(**CONFIG), codec, app=replayed)
    made, same = first, first
    for number in (1, 2):
        made, same = clients.train(number, made), again.train(number, same)
    for key, array in made.items():
        np.testing.assert_array_equal(array.numpy(), same[key].numpy())
    change = np.concatenate([(made[k].numpy() - a.numpy()).ravel() for k, a in first.items()])
    assert np.linalg.norm(change) > 1e-3


def test_strategies_that_secure_aggregation_plays_are_refused() -> None:
    from flwr.server.strategy import FedAvg as Legacy

    with pytest.raises(UsageError, match=r"flwr\.serverapp.* secure aggregation .* uncompressed"):
        compressed(Legacy(), codecs.get("co3"))  # type: ignore[arg-type]


def test_noise_is_for_those_that_are_in_the_sum(in_run: int) -> None:
    """A wrapper that hears of a failure makes no model, and so no noise for too many; it would not
    hear of an answer that is missing."""
    codec = codecs.get("fp32")
    clients = clients_of(Wrapped.server_fixed(FedAvg(**CONFIG), 1.0), codec)
    replies = clients.answer(clients.ask("train", 1, _first()))
    replies[1].content["metrics"]["num-examples"] = -1
    arrays, _ = clients.strategy.aggregate_train(1, replies)
    assert arrays is None and len(clients.refused) == 1


def test_a_codec_that_tells_the_loss_is_refused_where_clients_hide_it(in_run: int) -> None:
    def played(mods: list[Mod], codec: Codec[Any]) -> str:
        app = ClientApp(mods=[compression_mod(codec), *mods])
        app.train()(_app)
        (message,) = compressed(FedAvg(**CONFIG), codec).configure_train(1, _first(), ConfigRecord(), BoardGrid([1]))
        try:
            return "" if app(message, Contexts()[1]).has_content() else "failed"
        except UsageError as error:
            return str(error)

    private = LocalDpMod(C, 0.1, 1.0, 1e-5)
    told = played([private], codecs.get("elasticl"))
    assert "elasticl tells the server the loss" in told and "4-bit-elastiquant" in told
    assert played([message_size_mod, private], codecs.get("elasticl")) == told
    assert played([message_size_mod], codecs.get("elasticl")) == played([private], codecs.get("co3")) == ""
