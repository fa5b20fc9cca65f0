"""Algorithms by name."""

from __future__ import annotations

from typing import Any

import pytest

from edgegossip import gossip
from edgegossip.types import ConfigError


def test_every_name_gives_an_algorithm_of_that_name() -> None:
    assert "dpsgd" in gossip.names()
    assert [gossip.get(name).name for name in gossip.names()] == list(gossip.names())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("dpsg", {}, "unknown algorithm 'dpsg'; did you mean dpsgd"),
        ("dpsgd", {"etta": 1.0}, "unknown parameter of algorithm 'dpsgd' 'etta'; did you mean eta"),
        ("dpsgd", {"eta": 0.0}, "eta of dpsgd = 0.0 must be a number above 0 and at most 1"),
        ("choco-sgd", {"eta": 1.5}, "eta of choco-sgd = 1.5 must be a number from 0 to 1"),
        ("choco-sgd", {"zero_start": 1}, "zero_start of choco-sgd = 1 must be true or false"),
        ("ad-psgd", {"repeats": 1001}, "repeats of ad-psgd = 1001 .*nearest valid value is 1000"),
        ("dpsgd", {"max_ahead": 1.5}, "max_ahead of dpsgd = 1.5 must be an integer"),
    ],
)
def test_wrong_choices_name_the_nearest_right_one(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gossip.get(name, **params)


def test_d2_refuses_old_news() -> None:
    with pytest.raises(ConfigError, match="staleness of d2 must be 0"):
        gossip.get("d2", staleness=1)
