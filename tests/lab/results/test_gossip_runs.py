"""lab/results/gossip_runs.py: a result stands for its own settings alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

WORDS = ("--rounds", "20", "--kill-at", "5")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With runs that are only counted, in `ran`."""
    from lab.results import gossip_runs

    ran: list[str] = []

    def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
        ran.append(name)
        command = " ".join(gossip_runs.command_of(name, options, options.seed))
        line = {"algorithm": name, "seed": options.seed, "kill_at": options.kill_at, "command": command}
        line |= {"nodes": 4, "topology": "ring", "codec": "fp32", "rounds": options.rounds, "missed": 1, "seconds": 1.0}
        accuracy = {"mean": 0.5, "min": 0.5, "max": 0.5}
        return line | {"accuracy": accuracy, "restarted_accuracy": 0.5, "bits_per_value": 32.0}

    monkeypatch.setattr(gossip_runs, "run", run)
    gossip_runs.ran = ran
    return gossip_runs


def call(script: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gossip_runs.py", *words, "--out", str(out), "dpsgd", "sgp"])
    script.ran.clear()
    assert script.main() == 0


def test_a_finished_run_is_not_made_again(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "runs.md"
    call(script, monkeypatch, out, *WORDS)
    assert script.ran == ["dpsgd", "sgp"]
    call(script, monkeypatch, out, *WORDS)
    assert script.ran == []
    call(script, monkeypatch, out, *WORDS, "--seed", "2")
    assert script.ran == ["dpsgd", "sgp"] and len(json.loads(out.with_suffix(".json").read_text())) == 4


@pytest.mark.parametrize("words", [("--rounds", "30"), ("--kill-at", "6"), ("--local-steps", "2")])
def test_lines_of_other_settings_are_neither_taken_nor_lost(
    words: tuple[str, ...],
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "runs.md"
    call(script, monkeypatch, out, *WORDS)
    kept = out.with_suffix(".json").read_text()
    with pytest.raises(SystemExit):
        call(script, monkeypatch, out, *WORDS, *words)
    assert "has lines of other settings (dpsgd, sgp)" in capsys.readouterr().err
    assert script.ran == [] and out.with_suffix(".json").read_text() == kept
    call(script, monkeypatch, tmp_path / "other.md", *WORDS, *words)
    assert script.ran == ["dpsgd", "sgp"]
