"""Every strategy that Flower exports, stock and compressed, among clients that train nothing,
report NaN and lists, fail and answer late: the same clients count, fp32 is equal to the bit, and
coded models are sound. `lab/results/flower_examples.py --in-process` does it with more codecs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

FP32, COLUMNS = ("fp32",), ("fp32", "co3, 4 bits down")
# One of each kind with a codec, too: the others differ in what they make of models that are equal.
CODED = ("FedAdam", "Krum", "FedXgbBagging", "DifferentialPrivacyClientSideAdaptiveClipping")


# Their likes are FedAdam, FedMedian and Krum.
LIKE_OTHERS = ("FedAdagrad", "FedYogi", "FedAvgM", "FedProx", "FedTrimmedAvg", "MultiKrum", "Bulyan")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, in_run: int) -> Any:
    from lab.results import flower_in_process

    return flower_in_process


def test_no_strategy_is_left_out(script: Any) -> None:
    exported = {name: getattr(flower, name) for name in flower.__all__}
    concrete = {n for n, c in exported.items() if issubclass(c, Strategy) and not inspect.isabstract(c)}
    assert concrete == set(script.STRATEGIES)


@pytest.mark.parametrize("condition", [0, 1, 2])
def test_the_mean_is_as_without_compression(condition: int, script: Any) -> None:
    columns = FP32 if condition else COLUMNS
    assert not script.row("FedAvg", script.CONDITIONS[condition], columns, rounds=2)["problems"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in LIKE_OTHERS else n
        for n in flower.__all__
        if n not in ("FedAvg", "Result", "Strategy")
    ],
)
def test_every_strategy_is_as_without_compression(name: str, script: Any) -> None:
    found = script.row(name, script.CONDITIONS[2], COLUMNS if name in CODED else FP32, rounds=2)
    assert not found["problems"]
    said = found["losses"].values()
    assert set(said) == {"declined"} if name == "FedXgbBagging" else all(isinstance(loss, float) for loss in said)
