"""How often a round waits beyond its deadline for who sends byte by byte."""

import math

from edgegossip.engine.extensions import FREE, Extensions


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
