"""How a run is concluded: its table, plots and page, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgegossip.fleet.launch.run_folders import conclude, shown_when_it_fails
from edgegossip.telemetry.run_folder import RunFolder
from tests.report.web.synthetic import write_run


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


def test_a_run_that_lost_a_board_or_its_purpose_says_so_and_ends_with_a_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = RunFolder.reopen(write_run(tmp_path / "split", boards=3, rounds=8, lost=True))
    assert conclude(split, plots=False, as_json=False) == 8
    assert "RUIN: the fleet split" in " ".join(capsys.readouterr().out.split())
    folder = RunFolder.create(tmp_path, "x", '[run]\nmode = "gossip"\nrounds = 3\n', {})
    folder.write_run(bytes(8), ("board-0", "board-1"))
    for step in range(3):
        for name in ("board-0", "board-1")[: 3 - step]:
            folder.metrics(name, step, {"train/loss": 1.0 - 0.1 * step})
    folder.event("board-0", "finished", "board-0 finished")
    folder.event("board-1", "lost", "lost board-1: killed by SIGKILL")
    folder.close()
    assert conclude(folder, plots=False, as_json=False) == 7
    assert "lost: board-1 after 2 rounds" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("what", ["plots/learning.png", "plots", "report.html"])
def test_a_disk_that_takes_no_picture_and_no_page_does_not_fail_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    folder = RunFolder.create(tmp_path, "x", '[run]\nmode = "gossip"\nrounds = 3\n', {})
    folder.write_run(bytes(8), ("board-0",))
    for step in range(3):
        folder.metrics("board-0", step, {"train/loss": 1.0})
    folder.event("board-0", "finished", "board-0 finished")
    folder.close()
    (folder.path / what).parent.mkdir(exist_ok=True)
    if what == "report.html":
        (folder.path / what).mkdir()  # cannot be replaced
    else:
        (folder.path / what).symlink_to("/dev/full")
    assert conclude(folder, plots=True, as_json=False) == 0
    out, err = capsys.readouterr()
    assert "run folder " in out and err.startswith("no page: " if what == "report.html" else "no plots: ")


@pytest.mark.parametrize("done", [2, 3])
def test_a_run_that_is_stopped_after_its_last_round_shows_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    folder = RunFolder.create(tmp_path, "x", '[run]\nmode = "gossip"\nrounds = 3\n', {})
    folder.write_run(bytes(8), ("board-0", "board-1"))
    for step in range(done):
        for name in ("board-0", "board-1"):
            folder.metrics(name, step, {"train/loss": 1.0, "eval/loss": 0.5})
    with pytest.raises(KeyboardInterrupt), shown_when_it_fails(folder, as_json=False):
        raise KeyboardInterrupt
    folder.close()
    out, err = capsys.readouterr()
    assert ("board-0 (unfinished)" in out) == (done == 3) == ("over the boards that are left" in " ".join(out.split()))
    assert "stopped: what there is lies in" in err
