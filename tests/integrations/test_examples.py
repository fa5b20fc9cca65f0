"""The examples of the integrations train and evaluate."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.integrations.conftest import Start, play

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAY = "ANN:\n" + "good day and a fair wind to you " * 12 + "\n\nBOB:\n" + "a foul day it is my lord " * 12


@pytest.mark.parametrize(
    ("name", "package", "make", "options"),
    [
        ("optimizer.py", "torch", ["images", "--train", "160", "--test", "40"], []),
        ("lightning_module.py", "lightning", ["images", "--train", "160", "--test", "40"], []),
        (
            "transformers_trainer.py",
            "transformers",
            ["text", "--words", "4", "--classes", "2", "--test", "8", "--from", "play.txt"],
            ["--out", "trainer"],
        ),
    ],
)
def test_it_trains_and_evaluates(
    name: str,
    package: str,
    make: list[str],
    options: list[str],
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    Path("play.txt").write_text(PLAY)
    monkeypatch.setattr(sys, "argv", ["make_data.py", *make, "--out", "data", "--boards", "1"])
    runpy.run_path(str(EXAMPLES / "scripts/make_data.py"), run_name="__main__")
    arguments = ["--data", "data/{board}", "--every", "4", *options]
    workload = start(EXAMPLES / "integrations" / name, *arguments, rounds=2)
    x, updates = play(workload, workload.initial(1), 0, 2)
    assert [u.steps for u in updates] == [4, 4] and updates[0].delta.any()
    found = workload.evaluate(x)
    assert found is not None and found.accuracy is not None and found.loss > 0.0
    workload.over(x)
