"""How a run is concluded: its table, plots and page, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgegossip.fleet.launch.run_folders import conclude
from edgegossip.telemetry.run_folder import RunFolder


def test_a_run_without_a_round_ends_with_its_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to draw is no fault of the data: what counts is why the boards were lost."""
    folder = RunFolder.create(tmp_path, "x", '[run]\nmode = "gossip"\nrounds = 3\n', {})
    folder.write_run(bytes(8), ("board-0", "board-1"))
    for name in ("board-0", "board-1"):
        folder.event(name, "lost", f"lost {name}: it fits none of its neighbours")
    folder.close()
    assert conclude(folder, plots=True, as_json=False) == 6
    out = capsys.readouterr().out
    assert "fits none of its neighbours" in out and "page " in out and "plot " not in out
