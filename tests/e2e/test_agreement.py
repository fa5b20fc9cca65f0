"""Boards whose own data make different models: who does not fit is refused at the join by name, and
the run says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import edgegossip, unwrapped

# The simulator has the rule `unfit`, tests/mesh and tests/flower/test_agreement.py the words, and
# tests/fleet/launch/test_run_folders.py how a run ends in which nobody fits.
pytestmark = pytest.mark.slow
OWN = (
    *("--set", "data.name=tests.e2e.classes:data"),
    *("--set", "model.name=mlp"),
    *("--set", "model.params.hidden=[16]"),
    *("--set", "run.rounds=4"),
    "--no-plots",
)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_gossip_goes_on_without_boards_whose_data_lack_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two stand side by side and fit each other: they are not to train a second model."""
    odd, others = ("board-2", "board-3"), ("board-0", "board-1", "board-4")
    monkeypatch.setenv("FEW_CLASSES", ",".join(odd))
    ring = ("--nodes", "5", "--set", "run.rounds=300")
    with edgegossip("run", "quickstart-gossip", *OWN, *ring, runs=tmp_path) as running:
        code, out, err = running.finish()
        assert running.nobody_left()
        folder = running.folder()
    assert code == 7, err
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["failed_nodes"] == list(odd)
    lines = unwrapped(out)
    assert all(re.search(rf"^lost: {name} after \d+ rounds?, at .* wall: {name} .*fit", lines, re.M) for name in odd), (
        out
    )
    told = [e for e in events(folder) if e["event"] == "disagrees"]
    assert {("board-1", "board-2"), ("board-4", "board-3")} <= {(e["node"], e["peer"]) for e in told}
    assert all((e["node"] in odd) != (e["peer"] in odd) for e in told)
    assert all(e["node"] in e["text"] and e["peer"] in e["text"] for e in told)
    lost = {e["node"]: e["text"] for e in events(folder) if e["event"] == "lost"}
    assert set(lost) == set(odd)
    for board, text in lost.items():
        assert f"{board} does not fit board-0, board-1, board-4, who go on" in text
        # Whichever of the two ends refused the other first says it.
        found, wanted = f"8 classes on {board}", "10 classes on board-0"
        assert f"the target is {found} and {wanted}" in text or f"the target is {wanted} and {found}" in text
    finished = {e["node"] for e in events(folder) if e["event"] == "finished"}
    assert finished == set(others)


def test_gossip_where_nobody_fits_anybody_fails_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEW_CLASSES", "board-1")
    two = ("--nodes", "2", "--set", "gossip.topology=complete")
    with edgegossip("run", "quickstart-gossip", *OWN, *two, runs=tmp_path) as running:
        code, _, err = running.finish()
        assert running.nobody_left()
    assert code == 6 and "do not fit together" in err, err


def test_a_coordinator_goes_on_without_a_board_whose_data_lack_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEW_CLASSES", "board-1")
    with edgegossip("run", "quickstart-server", *OWN, "--nodes", "3", runs=tmp_path) as running:
        code, out, err = running.finish()
        assert running.nobody_left()
        folder = running.folder()
    assert code == 7, err
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["failed_nodes"] == ["board-1"] and "board-1" in out
    words = "on this board and 282 at the coordinator: every board needs the same model"
    [refused] = [e["text"] for e in events(folder) if e["event"] == "refused"]
    assert refused.startswith("board-1 cannot take part: ") and words in refused
    [lost] = [e["text"] for e in events(folder) if e["event"] == "lost"]
    assert words in lost
    told = [(e["event"], e["t_s"]) for e in events(folder) if e["node"] == "coordinator"]
    assert told[0][0] == "listening" and told == sorted(told, key=lambda one: one[1]), "one clock from the start"
