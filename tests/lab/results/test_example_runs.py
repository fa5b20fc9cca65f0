"""lab.results.example_runs: a run that has its line is not made again, and the table says what is
beyond the target."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With runs that are only counted, in `made`; `server` fails once."""
    from lab.results import example_runs

    made: list[tuple[str, str]] = []

    def make(self: Any, name: str, case: Any, kind: str, seed: int) -> dict[str, Any]:
        made.append((name, kind))
        if kind == "server" and made.count((name, kind)) == 1:
            raise RuntimeError("no coordinator")
        score = {"central": 0.80, "gossip": 0.79, "server": 0.77, "killed": 0.81}[kind]
        victim = {"victim": {"accuracy": 0.8, "loss": 1.0}, "missed": 2} if kind == "killed" else {}
        return {"scores": {"accuracy": score, "loss": 1.0}, **victim}

    monkeypatch.setattr(example_runs.Campaign, "make", make)
    example_runs.made = made
    return example_runs


def call(script: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> int:
    words = ["text", "--work", str(folder / "work"), "--out", str(folder / "out.md"), "--machine", "a test", *more]
    monkeypatch.setattr(sys, "argv", ["example_runs.py", *words])
    return int(script.main())


def test_only_what_failed_is_made_again(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert call(script, monkeypatch, tmp_path) == 1
    assert [kind for _, kind in script.made] == ["central", "gossip", "server", "killed"]
    assert "failed: RuntimeError: no coordinator" in (tmp_path / "out.md").read_text()
    assert call(script, monkeypatch, tmp_path) == 0
    assert [kind for _, kind in script.made[4:]] == ["server"]
    assert call(script, monkeypatch, tmp_path) == 0 and len(script.made) == 5
    lines = json.loads((tmp_path / "out.json").read_text())
    assert {line["run"] for line in lines} == {"central", "gossip", "server", "killed"} and len(lines) == 4


def test_the_table_says_what_is_beyond_the_target(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(script, monkeypatch, tmp_path)
    call(script, monkeypatch, tmp_path)
    rows = {line.split(" | ")[1]: line for line in (tmp_path / "out.md").read_text().splitlines() if "| text |" in line}
    assert "-1.0 points |" in rows["4 boards, gossip"]
    assert "-3.0 points, beyond 2 points |" in rows["4 boards, server"]
    assert "+1.0 points |" in rows["4 boards, killed"] and "2 rounds missed" in rows["4 boards, killed"]


def test_more_seeds_are_runs_of_their_own(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(script, monkeypatch, tmp_path)
    call(script, monkeypatch, tmp_path, "--seeds", "1,3")  # server fails but once: made again for the first seed
    assert [kind for _, kind in script.made[4:]] == ["server", "central", "gossip", "server"]
    rows = {line.split(" | ")[1]: line for line in (tmp_path / "out.md").read_text().splitlines() if "| text |" in line}
    assert "-1.0 points | 0.7900, 0.7900 |" in rows["4 boards, gossip"]
    assert "+1.0 points |  |" in rows["4 boards, killed"]


@pytest.mark.parametrize(
    ("found", "words"), [(1.04, "+4.0%"), (1.06, "+6.0%, beyond 5 %"), (0.5, "-50.0%"), (1.05, "+5.0%")]
)
def test_a_loss_may_be_five_percent_higher(script: Any, found: float, words: str) -> None:
    assert script.verdict("loss", found, 1.0000001) == words


def test_all_runs_of_a_case_see_the_same_number_of_examples(script: Any, tmp_path: Path) -> None:
    for case in script.CASES.values():
        assert case.batch % case.boards == 0
        central = case.script_args(tmp_path, "all", 1)
        board = case.script_args(tmp_path, "{board}", case.boards)
        sizes = [int(words[words.index("--batch-size") + 1]) for words in (central, board)]
        assert sizes[0] == case.boards * sizes[1]
