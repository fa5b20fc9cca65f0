"""A row in which nobody was attacked is no row that boards came through."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lab.results.attacks_table import tables
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


def test_the_page_has_the_newest_line_of_each_case_in_the_order_of_modes_and_rows() -> None:
    case = {"boards": 4, "seconds": 20.0, "control": 2.5, "lost_s": 5.04, "grew_mib": 1, "said": []}
    source = {"machine": "m", "isa": "avx2", "commit": "c", "dirty": False}
    named = ["refused evil", "peer-down evil", "peer-up pi-1"]
    cases = [
        {"mode": "server", "row": "silent", "kept": 0.9},
        {"mode": "gossip", "row": "late", "kept": 0.1},
        {"mode": "gossip", "row": "silent", "kept": 1.04},
        {"mode": "gossip", "row": "late", "kept": 0.95, "said": named},
        {"mode": "gossip", "row": "late", "kept": 0.8, "seconds": 600.0},
    ]
    made = tables(json.dumps({**case, **source, **one}) for one in cases)
    short, long = ([(row[0], row[1], row[4], row[7]) for row in table["rows"]] for table in made["tables"])
    assert short == [
        ("gossip", "silent", "104 %", "-"),
        ("gossip", "late", "95 %", "peer-down, refused"),
        ("server", "silent", "90 %", "-"),
    ]
    assert long == [("gossip", "late", "80 %", "-")] and made["source"] == source
