"""Which losses are believed: those of honest boards always, and a lie that would be the whole curve never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.flower.losses import Losses

HONEST = st.floats(1e-9, 1e3)


@given(st.lists(st.lists(HONEST, min_size=1, max_size=5), max_size=20))
def test_losses_of_honest_boards_are_believed_however_unequal(rounds: list[list[float]]) -> None:
    judge = Losses()
    for losses in rounds:
        assert all(judge.believed(losses)) and judge.makes_sense(losses[0])


@pytest.mark.parametrize("lie", [-1e25, 1e25, -2e5])
@pytest.mark.parametrize("boards", [1, 2, 3, 6])
def test_a_lie_is_not_believed_round_after_round(lie: float, boards: int) -> None:
    judge = Losses()
    judge.believed([2.0] * max(boards, 2))
    for factor in (1.0, 2.0, 3.0):
        assert judge.believed([factor * lie, *[2.0] * (boards - 1)]) == [False, *[True] * (boards - 1)]
        if boards > 1:
            assert not judge.makes_sense(100.0 * lie) and judge.makes_sense(1e4)


def test_a_training_that_runs_away_is_recorded() -> None:
    judge = Losses()
    for power in range(2, 24):
        assert judge.believed([1.5 * 10.0**power] * 2) == [True, True]
        assert judge.makes_sense(10.0**power)


def test_without_history_everything_is_believed() -> None:
    assert Losses().believed([1e20]) == [True] and Losses().makes_sense(-1e20) and Losses().believed([]) == []
