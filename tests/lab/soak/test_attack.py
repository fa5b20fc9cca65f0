"""A row in which nobody was attacked is no row that boards came through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.soak import attack
from lab.soak.attack import IN_BOARD, judge


def watch() -> Any:
    """Of one board that has done a round a second, whatever happened."""
    found = attack.Watch({})
    found.seen = [(float(k), {"a": k}, {"a": 1 << 20}) for k in range(60)]
    return found


@pytest.mark.parametrize("acted", [True, False])
def test_a_row_that_did_nothing_is_wrong(acted: bool) -> None:
    found = judge(watch(), ["a"], (20.0, 30.0, 50.0), 1000, [], acted=acted)
    assert found["wrong"] == ([] if acted else ["acted"])


@pytest.mark.parametrize("row", ["silent", "late", "answers"])
def test_what_a_board_does_in_a_row_is_told_once_it_does_it(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class FleetLink:
        def reply(self, message: object) -> None: ...

    monkeypatch.setattr("lab.soak.attack.time", SimpleNamespace(sleep=lambda _: None))
    acts: list[int] = []
    IN_BOARD[row](None, None, SimpleNamespace(FleetLink=FleetLink), lambda: acts.append(1))
    assert not acts
    FleetLink().reply("an answer")
    assert acts == [1]
