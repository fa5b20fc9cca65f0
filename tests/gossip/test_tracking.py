"""Gradient tracking: what the two ends of an edge hold of a correction stays opposite, whatever is
lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

NAMES = ["gt-dsgd", "k-gt", "motef"]


def edges(fleet: Any, i: int) -> Any:
    return fleet.states[i].math.edges


def assert_opposite(fleet: Any) -> None:
    """c_ij = -c_ji, with the same stamp, so that corrections sum to zero."""
    for i in range(len(fleet.states)):
        for j, edge in edges(fleet, i).items():
            other = edges(fleet, j)[i]
            assert edge.stamp == other.stamp
            np.testing.assert_allclose(edge.correction, -other.correction, atol=1e-5)


def play(fleet: Any, rounds: int, rng: np.random.Generator) -> None:
    for _ in range(rounds):
        for node in range(len(fleet.states)):
            fleet.step(node, rng.normal(size=fleet.start.shape[1]))
        fleet.deliver_all()


@pytest.mark.parametrize("name", NAMES)
def test_corrections_are_opposite_and_not_nothing(make_fleet: Any, name: str) -> None:
    fleet = make_fleet("ring", algorithm=name, alike=True)
    fleet.say_hello()
    play(fleet, 5, np.random.default_rng(1))
    assert_opposite(fleet)
    assert np.abs(edges(fleet, 0)[1].correction).max() > 0.01


def test_a_message_that_only_one_end_heard_ends_with_its_edge(make_fleet: Any) -> None:
    fleet, rng = make_fleet("ring", algorithm="gt-dsgd", alike=True), np.random.default_rng(2)
    fleet.say_hello()
    play(fleet, 3, rng)
    for node in range(4):
        fleet.step(node, rng.normal(size=12))
    lost = next(k for k, (to, m) in enumerate(fleet.mail) if to == 1 and m.sender == "board-0")
    fleet.mail.pop(lost)
    fleet.deliver_all()
    fleet.tick(1)
    kept = edges(fleet, 2)[3].stamp
    assert edges(fleet, 0)[1].stamp != edges(fleet, 1)[0].stamp
    play(fleet, 1, rng)
    assert_opposite(fleet)  # both ends began anew in this round
    assert edges(fleet, 2)[3].stamp != kept and len(edges(fleet, 2)) == 2  # and the others went on


def test_the_correction_of_a_board_that_is_down_ends_at_once(make_fleet: Any) -> None:
    fleet, rng = make_fleet("ring", algorithm="gt-dsgd", alike=True), np.random.default_rng(3)
    fleet.say_hello()
    play(fleet, 3, rng)
    fleet.down(0, 1)
    fleet.down(2, 1)
    for node in (0, 2, 3):
        fleet.step(node, rng.normal(size=12))
    fleet.deliver_all()
    assert set(edges(fleet, 0)) == {3} and set(edges(fleet, 2)) == {3}
