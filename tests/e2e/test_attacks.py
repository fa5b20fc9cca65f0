"""What a board of the fleet that was taken over may do, one row of `lab.soak.attack` after the
other. That messages of far rounds are kept in files, not in memory, is in tests/mesh/test_shelf.py,
too."""

from __future__ import annotations

import pytest

from lab.soak.attack import ROWS, play


@pytest.mark.slow  # real processes, whose rounds a second are judged
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "row"), [(mode, row) for mode, rows in ROWS.items() for row in rows])
def test_one_member_costs_two_deadlines_and_some_memory(mode: str, row: str) -> None:
    found = play(row, 4, mode)
    assert not found["wrong"], found
