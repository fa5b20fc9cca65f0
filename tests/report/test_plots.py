from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edgegossip.report.plots import run_title, write_plots
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import DataError, HostError


def _pixels(path):
    from matplotlib.image import imread

    return imread(path)


def test_all_plots_are_drawn_and_show_something(drawn):
    assert list(drawn) == ["learning.png", "time.png", "partition.png"]
    assert all(path.parent.name == "plots" for path in drawn.values())
    for path in drawn.values():
        image = np.round(255 * _pixels(path)[..., :3]).astype(np.uint32)
        assert image.shape[0] > 200 and image.shape[1] > 1000
        assert np.unique(image @ np.array([65536, 256, 1], dtype=np.uint32)).size > 100


@pytest.mark.parametrize(
    "color", [(0, 0x72, 0xB2), (0xD5, 0x5E, 0), (0xB8, 0xBD, 0xC4)], ids=["compute", "transmit", "wait"]
)
def test_the_length_of_a_bar_is_its_time(drawn, color):
    """Three boards spent 0.2 s in each part, the lost one 0.1 s: its pieces are half as long."""
    image = np.round(255 * _pixels(drawn["time.png"])[..., :3]).astype(int)
    lengths = (np.abs(image - color).max(axis=2) <= 1).sum(axis=1)  # pixels of that colour in each row of the picture
    long = lengths.max()
    short = lengths[lengths < 0.75 * long].max()
    assert 150 < long < 260 and abs(short - long / 2) <= 3


def test_the_title_says_what_was_run(run_dir):
    run = read_run(run_dir)
    assert run_title(run, summarise(run)) == "demo: gossip (ring, dpsgd), minmax8, 4 boards, 20 rounds"


def test_a_run_of_one_round_without_evaluation_or_bytes_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install 'edgegossip[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    folder.metrics("a", 0, {"train/loss": 1.0})
    folder.close()
    assert [p.name for p in write_plots(folder.path)] == ["learning.png"]


def test_a_run_without_records_is_one_sentence(tmp_path):
    pytest.importorskip("matplotlib", reason="an extra: pip install 'edgegossip[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    folder.close()
    with pytest.raises(DataError, match="no records to draw"):
        write_plots(folder.path)


def test_more_classes_than_the_palette_has_colours():
    pytest.importorskip("matplotlib", reason="an extra: pip install 'edgegossip[report]'")
    from edgegossip.report.draw import class_colors

    assert [len(set(class_colors(n))) for n in (1, 2, 10, 11, 100)] == [1, 2, 10, 11, 100]


def test_without_matplotlib_the_sentence_says_what_to_install(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HostError, match=r"pip install 'edgegossip\[report\]'"):
        write_plots(run_dir)


def test_importing_the_reports_imports_no_heavy_library():
    code = (
        "import sys, edgegossip.report.plots, edgegossip.report.table, edgegossip.report.live;"
        "bad = {'matplotlib', 'rich', 'torch', 'grpc', 'flwr'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("scores", [{}, {"eval/mae": 0.5}, {"eval/accuracy": 0.5, "eval/f1": 0.25}])
def test_a_run_is_drawn_with_the_score_that_it_goes_by_or_none(tmp_path, scores):
    pytest.importorskip("matplotlib", reason="an extra: pip install 'edgegossip[report]'")
    folder = RunFolder.create(tmp_path, "x", "", {})
    for step in range(4):
        folder.metrics("a", step, {"train/loss": 1.0, "eval/loss": 1.0, "net/sent_bytes": 10, **scores})
    folder.close()
    (path,) = (p for p in write_plots(folder.path) if p.name == "learning.png")
    assert (_pixels(path).shape[0] < 700) == (not scores)  # two rows of panels, or one
