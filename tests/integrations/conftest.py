"""Scripts that use an integration, started as a board starts them, and a run that is played by
hand."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip.training.script import ScriptWorkload
from tests.training.fakes import recipe

Start = Callable[..., ScriptWorkload]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a script's text, or the script at a path, as board 0 of 2."""
    # A script that a test leaves in the middle stays this process's main module.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def start(script: str | Path, *args: str, rounds: int = 4) -> ScriptWorkload:
        path = script if isinstance(script, Path) else tmp_path / "train.py"
        if isinstance(script, str):
            path.write_text(textwrap.dedent(script))
        run = {"script": str(path), "script_args": list(args), "rounds": rounds, "nodes": 2}
        return ScriptWorkload(recipe(run=run), 0, "board-0")

    return start


def play(workload: ScriptWorkload, x: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, list[Any]]:
    """Play rounds without any other board; the model then, and the updates."""
    updates = []
    for round in range(begin, end):
        updates.append(workload.local_update(x, round))
        x = x + updates[-1].delta
    return x, updates
