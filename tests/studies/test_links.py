"""Links of a study that have a speed, and the codec that follows it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import recipe as recipes
from edgegossip.studies.cases import StudyPlan, Variant, make_cases
from edgegossip.studies.link import LinkModel
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.types import ConfigError

CHANGING = LinkModel((8.0, 0.8, 80.0), every_s=2.0, latency_s=0.0, compute_s=1.0)


@given(st.floats(0, 20), st.integers(0, 10**7), st.integers(0, 10**7))
def test_bytes_take_as_long_in_two_pieces_as_in_one(start_s: float, one: int, other: int) -> None:
    apart = CHANGING.through_s(CHANGING.through_s(start_s, one), other)
    assert apart == pytest.approx(CHANGING.through_s(start_s, one + other), abs=1e-6)


def test_each_rate_holds_for_its_time() -> None:
    assert CHANGING.through_s(1.0, 500_000) == pytest.approx(1.5)
    assert CHANGING.through_s(1.0, 1_100_000) == pytest.approx(3.0)  # a second at 8 Mbit/s, and one at 0.8
    assert CHANGING.through_s(4.0, 10_000_000) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mbits": 1.0}, "unknown key link.mbits; did you mean link.mbit"),
        ({"every_s": 5.0}, "link.mbit is missing"),
        ({"mbit": []}, "say a number of Mbit/s, or a list of them"),
        ({"mbit": 1.0, "latency_s": -1.0}, "link.latency_s = -1.0: out of range .from 0.0 to"),
    ],
)
def test_what_is_no_link_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LinkModel.of(settings)


def seconds_of_rounds(**settings: Any) -> list[float]:
    settings = {"codec.name": "auto", "run.nodes": 3, "evaluation.every": 1, "evaluation.examples": 20, **settings}
    settings |= {"gossip.deadline_s": 1000.0, "data.train_examples": 300, "link.compute_s": 0.05}
    recipe = recipes.load("quickstart-gossip")
    (case,) = make_cases(recipe, StudyPlan(variants=(Variant({"model.params.hidden": [400], **settings}),)))
    result = run_case(case, DataSetCache())
    assert result["state"] == "done", result["reason"]
    at = [point["virtual_s"] for point in result["curve"]]
    return [after - before for before, after in itertools.pairwise(at)]


# Boards' rates without a model are tests/engine/test_rates.py's; 50 rounds take some seconds.
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["choco-sgd", "dpsgd", "server"])
def test_rounds_are_as_long_as_before_soon_after_a_link_got_ten_times_slower(mode: str) -> None:
    """They were allowed a fifth of a second under way; the first slow one takes ten times that."""
    seconds = 0.2
    how = {"run.mode": "server"} if mode == "server" else {"gossip.algorithm": mode, "training.momentum": 0.0}
    link = {"link.mbit": [2.0, 0.2, 2.0], "link.every_s": 8.0}
    found = seconds_of_rounds(**how, **link, **{"codec.params.seconds": seconds, "run.rounds": 50})
    down_s = 4 * 30_410 * 8 / 0.2e6 if mode == "server" else 0.0  # the model comes down whole
    slow = [k for k, s in enumerate(found) if s > 2.0 * (0.05 + seconds) + down_s]
    assert slow == [] or max(slow) - min(slow) <= 10
    if mode != "server":
        assert sum(found[-10:]) / 10 <= 1.2 * (0.05 + seconds)
