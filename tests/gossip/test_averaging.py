"""The default averaging rate: small enough for what a message leaves out."""

import os
import subprocess
import sys

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.gossip.averaging import SMALLEST, default_eta, memory_eta, on_probe
from edgegossip.layout import Layout, TensorSpec


@pytest.mark.parametrize(("ratio", "rate"), [(0.01, 0.028), (0.1, 0.15), (0.25, 0.375), (0.5, 0.75)])
def test_no_value_is_mixed_too_often_before_it_is_said_anew(ratio: float, rate: float) -> None:
    assert default_eta(codecs.get("topk", ratio=ratio)) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("name", ["fp32", "fp16", "minmax8"])
def test_what_loses_next_to_nothing_mixes_in_full(name: str) -> None:
    assert default_eta(codecs.get(name)) == 1.0


def test_it_is_a_plain_number() -> None:
    """A state holds it, and a checkpoint refuses numpy's scalars."""
    for codec in map(codecs.get, codecs.names()):
        assert type(default_eta(codec)) is float
        assert type(memory_eta(codec)) is float and SMALLEST <= memory_eta(codec) <= 1.0


@pytest.mark.parametrize(("ratio", "nodes"), [(0.25, 2), (0.25, 5), (0.1, 4)])
def test_choco_converges_with_it_on_rings(ratio: float, nodes: int) -> None:
    """The plain recursion in numpy: x += eta (W h - h) after h += top-k of x - h."""
    eta, k = default_eta(codecs.get("topk", ratio=ratio)), round(20 * ratio)
    ways = np.eye(nodes) + np.roll(np.eye(nodes), 1, 0) + np.roll(np.eye(nodes), -1, 0) * (nodes > 2)
    w = ways / ways.sum(axis=1, keepdims=True)
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(nodes, 20))
        h, before = x.copy(), np.ptp(x, axis=0).max()
        for _ in range(200):
            away = x - h
            largest = np.argsort(-np.abs(away), axis=1)[:, :k]
            np.put_along_axis(h, largest, np.take_along_axis(x, largest, 1), 1)
            x = x + eta * (w @ h - h)
        assert np.ptp(x, axis=0).max() < 0.05 * before


@pytest.mark.parametrize(
    ("name", "params", "rate"),
    [
        ("fp32", {}, 1.0),
        ("minmax8", {}, 1.0),
        ("8-bit-elastiquant", {}, 1.0),
        ("4-bit-elastiquant", {}, 0.187),
        ("co3", {}, 0.194),
        ("topk", {"ratio": 0.1}, 0.053),
        ("topk", {"ratio": 0.01}, 0.016),
        ("signsgd", {}, 0.051),
    ],
)
def test_with_a_memory_it_goes_by_how_far_a_message_strays(name: str, params: dict[str, float], rate: float) -> None:
    assert memory_eta(codecs.get(name, **params)) == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize(("name", "rate"), [("co3", 0.164), ("ef-signsgd", 0.0057)])
def test_codecs_that_remember_by_themselves_overshoot_and_get_less(name: str, rate: float) -> None:
    """choco-sgd with co3 at the rate of a codec that keeps 98 % of a vector diverges."""
    assert default_eta(codecs.get(name)) == pytest.approx(rate, rel=0.05)
    without = codecs.get("co3", gamma=0.0) if name == "co3" else codecs.get("signsgd")
    assert default_eta(without) > 2.0 * rate


def test_a_memory_that_grows_without_end_gets_the_smallest() -> None:
    """Few levels of an L2 norm in large buckets lose more than they are given."""
    assert memory_eta(codecs.get("qsgd", bits=4, bucket=512)) == SMALLEST


@pytest.mark.parametrize("values", [20_000, 100_000, 1_000_000])
def test_a_budget_of_bytes_is_measured_against_the_model(values: int) -> None:
    """1 % of fp32's bytes keep a quarter of a normal vector's energy, whatever the size."""
    small, large = (
        default_eta(on_probe(codecs.get("deadzone", bytes=round(share * 4 * values)), values)) for share in (0.01, 0.3)
    )
    assert 0.05 < small < 0.15 and large == 1.0
    least = codecs.get("deadzone", bytes=1).least_bytes(Layout.of([TensorSpec("x", (values,))]))
    assert SMALLEST <= default_eta(on_probe(codecs.get("deadzone", bytes=least), values)) < 0.02
    topk = codecs.get("topk", ratio=0.1)
    assert on_probe(topk, values) is topk


@pytest.mark.parametrize("name", ["deadzone", "dither", "auto"])
def test_a_budget_is_measured_whatever_model_and_wherever_it_is_given(name: str) -> None:
    """It is also that of a codec inside another, as with statistics of batch norm, which stay
    exact."""
    layout = Layout.of([TensorSpec("w", (500, 400)), TensorSpec("mean", (400,), trainable=False)])
    plain = codecs.get(name, bytes=8000)
    rates = [default_eta(on_probe(codec, layout.size)) for codec in (plain, codecs.for_layout(plain, layout))]
    assert rates[0] == rates[1] < 1.0
    for values in (1, 10**9):
        default_eta(on_probe(plain, values))


def test_boards_whose_processors_add_up_in_another_order_have_the_same_rates() -> None:
    """As OpenBLAS does on processors of several kinds, in float32."""
    code = (
        "from edgegossip import codecs; from edgegossip.gossip.averaging import default_eta, memory_eta\n"
        "made = [codecs.get('qsgd', bits=6), *map(codecs.get, ('elastiquant', 'signsgd', 'topk', '4-bit-qsgd'))]\n"
        "print([(default_eta(codec), memory_eta(codec)) for codec in made])"
    )
    kinds = ({**os.environ, "OPENBLAS_CORETYPE": kind} for kind in ("Haswell", "Nehalem"))
    running = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for env in kinds]
    first, second = (process.communicate()[0] for process in running)
    assert first and first == second
