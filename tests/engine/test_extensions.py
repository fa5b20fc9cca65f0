"""How often a round waits beyond its deadline for who sends byte by byte."""

import math

import pytest

from edgegossip.engine.extensions import FREE, MOST, Extensions


def waits(rounds: int, most_are_here: bool, looks: int = 3) -> int:
    extensions, count = Extensions(), 0
    for _ in range(rounds):
        extensions.begin()
        count += all(extensions.allow(most_are_here) for _ in range(looks))
    return count


def test_one_sender_costs_two_waits_and_a_logarithm_of_the_rounds() -> None:
    assert waits(FREE, True) == FREE
    for rounds in (16, 64, 1024):
        assert FREE < waits(rounds, True) <= FREE + math.log2(rounds)


def test_where_links_are_slow_for_all_every_round_waits() -> None:
    assert waits(64, False) == 64


def afforded(rounds: int, wants: float) -> float:
    """Deadlines in which one that is alone was waited for, a quarter at a time."""
    extensions, quarters = Extensions(), 0
    for _ in range(rounds):
        extensions.begin()
        for _ in range(int(4 * wants)):
            if not extensions.afford(0.25):
                break
            quarters += 1
    return quarters / 4


@pytest.mark.parametrize("rounds", [1, 2, 16, 1024])
def test_one_that_is_alone_is_waited_for_a_deadline_more_a_round(rounds: int) -> None:
    assert afforded(rounds, 1.0) == rounds
    assert afforded(rounds, MOST) == rounds + MOST - 2


def test_what_it_does_not_use_is_not_saved_without_end() -> None:
    extensions = Extensions()
    for _ in range(100):
        extensions.begin()
        extensions.afford(0.25)
    extensions.begin()
    assert sum(extensions.afford(0.25) for _ in range(100)) / 4 <= MOST
