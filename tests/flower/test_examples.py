"""Claims of examples: honest boards are very unequal, liars are more so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.flower.examples import SINGLE, Examples


@given(st.lists(st.integers(10, 1000), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 30))
def test_boards_with_a_hundred_times_as_many_examples_are_all_heard(sizes: list[int], part: int, rounds: int) -> None:
    judge, rng = Examples[int](), np.random.default_rng(1)
    for _ in range(rounds):
        some = rng.choice(len(sizes), min(part, len(sizes)), replace=False)
        claims = {int(k): float(sizes[k]) for k in some}
        assert not judge.refused(claims)
        judge.used(claims)


@pytest.mark.parametrize("asked", [1, 2, 6])
def test_a_claim_that_would_drown_the_others_is_refused(asked: int) -> None:
    judge = Examples[str]()
    judge.used({f"b{k}": 100.0 * (k + 1) for k in range(6)})
    claims = {"b5": 1e6, **{f"b{k}": 100.0 for k in range(asked - 1)}}
    assert list(judge.refused(claims)) == ["b5"]
    assert list(judge.refused({"new": 1e6})) == ["new"] and not judge.refused({"new": 3e5})


def test_of_two_the_one_that_says_one_example_has_nobody_refused() -> None:
    assert not Examples[str]().refused({"honest": 60000.0, "liar": 1.0})
    assert list(Examples[str]().refused({"honest": 60000.0, "liar": 1e12})) == ["liar"]
    assert list(Examples[str]().refused({"honest": 60000.0, "liar": 1001 * SINGLE})) == ["liar"]
    assert not Examples[str]().refused({"alone": 1e12})
