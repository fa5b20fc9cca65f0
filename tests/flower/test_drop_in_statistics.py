"""What must not change its sign, or is no direction of a descent, travels as it is: both ways, by
name or by how its values behave."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

from edgegossip import codecs
from edgegossip.flower import compressed
from edgegossip.flower.combine import BoardGrid
from tests.flower.fleet import CONFIG, Fleet, replied
from tests.flower.test_drop_in_privacy import WRAPPERS

PAIRS = [("co3", None), ("co3", "4-bit-elastiquant"), ("deadzone", "4-bit-elastiquant"), ("fp32", "4-bit-elastiquant")]
MODELS = {  # names of a mean, a variance that begins with ones, and a second moment that begins with zeros
    "named": ("1.running_mean", "1.running_var", "exp_avg_sq"),
    "numbered": ("", "2", "3"),
}


class Watching(FedAvg):
    """Keeps what it got of each client and what it made of it."""

    def __init__(self) -> None:
        super().__init__(**CONFIG)
        self.got: dict[int, dict[str, np.ndarray[Any, Any]]] = {}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            record = next(iter(reply.content.array_records.values()))
            self.got[reply.metadata.src_node_id] = {k: a.numpy().copy() for k, a in record.items()}
        return super().aggregate_train(server_round, replies)


def _model(names: tuple[str, str, str]) -> ArrayRecord:
    rng = np.random.default_rng(0)
    mean, var, moment = names
    arrays = {"w": rng.normal(size=(40, 30)), var: np.ones(40), moment: np.zeros((20, 10))}
    arrays |= {mean: np.zeros(40)} if mean else {}
    return ArrayRecord({k: Array(v.astype(np.float32)) for k, v in arrays.items()})


def _moved(name: str, value: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if name == "w":
        return value + rng.normal(size=value.shape).astype(np.float32)
    target = np.geomspace(1e-6, 1e-2, value.size).reshape(value.shape)
    noise = target * rng.uniform(0.5, 1.5, value.shape)
    return np.asarray(0.1 * value + 0.9 * (-noise if name.endswith("mean") else noise), np.float32)


def _play(strategy: Any, pair: tuple[str, str | None], names: tuple[str, str, str], **options: Any) -> list[Any]:
    """Return what clients found, what they answered, and the last model."""
    found: dict[int, Any] = {}
    answered: dict[int, Any] = {}

    def app(message: Message, context: Context) -> Message:
        k, record = message.metadata.dst_node_id, message.content["arrays"]
        found[k] = {name: a.numpy() for name, a in record.items()}
        rng = np.random.default_rng([k, message.content["config"]["server-round"]])
        answered[k] = {name: _moved(name, value, rng) for name, value in found[k].items()}
        return replied(message, {name: Array(value) for name, value in answered[k].items()})

    fleet = Fleet(strategy, pair[0], app, pair[1], nodes=(1, 2, 3), **options)
    arrays = before = _model(names)
    for number in (1, 2, 3):
        before, arrays = arrays, fleet.train(number, arrays)
    return [found, answered, before, arrays]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("names", MODELS.values(), ids=MODELS.keys())
def test_statistics_are_what_they_are_at_both_ends(pair: tuple[str, str | None], names: Any, in_run: int) -> None:
    strategy = Watching()
    found, answered, sent, arrays = _play(strategy, pair, names)
    for name in filter(None, names):
        for node in (1, 2, 3):
            np.testing.assert_array_equal(strategy.got[node][name], answered[node][name])
            np.testing.assert_array_equal(found[node][name], sent[name].numpy())
    assert (arrays[names[1]].numpy() >= 0).all() and (arrays[names[2]].numpy() >= 0).all()
    assert pair[0] == "fp32" or not np.array_equal(strategy.got[1]["w"], answered[1]["w"])


def test_more_names_are_exact_on_request(in_run: int) -> None:
    strategy = Watching()
    _, answered, _, _ = _play(strategy, ("co3", None), MODELS["named"], exact=("*",))
    for name, value in answered[1].items():
        np.testing.assert_array_equal(strategy.got[1][name], value)
    _, answered, _, _ = _play(strategy, ("co3", None), MODELS["named"], exact=())
    assert not np.array_equal(strategy.got[1]["1.running_mean"], answered[1]["1.running_mean"])
    np.testing.assert_array_equal(strategy.got[1]["1.running_var"], answered[1]["1.running_var"])


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name.startswith("server")])
def test_variances_are_in_the_norm_that_noise_is_for(wrapper: str, in_run: int) -> None:
    strategy = Watching()
    _, _, sent, arrays = _play(WRAPPERS[wrapper][0](strategy), ("co3", "4-bit-elastiquant"), MODELS["named"])
    for got in strategy.got.values():
        change = np.concatenate([(got[k] - sent[k].numpy()).ravel() for k in got])
        assert np.linalg.norm(change) <= 0.7  # from 0.5 on the adaptive wrapper moves it
        assert (got["1.running_var"] >= 0).all() and not np.array_equal(
            got["1.running_var"], sent["1.running_var"].numpy()
        )
    assert (arrays["1.running_var"].numpy() >= 0).all()


@pytest.mark.parametrize(("lowest", "told"), [(0.0, 1), (-1.0, 0)])
def test_a_model_that_is_nowhere_negative_is_said_to_travel_uncompressed(
    lowest: float, told: int, in_run: int, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = compressed(FedAvg(**CONFIG), codecs.get("co3"))
    with caplog.at_level(logging.WARNING, "edgegossip.flower"):
        for number in (1, 2):
            arrays = ArrayRecord({"w": Array(np.linspace(lowest, 1, 50).astype(np.float32))})
            strategy.configure_train(number, arrays, ConfigRecord(), BoardGrid([1]))
    assert sum("100 % of the model travel uncompressed" in r.getMessage() for r in caplog.records) == told
