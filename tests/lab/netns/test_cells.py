"""Cells in namespaces: which boards are played, and what a row and its notes say of them."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip import recipe as recipes
from edgegossip.report.style import Figures
from edgegossip.scale import cells, devices, summary
from edgegossip.telemetry.run_folder import RunFolder
from lab.netns import emulated, run_cell
from lab.netns.__main__ import Netns, how
from lab.netns.run_cell import doubts, parts_until_the_last
from lab.netns.scheduler import Exchange, Timings
from tests.scale.test_summary import BASE, HOW, _records


def told(*settings: str, **more: Any) -> dict[str, Any]:
    return how(Netns(recipe="table3", figures=Figures(), **more), recipes.load("table3", settings))


def test_a_run_that_goes_on_plays_the_boards_as_before() -> None:
    """As long as they do the same: how much slower a board is depends on what it computes."""

    boards = emulated.EmulatedDevice(51.5, 8.0, 0.25)
    line = {"state": "done", "how": told(), "row": {"played": asdict(boards)}}
    known = emulated.known({"cell": line})
    assert known == {emulated.emulation_key(told("run.seed=7", "data.skew=0.5", rate="50mbit")): boards}
    others = ("training.precision=int8", "run.threads=2", "training.batch_size=64", "model.name=resnet32")
    assert not any(emulated.emulation_key(told(other)) in known for other in others)
    assert emulated.emulation_key(told(device="raspberry-pi-5")) not in known
    assert emulated.known({"cell": line | {"state": "failed"}}) == {}
    assert emulated.known({"cell": line | {"how": told(slower=2.0)}}) == {}


def test_boards_keep_the_pace_of_their_profile_whatever_a_core_here_does() -> None:
    boards = emulated.EmulatedDevice(50.0, 8.0, update_s=2.0)
    assert boards.slower_after([], 2) == 50.0
    assert boards.slower_after([0.04, 0.05], 2) == pytest.approx(2.0 / 0.045)
    assert boards.slower_after([0.01] * 100 + [0.1] * 8, 2) == pytest.approx(20.0)  # four rounds of two boards
    assert emulated.EmulatedDevice(50.0).slower_after([0.04, 0.05], 2) == 50.0  # nobody said what an update takes


def test_messages_are_handled_as_the_profile_encodes_and_decodes() -> None:
    profile = devices.load_device("raspberry-pi-4")
    rates = {name: (8 * profile.encode_rate(name), 4 * profile.decode_rate(name)) for name in ("fp32", "co3")}
    assert emulated.handling_of(profile, rates) == pytest.approx(6.0)
    rates["e-elastiquant"] = (9 * profile.encode_rate("e-elastiquant"), 9 * profile.decode_rate("e-elastiquant"))
    assert emulated.handling_of(profile, rates) == pytest.approx(8.0)


@pytest.mark.parametrize("busy", [0.2, 1.0])
def test_a_cell_of_namespaces_says_what_this_machine_did_for_it(tmp_path: Path, busy: float) -> None:
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "netns", HOW, 18432, 3)
    folder, rounds = RunFolder.create(tmp_path, "x", recipes.to_toml(cell.recipe), {}), cell.recipe.run.rounds
    for record in _records(cell, 2.0, 1.0):
        folder.write(replace(record, values={**record.values, "eval/accuracy": 0.5}))
    cpu_s = busy * 3.0 * (os.cpu_count() or 1)
    timings = Timings([Exchange(3.0, 10**7, cpu_s, 3.0)] * rounds)
    for round in range(rounds):
        at = {"round": round, "ready": 0, "go": 10**8, "done": 11 * 10**8}
        timings.marks += [{"node": f"board-{k}", "update": 9 + 2 * k, **at} for k in range(4)]
    found = run_cell._result(cell, folder, timings)
    row = found["row"]
    assert row["update_spread"] == summary.spread_of([9, 11, 13, 15] * 3) > 0 and row["accuracy"] == 0.5
    assert row["exchange"] == pytest.approx(
        {"seconds": 1.0, "carried_bytes": 10**7, "rate_share": 0.8, "cpu_share": busy, "dilation": 3.0}
    )
    assert row["machine_bound"] is (busy == 1.0) and row["counted_rounds"] == 3
    assert found["marks"] == timings.marks[-4:] and found["exchanges"] == [asdict(e) for e in timings.exchanges[2:]]
    assert (folder.path / "summary.json").exists()


def parts_of(barriers: run_cell.Barriers, late: run_cell.Barriers = {}) -> summary.PartsOf:  # noqa: B006 nobody writes
    return partial(parts_until_the_last, barriers=barriers, late=late)


def test_where_all_send_at_once_waiting_after_that_is_for_the_link() -> None:
    """Each waits for 0.2 s a round; board-1 for all of that before the others were ready, board-2
    for more."""
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "netns", HOW, 18432, 3)
    barriers = {("board-0", s): 0.05 for s in range(9)} | {("board-1", s): 0.2 for s in range(9)}
    barriers |= {
        ("board-2", s): 0.3 for s in range(9)
    }  # its record counts waiting as less than that; board-3: nothing is known
    boards = [f"board-{k}" for k in range(4)]
    row, _ = summary.row_of_records(cell, _records(cell, 2.0, 1.0), boards, parts_of=parts_of(barriers))
    plain, _ = summary.row_of_records(cell, _records(cell, 2.0, 1.0), boards)
    assert row["wait_s"] == pytest.approx(9 * (0.05 + 0.2 + 0.2 + 0.0) / 4)
    assert row["tx_s"] == pytest.approx(9 * (1.15 + 1.0 + 1.0 + 1.2) / 4)
    assert row["t_s"] == pytest.approx(plain["t_s"]) and plain["wait_s"] == pytest.approx(1.8)


def test_the_link_is_busy_until_the_last_board_has_what_it_needs() -> None:
    """Board-1 is through 0.15 s before the last one each time: of what it waits for before the next
    round is sent so much is the link's. Board-2 is through early, and the last to be ready."""
    (cell,) = cells.make_cells(BASE, cells.parse_schemes("sgd"), (4,), "netns", HOW, 18432, 3)
    boards = [f"board-{k}" for k in range(4)]
    barriers = {(name, s): 0.0 if name == "board-2" else 0.2 for s in range(9) for name in boards}
    late = {("board-1", s): 0.15 for s in range(9)} | {("board-2", s): 0.15 for s in range(9)}
    records = _records(cell, 2.0, 1.0)
    before, _ = summary.row_of_records(cell, records, boards, parts_of=parts_of(barriers))
    row, _ = summary.row_of_records(cell, records, boards, parts_of=parts_of(barriers, late))
    assert row["tx_s"] - before["tx_s"] == pytest.approx(
        9 * (0.15 + 0.15 / 3) / 4
    )  # board-2: in the last round, after which nobody waits
    assert row["wait_s"] == pytest.approx(before["wait_s"] - 9 * 0.15 / 4)
    assert row["t_s"] == pytest.approx(before["t_s"] + 9 * 0.15 / 3 / 4)


def test_what_makes_a_cell_doubtful_is_named() -> None:
    sizes = {"payload": 90.0, "overhead": 10.0, "link": 107.0}
    row = {"scheme": "co3", "devices": 2, "on": "netns", "t_s": 9.0, "counted_rounds": 4, "round_bytes": sizes}
    plain = doubts([row | {"update_spread": 0.1}])
    assert not any("co3 on 2" in s for s in plain)
    failed = {"scheme": "sgd", "devices": 4, "on": "netns", "t_s": None}
    said = doubts([row | {"update_spread": 0.3}, row | {"devices": 7, "counted_rounds": 1}, failed])
    assert [s.rpartition(": ")[2] for s in said if "co3" in s] == ["co3 on 7", "co3 on 2"]
